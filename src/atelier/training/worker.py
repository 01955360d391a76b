"""One rank of a training run: put the parts together, take up the newest checkpoint, train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from atelier.algorithms.base import Algorithm
from atelier.algorithms.registry import make_algorithm
from atelier.config.digest import digest, stage_digest
from atelier.config.plan import plan
from atelier.config.resolve import load_stage_config
from atelier.config.schema import RunConfig
from atelier.data.prompts import PromptSet, content_digest, read_prompts
from atelier.disk import stopped_when_full
from atelier.errors import ConfigError, PlanError
from atelier.judge import usage as judge_usage
from atelier.outage import leave_to_another_rank
from atelier.policies.base import LearnsFromPictures, Policy
from atelier.policies.registry import load_policy
from atelier.processes.locks import hold
from atelier.rewards.registry import build
from atelier.rewards.reward_set import RewardSet
from atelier.rewards.scorers.judges import Tracing
from atelier.rewards.service_file import read_urls
from atelier.rewards.unit_range import require_unit_range
from atelier.tracking.run_directory import RunDirectory, write_json
from atelier.training.batches import step_samples
from atelier.training.checkpoint import Checkpoint, make_ready
from atelier.training.distributed import World, join_world
from atelier.training.engines import Engine, make_engine
from atelier.training.experience import Collector
from atelier.training.journal import Journal
from atelier.training.judge_traces import JudgeTraces
from atelier.training.link import Apart, Link
from atelier.training.repeatable import repeatable
from atelier.training.session import Session, kept_copies
from atelier.training.shared_checkpoint import shared_checkpoint
from atelier.training.sides import Sides, take_sides
from atelier.training.supervision import Supervision
from atelier.training.trainer import Around, Trainer
from atelier.training.updates import Learner
from atelier.training.weight_sync import Sync, nothing_to_bring, weight_sync
from atelier.training.weights import put_weights

LONGEST_STEP = 86400.0  # seconds


def train(config_path: Path, run: RunDirectory, around: Around = nullcontext) -> None:
    """Train the run of a resolved configuration file in its run directory.

    Reads run.data (train.parquet, heldout.parquet, sft.parquet), writes run.train. Resumes by
    itself.

    Args:
        around: what each step is done inside of.
    """
    config = load_stage_config(config_path)
    with (
        stopped_when_full(run.train),
        repeatable(config.launch),
        join_world(config.launch, _patience(config)) as world,
        written_by_one(run, world),
    ):
        plan(config, world_size=world.size)
        sides = take_sides(world, config.launch, _patience(config))
        if not sides.asks_first:
            leave_to_another_rank()
        with sides.everyone.failing_together():
            if sides.trains and sides.peers.is_main:  # who writes them
                make_ready(run.checkpoints)
        _train(config, run, sides, around)


def _train(config: RunConfig, run: RunDirectory, sides: Sides, around: Around) -> None:
    world, peers = sides.everyone, sides.peers
    train_prompts = read_prompts(run.data / "train.parquet")
    heldout_prompts = read_prompts(run.data / "heldout.parquet")
    step_samples(train_prompts, 1, config, config.train.resample_rounds)  # refuses too few
    pictures = read_prompts(run.data / "sft.parquet") if config.train.sft.enabled else None
    contents = [content_digest(one) for one in (train_prompts, pictures) if one is not None]
    identity = digest([stage_digest(config, "train"), *contents])
    texts = [one.text for one in (*train_prompts, *heldout_prompts, *(pictures or ()))]
    with (
        closing(load_policy(config, world.device, world.rank, texts)) as policy,
        closing(Journal(run, world)) as journal,
        closing(Session(config, identity, peers)) as session,
    ):
        algorithm = make_algorithm(config)
        if algorithm.needs_reference and config.algorithm.kl not in policy.kl_forms:
            raise PlanError(f"algorithm.kl: {config.algorithm.kl} is not defined for this policy")
        supervision = None if pictures is None else _supervision(config, pictures, policy, peers)
        kept = kept_copies(config)
        checkpoint = shared_checkpoint(run.checkpoints, identity, journal, kept, world)
        learner = None
        if sides.trains:
            engine = _start(config, policy, algorithm, session, checkpoint, peers)
            learner = Learner(
                config, policy, algorithm, engine, session, journal, peers, supervision
            )
        _say_where_it_begins(config, session, journal, checkpoint, world)
        with (
            judge_tracing(config, run, peers) as tracing,
            build(
                config.rewards,
                config.judges,
                read_urls(run.train),
                tracing,
                run.train / judge_usage.NAME,
            ) as rewards,
            _syncing(config, run, learner, peers) as sync,
        ):
            _prove(config, run, rewards, train_prompts, sides)
            sampling = (
                partial(session.behaviour_weights, learner.engine) if learner else nullcontext
            )
            made = config, policy, rewards, peers, train_prompts, sampling, sync
            with closing(Collector(*made)) as collector:
                link = Apart(sides, collector, sampling) if sides.apart else Link()
                parts = collector, learner, session, journal, world, heldout_prompts
                Trainer(config, *parts, around, link).run()


def _say_where_it_begins(
    config: RunConfig,
    session: Session,
    journal: Journal,
    checkpoint: Checkpoint | None,
    world: World,
) -> None:
    if checkpoint is not None:
        session.step = checkpoint.state.step
        journal.go_on_from(checkpoint.state)
        journal.event("resumed", session.step)
        journal.say(f"resumed after step {session.step}")
    else:
        torch.manual_seed(config.train.seed)
        journal.cut_back(0, 0)
        journal.event("started", 0, ranks=world.size, device=world.device.type)


def _prove(
    config: RunConfig,
    run: RunDirectory,
    rewards: RewardSet,
    train_prompts: PromptSet,
    sides: Sides,
) -> None:
    """Ask every reward for what it is known to say, before any image is made; write down who
    scores."""
    if config.rollout.kind == "introspect":
        require_unit_range(rewards, config.rewards.custom)
    rewards.require_mixes(one.metadata for one in train_prompts)
    with sides.everyone.failing_together():
        proven = rewards.preflight() if sides.samples else {}
    if sides.asks_first:
        write_json(run.train / "rewards.json", _scorers(proven, rewards.weights))


def _start(
    config: RunConfig,
    policy: Policy,
    algorithm: Algorithm,
    session: Session,
    checkpoint: Checkpoint | None,
    world: World,
) -> Engine:
    """What trains, from where the checkpoint left it."""
    if algorithm.needs_reference:
        policy.prepare_reference()
    if checkpoint is not None:
        put_weights(policy.trainable(), checkpoint.weights)
    engine = make_engine(
        policy.module,
        policy.trainable(),
        config.train,
        config.launch,
        world,
        config.policy.dtype,
    )
    if checkpoint is not None:
        engine.load_optimizer_state(checkpoint.optimizer)
        session.restore(checkpoint)
    session.start(engine, algorithm.keeps_behaviour)
    return engine


def _syncing(
    config: RunConfig, run: RunDirectory, learner: Learner | None, world: World
) -> AbstractContextManager[Sync]:
    """What brings weights to servers; ranks that only sample have none."""
    if learner is None:
        return nullcontext(nothing_to_bring)
    return weight_sync(config, run, learner.policy, learner.engine, world)


def _supervision(
    config: RunConfig, pictures: PromptSet, policy: Policy, world: World
) -> Supervision:
    """Raises PlanError where the policy cannot learn from pictures, or there are too few."""
    if not isinstance(policy, LearnsFromPictures):
        raise PlanError("train.sft.coefficient: this policy does not learn from pictures; use 0")
    supervision = Supervision(config, pictures, policy, world)
    supervision.batches(config.train.sft.every, 0)  # refuses too few
    return supervision


def _patience(config: RunConfig) -> float:
    """Seconds for which a rank may wait for scores, for completions, or for what the other side
    does with a whole step."""
    completions = config.sampler.deadline if config.sampler else 0.0
    others = LONGEST_STEP if config.launch.rollout_processes else 0.0
    return config.rewards.deadline + completions + others


@contextmanager
def judge_tracing(config: RunConfig, run: RunDirectory, world: World) -> Iterator[Tracing | None]:
    """Where a share of the main rank's questions to judges is written; None where none is."""
    share = config.tracking.judge_traces
    if not (share and config.judges and world.is_main):
        yield None
        return
    with closing(JudgeTraces(run)) as traces:
        yield Tracing(traces.add, share)


def _scorers(
    proven: Mapping[str, Mapping[str, Any]], weights: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """What scores this run, for whoever asks later why numbers differ."""
    kept = ("version", "direction", "expected", "scores")
    return {
        name: {"weight": weights[name], **{key: one[key] for key in kept}}
        for name, one in proven.items()
    }


@contextmanager
def written_by_one(run: RunDirectory, world: World) -> Iterator[None]:
    """Hold the run's lock: two trainers in one directory would destroy each other's files.

    The kernel drops the lock with its holder, so a killed trainer leaves none behind.
    """
    if not world.is_main:
        yield
        return
    with hold(run.train / "lock") as other:
        if other is not None:
            raise ConfigError(
                f"{run.train} is being written by process {other}; wait for it or choose another "
                "run directory"
            )
        yield
