import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, threading, warnings
from pathlib import Path
from atelier.processes.console import shorten_paths
shorten_paths(Path("/somewhere/runs/one"))
warnings.warn("see /somewhere/runs/one/train/metrics.jsonl")
thread = threading.Thread(target=lambda: open("/somewhere/runs/one/in-thread"))
thread.start(); thread.join()
from atelier.config.stage_files import load_stage_config
load_stage_config(Path("/somewhere/runs/one/config/train.yaml"))
"""


def test_what_the_interpreter_prints_names_no_path_of_the_machine():
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, cwd=ROOT.parent
    )
    assert done.returncode == 1
    for text in (
        "UserWarning: see train/metrics.jsonl",
        "No such file or directory: 'in-thread'",
        'File "src/atelier/config/stage_files.py"',
        "config/train.yaml",
    ):
        assert text in done.stderr
    assert "/somewhere" not in done.stderr
    assert str(ROOT) not in done.stderr
