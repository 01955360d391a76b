"""On how many threads an export computes, here and in the clean process."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from atelier.config.resolve import resolve
from atelier.errors import CheckpointError
from atelier.export import clean_process
from atelier.export import run as exporting
from atelier.export.reload import reload_all
from atelier.tracking.run_directory import RunDirectory


@pytest.fixture(autouse=True)
def _threads_as_before() -> Any:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_the_clean_process_takes_as_many_threads_as_this_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "__main__.py").write_text(
        "from os import environ as found\n"
        "raise SystemExit(found['OMP_NUM_THREADS'] + ' and ' + found['MKL_NUM_THREADS'])\n"
    )
    monkeypatch.setattr(clean_process, "__file__", str(tmp_path / "__init__.py"))
    torch.set_num_threads(3)
    with pytest.raises(CheckpointError, match="code 1: 3 and 3"):
        reload_all([], "cpu")


@pytest.mark.parametrize(("threads", "expected"), [(4, 2), (64, 3)])
def test_the_reference_is_made_on_a_ranks_threads_of_which_a_core_has_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, threads: int, expected: int
) -> None:
    found: list[int] = []

    def make_reference(*_: Any) -> None:
        found.append(torch.get_num_threads())
        raise CheckpointError("seen")

    for name, value in {
        "latest_checkpoint": tmp_path,
        "verify_manifest": None,
        "read_weights": {},
        "read_prompts": [],
        "family_of": SimpleNamespace(make_reference=make_reference),
    }.items():
        monkeypatch.setattr(exporting, name, lambda *_, value=value: value)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    launch = f"launch={{processes: 2, threads: {threads}, device: cpu}}"
    config = resolve("tiny/flow-grpo-fast", [launch], Path(os.devnull))
    with pytest.raises(CheckpointError, match="seen"):
        exporting.export_run(RunDirectory(tmp_path), config)
    assert found == [expected]
