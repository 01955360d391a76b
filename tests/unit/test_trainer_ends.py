"""How the trainer's process ends, whatever its threads are doing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from atelier.training.__main__ import main

ENDING = """
import sys, threading, time
from atelier.rewards.threads import ScoringThreads, are_scoring
from atelier.training.__main__ import end

threads = ScoringThreads("ocr", 1)
begun = threading.Event()
if sys.argv[1] == "hangs":
    threads.submit(lambda: (begun.set(), time.sleep(3600)))
    begun.wait()
threads.close(0.1)
assert are_scoring() == (sys.argv[1] == "hangs")
import atexit
atexit.register(print, "ended by the interpreter")
print("said")
end(75)
"""


def test_a_scorer_that_hangs_does_not_change_the_exit_code() -> None:
    """The interpreter is not left to end threads that are in native code: it would abort."""
    ended = {
        how: subprocess.run(
            [sys.executable, "-c", ENDING, how], capture_output=True, text=True, check=False
        )
        for how in ("hangs", "rests")
    }
    assert {how: one.returncode for how, one in ended.items()} == {"hangs": 75, "rests": 75}
    assert ended["hangs"].stdout.splitlines() == ["said"]
    assert ended["rests"].stdout.splitlines() == ["said", "ended by the interpreter"]


def test_ctrl_c_is_answered_in_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("atelier.training.worker.train", interrupted)
    monkeypatch.setattr("atelier.training.__main__.shorten_paths", lambda *_: None)  # for good
    monkeypatch.setattr(sys, "argv", ["trainer", "--config", "c.yaml", "--run", str(tmp_path)])
    assert main() == 130
    assert capsys.readouterr().err.startswith("interrupted; what was saved before is whole")
