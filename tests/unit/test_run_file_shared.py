"""run.json is changed by several processes at once, and no change is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from atelier.config.resolve import resolve
from atelier.stages import run_file
from atelier.stages.run_file import read_run, write_run
from atelier.tracking.run_directory import RunDirectory

TIMES = 100
# The value that it wrote last is there when it comes again, whatever others wrote meanwhile.
NOTING = """
import sys
from pathlib import Path
from atelier.tracking.run_directory import RunDirectory, read_run_file
from atelier.tracking.run_file import note_in_run_file

run, name, lost = RunDirectory(Path(sys.argv[1])), sys.argv[2], 0
for number in range(int(sys.argv[3])):
    note_in_run_file(run, **{name: {"number": number}})
    lost += read_run_file(run)[name] != {"number": number}
print(lost)
"""


def test_no_change_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage and a mirror note something, and who opens the run brings up to date the rest."""
    monkeypatch.setattr(run_file, "_git", lambda: {"sha": None, "dirty": None})
    run, config = RunDirectory(tmp_path), resolve("tiny/base", [], Path(os.devnull))
    first = write_run(run, config, flow_run_id="flow-1")
    names = ("mlflow_run_id", "data")
    noting = [
        subprocess.Popen(
            [sys.executable, "-c", NOTING, str(run.root), name, str(TIMES)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    while any(one.poll() is None for one in noting):
        assert write_run(run, config)["id"] == first["id"]
    assert [(one.communicate()[0].strip(), one.returncode) for one in noting] == [("0", 0)] * 2
    assert [read_run(run)[name] for name in names] == [{"number": TIMES - 1}] * 2
