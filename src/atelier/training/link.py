"""What goes from the ranks that sample to those that train, and back.

Where every rank does both, nothing does. Where they are apart (launch.rollout_processes), the two
sides meet at the same places of the one loop:

    weights    before a rollout, and before evaluation images, the first rank that trains sends the
               trained tensors to the ranks that sample
    rollouts   once a step is scored, each of its micro-batches goes to the rank that learns from
               it, as what `Policy.pack` keeps of it; the scores go to all

Which rank samples a micro-batch and which learns from it follows from the step's plan. A rank that
comes first waits for the others: how long is a metric of its side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace

import torch
import torch.distributed as dist

from atelier.errors import Stopped
from atelier.training.batches import MicroBatch, micro_batches_by_update, step_samples
from atelier.training.exchange import exchange
from atelier.training.experience import Collector, Experience, InFlight
from atelier.training.measures import Stopwatch, peak_memory
from atelier.training.sides import Sides

WAIT_FOR_ROLLOUT, WAIT_FOR_UPDATE = "wait_for_rollout", "wait_for_update"
OF_THE_OTHERS = frozenset({"time/step", "time/hand_over", "time/push"})  # who train say these
SAMPLING_PEAK = "memory/sampling_peak_gib"


class Link:
    """Of a rank that samples what it learns from: nothing goes anywhere."""

    hands_over = False
    """Whether a step is collected before the next one is sampled, because others wait for it."""
    samples = True

    def watch(self) -> Stopwatch:
        """For the phases of the loop's next turn."""
        return Stopwatch()

    def meet(self, watch: Stopwatch) -> None:
        """Wait for the other side.

        Raises:
            Stopped: that is why it goes on no more.
        """

    def stopping_together(self) -> AbstractContextManager[None]:
        """Inside, what stops all ranks of this side stops the other one."""
        return nullcontext()

    def push_sampling_weights(self, watch: Stopwatch) -> None:
        """Bring the weights that sample to where images are sampled. Collective."""

    def push_weights(self, watch: Stopwatch) -> None:
        """The same of those that forward passes compute with now. Collective."""

    def told(self, ahead: Experience | None) -> Experience | None:
        """The images sampled ahead that the ranks that train have from a checkpoint: their own, and
        elsewhere what is known of them. Collective."""
        return ahead

    def hand_over(self, flight: InFlight, made: Experience | None, watch: Stopwatch) -> Experience:
        """A step's experience, where it was made and where it is learned from. Collective.

        Args:
            made: by this rank, where it samples.
        """
        assert made is not None  # every rank samples
        return made


@dataclass
class Apart(Link):
    """Of a rank that only samples, or only trains.

    Attributes:
        collector: of this rank; `world` of it are its peers.
        sampling: a context in which the policy has the weights that sample, where this rank trains.
    """

    sides: Sides
    collector: Collector
    sampling: Callable[[], AbstractContextManager[None]] = nullcontext
    _own: Stopwatch = field(init=False, default_factory=Stopwatch)  # since it handed over last

    hands_over = True

    def __post_init__(self) -> None:
        self.samples = self.sides.samples

    def watch(self) -> Stopwatch:
        return self._own if self.samples else Stopwatch()

    def meet(self, watch: Stopwatch) -> None:
        with watch(WAIT_FOR_UPDATE if self.samples else WAIT_FOR_ROLLOUT):
            self.sides.everyone.raise_together(None)

    @contextmanager
    def stopping_together(self) -> Iterator[None]:
        try:
            yield
        except Stopped as reason:
            self.sides.everyone.raise_together(reason)  # where the other side meets this one next

    def push_sampling_weights(self, watch: Stopwatch) -> None:
        with self.sampling():
            self.push_weights(watch)

    def push_weights(self, watch: Stopwatch) -> None:
        self.meet(watch)
        group, source = self.sides.weights, self.sides.training[0]
        if not self.samples and self.sides.everyone.rank != source:
            return
        with watch("push"), torch.no_grad():
            for parameter in self.collector.policy.trainable().values():
                sent = torch.empty_like(parameter) if self.samples else parameter.detach()
                dist.broadcast(sent, source, group=group)
                if self.samples:
                    parameter.copy_(sent)

    def told(self, ahead: Experience | None) -> Experience | None:
        known = None if ahead is None else without_rollouts(ahead)
        theirs: Experience | None = self.sides.everyone.gather(known)[0]
        return theirs if self.samples else ahead

    def hand_over(self, flight: InFlight, made: Experience | None, watch: Stopwatch) -> Experience:
        self.meet(watch)
        with watch("hand_over"):
            known = self._known(made)
            policy = self.collector.policy
            drawn = [one for update in flight.rollouts for one in update]
            packets = {one.samples[0].index: policy.pack(one) for one in drawn}
            arrived = exchange(self.sides.everyone, packets, self._learners(flight.step))
            if made is not None:
                return made
            updates = self._micro_batches(flight.step, self.collector.world.rank)
            mine = [[policy.unpack(one, arrived[one[0].index]) for one in each] for each in updates]
        return replace(known, rollouts=mine, updates_before=flight.updates_before)

    def _known(self, made: Experience | None) -> Experience:
        """What all ranks are told of a step: its scores, and what its side has spent on it."""
        known = None
        if made is not None:
            seconds = self._own.seconds()
            self._own.restart()
            spent = {name: one for name, one in seconds.items() if name not in OF_THE_OTHERS}
            spent |= peak_memory(self.collector.world, SAMPLING_PEAK)
            known = replace(without_rollouts(made), metrics={**made.metrics, **spent})
        everyone = self.sides.everyone.gather(known)
        told: Experience = next(one for one in everyone if one is not None)
        return told

    def _learners(self, step: int) -> dict[int, int]:
        """By a micro-batch's first sample, the rank that learns from it."""
        return {
            batch[0].index: rank
            for rank in self.sides.training
            for update in self._micro_batches(step, rank)
            for batch in update
        }

    def _micro_batches(self, step: int, rank: int) -> Sequence[Sequence[MicroBatch]]:
        """Those that a rank learns from."""
        config = self.collector.config
        samples = step_samples(self.collector.prompts, step, config)
        return micro_batches_by_update(samples, step, config, rank, len(self.sides.training))


def without_rollouts(experience: Experience) -> Experience:
    """What is known of it where nothing is learned from it."""
    return replace(experience, rollouts=[], said={})
