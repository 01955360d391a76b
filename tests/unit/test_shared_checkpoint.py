"""Ranks go on from one checkpoint, also where they see different folders."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from atelier.errors import CheckpointError
from atelier.tracking.run_directory import PRUNED, RunDirectory
from atelier.training import shared_checkpoint as module
from atelier.training.checkpoint import Checkpoint, LoopState, save_checkpoint
from atelier.training.distributed import World
from atelier.training.engines import OptimizerState
from atelier.training.journal import Journal
from atelier.training.shared_checkpoint import shared_checkpoint


@dataclass
class Exchange:
    """What ranks tell each other, each of them a thread."""

    barrier: threading.Barrier = field(default_factory=lambda: threading.Barrier(2, timeout=20))
    values: list[Any] = field(default_factory=lambda: [None, None])


@dataclass(frozen=True)
class ThreadWorld(World):
    exchange: Exchange = field(default_factory=Exchange)

    def gather(self, value: Any) -> list[Any]:
        self.exchange.values[self.rank] = value
        self.exchange.barrier.wait()
        values = list(self.exchange.values)
        self.exchange.barrier.wait()
        return values


def save(folder: Path, step: int, digest: str = "d", value: float = 0.0) -> None:
    weights = {"w": torch.full((2,), value)}
    moments = {"w": {kind: torch.zeros(2) for kind in ("exp_avg", "exp_avg_sq")}}
    rng = {f"rank-{rank}": torch.get_rng_state() for rank in (0, 1)}
    state = LoopState(step, step, digest, 0, 0)
    save_checkpoint(folder, Checkpoint(state, weights, None, OptimizerState(step, moments), rng))


def found_by_ranks(
    folders: Sequence[Path], digests: Sequence[str] = ("d", "d")
) -> list[Checkpoint | CheckpointError | None]:
    """What each of two ranks finds, each with its own view of the run's folder."""
    exchange = Exchange()

    def find(rank: int) -> Checkpoint | CheckpointError | None:
        world = ThreadWorld(rank, 2, torch.device("cpu"), exchange)
        run = RunDirectory(folders[rank])
        with closing(Journal(run, world)) as journal:
            try:
                return shared_checkpoint(run.checkpoints, digests[rank], journal, (), world)
            except CheckpointError as error:
                return error

    with ThreadPoolExecutor(2) as ranks:
        return list(ranks.map(find, (0, 1)))


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEEN_SECONDS", 0.0)
    monkeypatch.setattr(module, "AGAIN_SECONDS", 0.05)
    monkeypatch.setattr(module.socket, "gethostname", lambda: "node-7")


def two_views(folder: Path) -> list[Path]:
    return [folder / "one", folder / "two"]


def test_the_main_rank_chooses_for_all(tmp_path: Path) -> None:
    """The other one sees a newer checkpoint, too."""
    one, two = views = two_views(tmp_path)
    save(one / "train/checkpoints", 1)
    shutil.copytree(one, two)
    save(two / "train/checkpoints", 2)
    found = found_by_ranks(views)
    assert [item.state.step for item in found if isinstance(item, Checkpoint)] == [1, 1]


def test_all_begin_anew_where_the_main_rank_sees_none(tmp_path: Path) -> None:
    views = two_views(tmp_path)
    save(views[1] / "train/checkpoints", 2)
    assert found_by_ranks(views) == [None, None]


def test_a_damaged_note_of_what_was_pruned_is_an_error_on_all(tmp_path: Path) -> None:
    views = two_views(tmp_path)
    (views[0] / "train/checkpoints").mkdir(parents=True)
    (views[0] / "train/checkpoints" / PRUNED).write_text("{}")
    for error in found_by_ranks(views):
        assert isinstance(error, CheckpointError)
        assert "not a note of pruned checkpoints" in str(error)


@pytest.mark.parametrize("there", ["nothing", "another of that step"])
def test_a_rank_that_cannot_read_it_is_an_error_on_all_with_host_and_path(
    tmp_path: Path, there: str
) -> None:
    views = two_views(tmp_path)
    save(views[0] / "train/checkpoints", 1)
    if there != "nothing":
        save(views[1] / "train/checkpoints", 1, value=1.0)
    for error in found_by_ranks(views):
        assert isinstance(error, CheckpointError)
        assert "rank 1 on node-7 cannot read" in str(error)
        assert str(views[1] / "train/checkpoints/step-000001") in str(error)


def test_a_file_that_is_seen_later_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SEEN_SECONDS", 20.0)
    views = two_views(tmp_path)
    save(views[0] / "train/checkpoints", 1)
    timer = threading.Timer(0.2, shutil.copytree, (views[0], views[1]), {"dirs_exist_ok": True})
    timer.start()
    assert all(isinstance(item, Checkpoint) for item in found_by_ranks(views))
    timer.join()


def test_what_the_main_rank_refuses_is_every_ranks_error(tmp_path: Path) -> None:
    views = two_views(tmp_path)
    save(views[0] / "train/checkpoints", 1, digest="another")
    first, second = found_by_ranks(views)
    assert isinstance(first, CheckpointError)
    assert "written by another configuration" in str(first)
    assert str(first) == str(second)


def test_a_manifest_that_goes_while_the_main_rank_chooses_is_every_ranks_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No rank is left waiting for a choice that never comes."""
    run, find = tmp_path / "run", module.find_checkpoint
    save(RunDirectory(run).checkpoints, 1)

    def found_and_gone(folder: Path, *rest: Any) -> Checkpoint | None:
        found = find(folder, *rest)
        (folder / "step-000001" / module.MANIFEST).unlink()
        return found

    monkeypatch.setattr(module, "find_checkpoint", found_and_gone)
    for error in found_by_ranks([run, run]):
        assert isinstance(error, CheckpointError)
        assert "MANIFEST.json: No such file" in str(error)


def test_a_rank_with_other_prompts_is_an_error_on_all(tmp_path: Path) -> None:
    for error in found_by_ranks(two_views(tmp_path), ("d", "e")):
        assert "rank 1 on node-7 has another configuration" in str(error)
