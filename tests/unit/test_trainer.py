"""The loop on a token policy: it learns, refuses to learn from an outage, and goes on unchanged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from atelier.algorithms.grpo import Grpo
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.errors import CheckpointError, Stopped
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import latest_checkpoint, load_checkpoint
from atelier.training.distributed import World
from atelier.training.engines import make_engine
from atelier.training.journal import Journal
from atelier.training.session import Session, find_checkpoint
from atelier.training.trainer import Trainer
from tests.support.toy_token_policy import Brightness, ToyTokenPolicy

WORLD = World(0, 1, torch.device("cpu"))
PROMPTS = [Prompt(i, 0, f"prompt {i}", {}) for i in range(8)]


def config(**train) -> RunConfig:
    return RunConfig.model_validate(
        {
            "rollout": {"group_size": 8, "micro_batch_size": 8},
            "algorithm": {"clip_range": 0.2, "kl": "k3", **train.pop("algorithm", {})},
            "rewards": train.pop("rewards", {}),
            "train": {
                "steps": 20,
                "prompts_per_step": 4,
                "learning_rate": 0.02,
                "evaluate_every": 10,
                "checkpoint_every": 5,
                **train,
            },
        }
    )


def run_trainer(root: Path, settings: RunConfig, missing_every: int = 0) -> list[dict]:
    run = RunDirectory(root)
    policy = ToyTokenPolicy(settings.train.seed)
    policy.prepare_reference()
    journal = Journal(run, WORLD)
    checkpoint = find_checkpoint(run.checkpoints, "digest", journal)
    if checkpoint is not None:
        policy.module.load_state_dict(dict(checkpoint.weights))
    engine = make_engine(policy.module, policy.trainable(), settings.train, settings.launch, WORLD)
    session = Session(settings, "digest", WORLD)
    if checkpoint is not None:
        engine.load_optimizer_state(checkpoint.optimizer)
        session.restore(checkpoint)
        journal.cut_back(checkpoint.state.metrics_offset, checkpoint.state.events_offset)
    session.start(engine)
    try:
        with RewardSet([Reward(Brightness(missing_every))]) as rewards:
            Trainer(
                settings,
                policy,
                Grpo.of(settings),
                rewards,
                engine,
                session,
                journal,
                WORLD,
                PROMPTS,
                PROMPTS,
            ).run()
    finally:
        journal.close()
    return rows(run)


def rows(run: RunDirectory) -> list[dict]:
    lines = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


def test_a_token_policy_learns(tmp_path: Path) -> None:
    history = run_trainer(tmp_path, config())
    assert [row["step"] for row in history] == list(range(1, 21))
    first, last = history[0]["reward/mean"], history[-1]["reward/mean"]
    assert last > first + 0.2
    images = RunDirectory(tmp_path).periodic_evaluation("ocr", 10) / "images"
    assert len(list(images.glob("*.png"))) == 8


def test_the_reference_holds_the_policy_back(tmp_path: Path) -> None:
    free = run_trainer(tmp_path / "free", config())
    held = run_trainer(tmp_path / "held", config(algorithm={"beta": 2.0}))
    assert held[-1]["kl"] > 0
    assert held[-1]["reward/mean"] < free[-1]["reward/mean"]


def test_missing_scores_leave_the_statistics(tmp_path: Path) -> None:
    settings = config(steps=2, rewards={"min_valid_share": 0.5})
    history = run_trainer(tmp_path, settings, missing_every=4)
    assert history[0]["reward/valid_share"] == 0.75


def test_an_outage_stops_the_run_and_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(Stopped, match=r"min_valid_share.*the toy reward is out"):
        run_trainer(tmp_path, config(steps=2), missing_every=2)
    assert RunDirectory(tmp_path).metrics.read_text() == ""


def test_resumed_in_the_middle_equals_undisturbed(tmp_path: Path) -> None:
    whole = run_trainer(tmp_path / "whole", config())
    run_trainer(tmp_path / "parts", config(steps=7))
    latest = latest_checkpoint(RunDirectory(tmp_path / "parts").checkpoints)
    assert latest is not None
    parts = run_trainer(tmp_path / "parts", config())
    assert parts == whole
    ours, theirs = (
        load_checkpoint(latest_checkpoint(RunDirectory(tmp_path / name).checkpoints))
        for name in ("whole", "parts")
    )
    assert ours.state.updates == theirs.state.updates == 40
    assert all(torch.equal(v, theirs.weights[k]) for k, v in ours.weights.items())
    assert all(torch.equal(v, theirs.ema[k]) for k, v in ours.ema.items())


def test_lines_after_the_checkpoint_are_cut_back(tmp_path: Path) -> None:
    run_trainer(tmp_path, config(steps=5))
    run = RunDirectory(tmp_path)
    with run.metrics.open("a") as file:
        file.write('{"step": 6, "reward/mean": 99}\n{"step": 7, "rew')
    history = run_trainer(tmp_path, config(steps=6))
    assert [row["step"] for row in history] == [1, 2, 3, 4, 5, 6]
    assert history[-1]["reward/mean"] < 1


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path: Path) -> None:
    run_trainer(tmp_path, config(steps=1))
    journal = Journal(RunDirectory(tmp_path), WORLD)
    with pytest.raises(CheckpointError, match="another configuration"):
        find_checkpoint(RunDirectory(tmp_path).checkpoints, "other", journal)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys) -> None:
    run_trainer(tmp_path, config(steps=10))
    run = RunDirectory(tmp_path)
    newest = latest_checkpoint(run.checkpoints)
    (newest / "ema.safetensors").write_bytes(b"gone")
    found = find_checkpoint(run.checkpoints, "digest", Journal(run, WORLD))
    assert found.state.step == 5
    assert "ema.safetensors" in capsys.readouterr().out


def test_accumulation_does_not_change_the_update(tmp_path: Path) -> None:
    """Micro-batches of 8 or 16 add up to the same updates."""
    small = config(steps=3, updates_per_step=1)
    large = RunConfig.model_validate(
        {**small.model_dump(), "rollout": {**small.rollout.model_dump(), "micro_batch_size": 16}}
    )
    run_trainer(tmp_path / "small", small)
    run_trainer(tmp_path / "large", large)
    ours, theirs = (
        load_checkpoint(latest_checkpoint(RunDirectory(tmp_path / name).checkpoints)).weights
        for name in ("small", "large")
    )
    assert all((v - theirs[k]).abs().max() < 1e-5 for k, v in ours.items())


def test_the_only_checkpoint_damaged_is_an_error_and_stays(tmp_path: Path) -> None:
    """Training anew would cut the metrics to nothing and overwrite what may still be mended."""
    run_trainer(tmp_path, config(steps=1))
    run = RunDirectory(tmp_path)
    (latest_checkpoint(run.checkpoints) / "ema.safetensors").write_bytes(b"gone")
    with pytest.raises(CheckpointError, match=r"ema\.safetensors.*no other checkpoint is whole"):
        find_checkpoint(run.checkpoints, "digest", Journal(run, WORLD))
    assert (latest_checkpoint(run.checkpoints) / "ema.safetensors").read_bytes() == b"gone"
