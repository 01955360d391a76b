"""A run that had secrets in its environment leaves none of them anywhere, nor the machine's paths.

The pipeline of the fixture `finished` had tests/support/secrets.py in its environment.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.flows.conftest import ROOT, Finished
from tests.support.secrets import SECRETS

pytestmark = pytest.mark.xdist_group("finished")  # with test_pipeline.py


def leaks(folder: Path, needles: dict[str, str]) -> list[str]:
    """File and needle, wherever a file below `folder` holds one, in its content or its name."""
    found = []
    for path in files(folder):
        content = path.read_bytes() + str(path.relative_to(folder)).encode()
        found += [
            f"{path.relative_to(folder)}: {name}"
            for name, needle in needles.items()
            if needle.encode() in content
        ]
    return found


def files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


@pytest.mark.parametrize("place", ["runs", "mlflow", "prefect", "data"])
def test_no_secret_is_written_down(finished: Finished, place: str):
    folder = finished.place.root / place
    assert leaks(folder, SECRETS) == []
    assert place == "data" or any(files(folder)), "there is something to look through"


def test_no_secret_is_shown(finished: Finished):
    output = finished.process.stdout + finished.process.stderr
    assert not [name for name, secret in SECRETS.items() if secret in output]


@pytest.mark.parametrize("place", ["run", "mlflow", "prefect"])
def test_no_path_of_the_machine_is_written_down(finished: Finished, place: str):
    """But for what the user named (the fixture's model and store lie elsewhere), and for where
    MLflow's store itself is: MLflow knows no relative place, so its database names its folder."""
    needles = {"repository": f"{ROOT}", "home": f"{Path.home()}/", "run": f"{finished.run}"}
    folder = finished.run if place == "run" else finished.place.root / place
    assert leaks(folder, needles) == []
