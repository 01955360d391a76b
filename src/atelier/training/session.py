"""What a checkpoint saves of a run in progress, and how a new process takes it up again."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from atelier.config.memory.parts import copies_beside_trained
from atelier.config.schema import RunConfig
from atelier.disk import stopped_when_full
from atelier.errors import CheckpointError
from atelier.policies.base import Policy
from atelier.tracking.run_directory import pruned_checkpoints
from atelier.training.checkpoint import (
    Checkpoint,
    LoopState,
    all_checkpoints,
    check_reload,
    load_checkpoint,
    prune_checkpoints,
    require_copies,
    save_checkpoint,
)
from atelier.training.distributed import World
from atelier.training.ema import Ema, move
from atelier.training.engines import Engine
from atelier.training.experience import Collector, Experience
from atelier.training.in_flight import read_experience, write_experience
from atelier.training.journal import Journal
from atelier.training.saving import Saving
from atelier.training.weights import CPU, copies

if TYPE_CHECKING:
    from pathlib import Path


class Session:
    """Steps and updates done, the moving average, and the weights that sample images where they
    are not the trained ones. The engine owns the trained weights and the optimizer."""

    def __init__(self, config: RunConfig, digest: str, world: World) -> None:
        self._config = config
        self._digest = digest
        self._world = world
        self._first_step: int | None = None
        self.step = 0
        self.updates = 0
        self.ema: Ema | None = None
        self.samples_with_trained = True
        self._behaviour: dict[str, Tensor] | None = None
        # An adapter's copies are small, and cost a device nothing; a whole model's have no room.
        self._beside = copies_beside_trained(config)
        self._place = world.device if self._beside else CPU
        self._restored_from: Path | None = None
        self._fresh: nn.Module | None = None
        self.saving = Saving()

    def start(self, engine: Engine, keeps_behaviour: bool = False) -> None:
        """Begin the averages at the weights the engine starts from.

        Args:
            keeps_behaviour: whether images are sampled by a slow copy of the trained weights.
        """
        if keeps_behaviour and self._behaviour is None:
            self._behaviour = engine.weights(self._place)
        if self._config.train.ema.enabled and self.ema is None:
            self.ema = self._average_from(engine.weights(self._place))

    def restore(self, checkpoint: Checkpoint) -> None:
        """Take up the counters, the average and the random state of a checkpoint."""
        self.step, self.updates = checkpoint.state.step, checkpoint.state.updates
        self._restored_from = checkpoint.in_flight
        if checkpoint.ema is not None:
            self.ema = self._average_from(copies(checkpoint.ema, self._place))
        if checkpoint.behaviour is not None:
            self._behaviour = copies(checkpoint.behaviour, self._place)
            self.samples_with_trained = all(
                torch.equal(value, checkpoint.weights[name])
                for name, value in checkpoint.behaviour.items()
            )
        state = checkpoint.rng.get(f"rank-{self._world.rank}")
        if state is not None:
            torch.set_rng_state(state)

    def _average_from(self, weights: Mapping[str, Tensor]) -> Ema:
        on_gpu = self._world.device.type == "cuda"
        return Ema(self._config.train.ema, weights, in_background=on_gpu and not self._beside)

    def take_experience(self, collector: Collector) -> Experience | None:
        """Images that were sampled ahead of the checkpoint this session was restored from."""
        folder, self._restored_from = self._restored_from, None
        return None if folder is None else read_experience(folder, collector)

    def first_step_of_this_life(self, step: int) -> bool:
        """Whether this process has trained no step before `step`."""
        if self._first_step is None:
            self._first_step = step
        return self._first_step == step

    def after_update(self, engine: Engine) -> None:
        """Count an optimizer update, and average when it is due."""
        if self.ema is not None and self.ema.due(self.updates):
            with engine.trained() as trained:
                self.ema.update(self.updates, trained)
        self.updates += 1

    def move_behaviour(self, engine: Engine, decay: float) -> None:
        """Let the weights that sample follow the trained ones; `decay` of them stays. Collective.

        Nothing, where images are sampled by the trained weights.
        """
        if self._behaviour is None:
            return
        move(self._behaviour, engine.weights(self._place), decay)
        self.samples_with_trained = decay == 0

    def averaged_weights(self, engine: Engine) -> AbstractContextManager[None]:
        """Inside, forward passes compute with the moving average."""
        return nullcontext() if self.ema is None else self._in_place(engine, self.ema.weights)

    def behaviour_weights(self, engine: Engine) -> AbstractContextManager[None]:
        """Inside, forward passes compute with the weights that sample images."""
        if self._behaviour is None or self.samples_with_trained:
            return nullcontext()
        return self._in_place(engine, self._behaviour)

    @contextmanager
    def _in_place(self, engine: Engine, weights: Mapping[str, Tensor]) -> Iterator[None]:
        trained = engine.weights(self._place)
        engine.put_weights(weights)
        yield
        # Not after an error: putting weights is collective, and other ranks would not take part.
        engine.put_weights(trained)

    def close(self) -> None:
        """End the threads of what is kept beside training. `saving` ends its own."""
        if self.ema is not None:
            self.ema.close()

    def check_saving(self) -> None:
        """Collective: raise on every rank what stopped a write, if it has ended."""
        with self._world.failing_together():
            self.saving.check()

    def wait_for_saving(self) -> None:
        """Collective: until all is written; raise on every rank what stopped it, once."""
        with self._world.failing_together():
            self.saving.wait()

    def save(
        self, engine: Engine, policy: Policy, ahead: Experience | None, journal: Journal
    ) -> None:
        """Collective: copy what a checkpoint holds, and begin to write it: see `saving`.

        Args:
            ahead: the next step's images, where they are sampled already.

        Raises:
            CheckpointError, Stopped: the checkpoint before this one could not be written.
        """
        self.wait_for_saving()
        # For one rank: those of a large model would fill the main memory of eight.
        writes = self._world.is_main
        weights, optimizer = engine.weights(wanted=writes), engine.optimizer_state(writes)
        rng = self._world.gather(torch.get_rng_state())
        folder = journal.run.checkpoints
        in_flight = None if ahead is None else self._write_ahead(folder, ahead, policy)
        if not writes:
            return
        metrics_offset, events_offset = journal.offsets()
        state = LoopState(self.step, self.updates, self._digest, metrics_offset, events_offset)
        ema = copies(self.ema.weights) if self.ema else None
        behaviour = copies(self._behaviour) if self._behaviour else None
        states = {f"rank-{rank}": value for rank, value in enumerate(rng)}
        checkpoint = Checkpoint(state, weights, ema, optimizer, states, in_flight, behaviour)
        if self._fresh is None:
            self._fresh = policy.fresh_module()
        self.saving.begin(partial(self._write, checkpoint, self._fresh, journal))

    def _write(self, checkpoint: Checkpoint, fresh: nn.Module, journal: Journal) -> None:
        """Write it, and prove that it loads into a fresh module; then it is announced, and older
        ones may go."""
        folder = journal.run.checkpoints
        saved = save_checkpoint(folder, checkpoint)
        try:
            check_reload(saved, fresh, checkpoint.weights)
        except CheckpointError:
            shutil.rmtree(saved)  # a resumed run would take it up
            raise
        fresh.to("meta")  # without values again
        journal.saved(checkpoint.state.step)
        prune_checkpoints(folder, self._config.train.keep_checkpoints)

    def _write_ahead(self, folder: Path, ahead: Experience, policy: Policy) -> Path:
        aside = folder / ".in-flight"
        if self._world.is_main:
            shutil.rmtree(aside, ignore_errors=True)  # of a life that ended here
        self._world.barrier()
        with stopped_when_full(folder, "the images sampled ahead of a checkpoint"):
            write_experience(aside, ahead, policy, self._world.rank)
        self._world.barrier()
        return aside


def kept_copies(config: RunConfig) -> frozenset[str]:
    """Which copies of the trained weights a run keeps, and so its checkpoints hold."""
    kept = {"ema": config.train.ema.enabled, "behaviour": config.algorithm.keeps_behaviour}
    return frozenset(name for name, is_kept in kept.items() if is_kept)


def find_checkpoint(
    folder: Path, digest: str, journal: Journal, kept: Collection[str]
) -> Checkpoint | None:
    """The newest whole checkpoint of this very configuration, or None where there is none.

    A damaged one is passed over with a word, unless there is no other: training anew would
    overwrite what may still be mended. One of another configuration is an error, because going on
    from it would mix two runs.

    Args:
        kept: `kept_copies` of the configuration.
    """
    damage: CheckpointError | None = None
    for candidate in reversed(all_checkpoints(folder)):
        try:
            checkpoint = load_checkpoint(candidate)
            if checkpoint.state.digest == digest:
                require_copies(candidate, checkpoint, kept)
        except CheckpointError as error:
            journal.say(f"passing over a damaged checkpoint: {error}")
            damage = error
            continue
        if checkpoint.state.digest != digest:
            raise CheckpointError(
                f"{candidate} was written by another configuration or on other data; move "
                f"{folder.parent} aside or choose another run directory"
            )
        return checkpoint
    if damage is not None:
        raise CheckpointError(
            f"{damage}; no other checkpoint is whole: put it back, or move {folder.parent} aside "
            "to train anew"
        )
    if pruned := pruned_checkpoints(folder):
        raise CheckpointError(
            f"{folder}: nothing to go on from: {pruned}, and none is left; put one back, or move "
            f"{folder.parent} aside to train anew"
        )
    return None
