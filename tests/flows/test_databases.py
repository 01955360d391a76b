"""The databases of `make setup`: what a first run would otherwise wait for."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from atelier.config.paths import repository_root
from flows.local_platform.loopback import free_port


def make(place: Path, **more: str) -> None:
    own = {
        "PREFECT_HOME": str(place / "prefect"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{place}/mlflow.db",
    }
    kept = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    subprocess.run(
        [sys.executable, "-m", "flows.local_platform.databases"],
        env={**kept, **own, **more},
        cwd=repository_root(),
        check=True,
    )


def tables(file: Path) -> set[str]:
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("select name from sqlite_master where type = 'table'").fetchall()
    return {name for (name,) in rows}


def test_both_are_made_and_left_alone_afterwards(tmp_path: Path) -> None:
    make(tmp_path)
    files = {
        tmp_path / "prefect/prefect.db": {"flow_run", "task_run", "alembic_version"},
        tmp_path / "mlflow.db": {"runs", "metrics", "alembic_version"},
    }
    for file, some in files.items():
        assert some <= tables(file), file
    before = [file.read_bytes() for file in files]
    make(tmp_path)
    assert [file.read_bytes() for file in files] == before


def test_who_has_servers_of_their_own_gets_none(tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    make(tmp_path, PREFECT_API_URL=f"{nobody}/api", MLFLOW_TRACKING_URI=nobody)
    assert not list(tmp_path.rglob("*.db"))
