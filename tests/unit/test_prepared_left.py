"""Tables that a killed process was making are removed by the one that makes them again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from atelier.config.resolve import resolve
from atelier.stages.prepared import _make


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    (tmp_path / f".tables.{gone.pid}").mkdir()
    _make(resolve("tiny/base"), tmp_path / "tables")
    assert [path.name for path in tmp_path.iterdir()] == ["tables"]
