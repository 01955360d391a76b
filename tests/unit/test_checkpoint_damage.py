"""Checkpoints whose manifest no longer tells: refused with the file named, or passed over.

An attacker is not meant: a copy that lost files, a manifest mended by hand, two runs mixed up.
"""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from atelier.config.schema import RunConfig
from atelier.errors import CheckpointError, DataError
from atelier.stages.evaluate import last_checkpoint
from atelier.tracking.run_directory import (
    PRUNED,
    RunDirectory,
    all_checkpoints,
    pruned_checkpoints,
)
from atelier.training.checkpoint import (
    ALWAYS,
    MANIFEST,
    Checkpoint,
    LoopState,
    latest_checkpoint,
    load_checkpoint,
    make_ready,
    prune_checkpoints,
    save_checkpoint,
    verify_manifest,
)
from atelier.training.distributed import World
from atelier.training.engines import MOMENTS, OptimizerState
from atelier.training.journal import Journal
from atelier.training.session import find_checkpoint, kept_copies
from atelier.training.weights import put_weights

BOTH = ("behaviour", "ema")


def write(run: RunDirectory, step: int, copies=BOTH) -> Path:
    weights = {"a": torch.ones(2, 3), "b": torch.ones(3)}
    moments = {name: dict.fromkeys(MOMENTS, value) for name, value in weights.items()}
    checkpoint = Checkpoint(
        LoopState(step, step, "digest", 0, 0),
        weights,
        {name: value / 2 for name, value in weights.items()} if "ema" in copies else None,
        OptimizerState(step, {n: {k: v.clone() for k, v in m.items()} for n, m in moments.items()}),
        {"rank-0": torch.get_rng_state()},
        behaviour=dict(weights) if "behaviour" in copies else None,
    )
    return save_checkpoint(run.checkpoints, checkpoint)


def sign(folder: Path, *without: str) -> None:
    """Write the manifest anew, as if the files were right."""
    files = [p for p in folder.iterdir() if p.name not in (MANIFEST, *without)]
    listed = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    (folder / MANIFEST).write_text(json.dumps(listed))


def found(run: RunDirectory, kept=BOTH, digest: str = "digest"):
    with closing(Journal(run, World(0, 1, torch.device("cpu")))) as journal:
        return find_checkpoint(run.checkpoints, digest, journal, kept)


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


def test_the_newest_has_the_highest_step_and_no_other_name(run: RunDirectory) -> None:
    for step in (999_990, 1_000_000):
        write(run, step)
    (run.checkpoints / "step-2000000.damaged").mkdir()
    assert latest_checkpoint(run.checkpoints) == run.checkpoints / "step-1000000"
    assert last_checkpoint(run) == run.checkpoints / "step-1000000"
    prune_checkpoints(run.checkpoints, 1)
    assert all_checkpoints(run.checkpoints) == [run.checkpoints / "step-1000000"]


def test_what_a_killed_life_of_the_same_number_left_is_in_nobodys_way(run: RunDirectory) -> None:
    left = run.checkpoints / f".step-000001.{os.getpid()}"
    left.mkdir(parents=True)
    (left / "half").write_text("")
    assert not (write(run, 1) / "half").exists()
    assert not left.exists()


def test_an_empty_manifest_is_none(run: RunDirectory) -> None:
    folder = write(run, 1)
    (folder / MANIFEST).write_text("{}")
    with pytest.raises(CheckpointError, match=r"MANIFEST\.json: does not list behaviour.*state"):
        verify_manifest(folder)


def test_its_files_can_be_read_by_whom_the_umask_allows(run: RunDirectory) -> None:
    folder = write(run, 1)
    modes = {path.name: path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert set(modes.values()) == {modes["state.json"]}, modes


@pytest.mark.parametrize("name", [*ALWAYS, "behaviour.safetensors", "ema.safetensors"])
def test_no_file_is_trusted_that_is_not_listed(run: RunDirectory, name: str) -> None:
    folder = write(run, 1)
    sign(folder, name)
    with pytest.raises(CheckpointError, match=f"does not list {name}"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", BOTH)
def test_a_lost_copy_passes_the_checkpoint_over(run: RunDirectory, capsys, name: str) -> None:
    write(run, 3)
    newest = write(run, 4)
    (newest / f"{name}.safetensors").unlink()
    sign(newest)
    assert found(run).state.step == 3
    assert f"step-000004: holds no {name}.safetensors" in capsys.readouterr().out


def test_a_copy_that_the_run_does_not_keep_is_refused(run: RunDirectory) -> None:
    write(run, 1)
    with pytest.raises(CheckpointError, match=r"holds behaviour\.safetensors, .* keeps no such"):
        found(run, kept=("ema",))


def test_another_configuration_is_told_before_its_copies(run: RunDirectory) -> None:
    write(run, 1)
    with pytest.raises(CheckpointError, match="another configuration"):
        found(run, kept=(), digest="other")


def test_a_truncated_file_passes_the_checkpoint_over(run: RunDirectory, capsys) -> None:
    write(run, 3)
    path = write(run, 4) / "behaviour.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    sign(path.parent)
    assert found(run).state.step == 3
    assert "behaviour.safetensors: cannot be read as tensors" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["behaviour", "ema"])
@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"other": torch.ones(1)}, r"only on one side: \['a', 'b', 'other'\]"),
        ({"a": torch.ones(2, 3)}, r"1 tensors for 2 trained ones; .*\['b'\]"),
        ({"a": torch.ones(2, 3), "b": torch.ones(1)}, r"b: of shape \[1\], .* of \[3\]"),
    ],
)
def test_copies_of_another_model_are_refused(run, name: str, tensors, words: str) -> None:
    folder = write(run, 1)
    save_file(tensors, folder / f"{name}.safetensors")
    sign(folder)
    with pytest.raises(CheckpointError, match=rf"{name}\.safetensors: .*{words}"):
        load_checkpoint(folder)


@pytest.mark.parametrize("name", ["exp_avg.other", "exp_avg.a", "junk"])
def test_moments_of_another_model_are_refused(run: RunDirectory, name: str) -> None:
    folder = write(run, 1)
    save_file({name: torch.ones(2, 3)}, folder / "optimizer.safetensors")
    sign(folder)
    with pytest.raises(CheckpointError, match=r"optimizer\.safetensors: .*: not the moments"):
        load_checkpoint(folder)


def damaged_state(folder: Path, change) -> None:
    state = json.loads((folder / "state.json").read_text())
    (folder / "state.json").write_text(json.dumps(change(state)))
    sign(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda state: [], "not the state of a checkpoint: .*expected a JSON object, found a list"),
        (lambda state: state | {"more": 1}, "more: missing, unknown"),
        (lambda state: {}, "digest, events_offset, metrics_offset, .*step, updates: missing"),
        (lambda state: state | {"step": "4"}, "step: missing, unknown or of a wrong type"),
        (lambda state: state | {"loss_scaler": 1}, "loss_scaler: missing"),
    ],
)
def test_a_state_that_is_none_is_refused(run: RunDirectory, change, words: str) -> None:
    folder = write(run, 1)
    damaged_state(folder, change)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_checkpoint(folder)
    assert "state.json" in str(caught.value)


def test_what_is_whole_is_read(run: RunDirectory) -> None:
    write(run, 1, copies=())
    checkpoint = found(run, kept=())
    assert (checkpoint.ema, checkpoint.behaviour) == (None, None)
    assert checkpoint.optimizer.moments.keys() == {"a", "b"}


def test_a_weight_of_another_shape_is_not_spread() -> None:
    weight = torch.zeros(3)
    with pytest.raises(CheckpointError, match=r"a has shape \[1\], the policy's \[3\]"):
        put_weights({"a": weight}, {"a": torch.ones(1)})
    assert not weight.any()


def test_the_copies_a_run_keeps() -> None:
    nft = {"name": "nft", "kl": "velocity", "clip_range": None}
    sampled = {"dynamics": "ode", "solver": "dpm_solver"}
    slow = RunConfig.model_validate({"algorithm": nft, "rollout": sampled})
    plain = RunConfig.model_validate({"train": {"ema": {"enabled": False}}})
    assert kept_copies(slow) == {"behaviour", "ema"}
    assert kept_copies(plain) == set()


@pytest.mark.parametrize("text", ["{}", '{"checkpoints": 5, "on": "x"}', '{"checkpoints": []}'])
def test_a_note_of_pruned_checkpoints_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / PRUNED).write_text(text)
    with pytest.raises(DataError, match=r"pruned\.json: not a note .* or remove it"):
        pruned_checkpoints(tmp_path)


def test_what_a_killed_life_left_half_written_goes_before_the_next(tmp_path: Path) -> None:
    whole, left, other = (tmp_path / name for name in ("step-000001", ".step-000002.77", ".other"))
    for one in (whole, left, other):
        one.mkdir()
        (one / "weights").touch()
    make_ready(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"step-000001", ".other"}
