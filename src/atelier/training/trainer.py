"""The one loop: roll out, score, compare within groups, replay with gradients, step, save.

It knows no diffusion: a Policy supplies rollout and replay, an algorithm advantages and loss, a
reward set the scores, an engine the arithmetic between ranks. Every draw is keyed by the run's
seed, the step and the global sample id, so the loop has no random state of its own.

One step off (train.one_step_off), the next step's images are sampled before this step's update, and
scored during it: the policy that learns from them is one step ahead of the one that made them, and
what was stored when they were sampled corrects for it.

Some ranks may only sample, and the others only train (launch.rollout_processes): all go through
this loop, each does its part, and the link between them brings over the rest (link.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from atelier.algorithms.comparison import Comparison
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.evaluation.files import write_images
from atelier.evaluation.requests import ImageRequest, evaluated, image_requests
from atelier.policies.base import Generated, Sample
from atelier.training.batches import step_samples
from atelier.training.distributed import World
from atelier.training.experience import Collector, Experience, InFlight
from atelier.training.journal import Journal
from atelier.training.link import Link, without_rollouts
from atelier.training.measures import Stopwatch, peak_memory
from atelier.training.samples import keep_samples, keeps_samples
from atelier.training.scores import comparison_metrics, truth_metrics
from atelier.training.session import Session
from atelier.training.updates import Learner

WRITERS = 2  # threads that make PNGs of images while others are painted

Around = Callable[[Stopwatch], AbstractContextManager[object]]
"""What each step is done inside of, by its stopwatch: somebody who looks on, say a profiler."""


@dataclass
class Trainer:
    """A run in progress. `session` carries what a checkpoint saves; `journal` what people read.

    Attributes:
        collector: of this rank; where it only trains, it samples nothing.
        learner: None on a rank that only samples.
        world: all ranks.
    """

    config: RunConfig
    collector: Collector
    learner: Learner | None
    session: Session
    journal: Journal
    world: World
    heldout_prompts: Sequence[Prompt]
    around: Around = nullcontext
    link: Link = field(default_factory=Link)

    def run(self) -> None:
        """Train from where the session stands to the last step, and leave all of it written."""
        with self.session.saving:
            self._run()
            self.link.meet(self.link.watch())
            self.session.wait_for_saving()
            self.world.barrier()  # ranks end together
            self.journal.event("finished", self.config.train.steps)

    def _run(self) -> None:
        train = self.config.train
        ahead: InFlight | Experience | None
        ahead = self.link.told(self.session.take_experience(self.collector))
        if ahead is None and self._should_hold_images_ahead(self.session.step):
            self.journal.say(
                f"the checkpoint of step {self.session.step} holds no images sampled ahead: step "
                f"{self.session.step + 1} is sampled now, by newer weights than without the pause"
            )
        for step in range(self.session.step + 1, train.steps + 1):
            watch = self.link.watch()
            with self.around(watch):
                ahead, metrics = self._train_step(step, ahead, watch)
            self.session.step = step
            if self.learner is not None:
                used = {**watch.seconds(), **peak_memory(self.collector.world)}
                self.journal.step(step, train.steps, {**metrics, **used})
            if train.evaluate_every and step % train.evaluate_every == 0:
                self._write_evaluation_images(step, watch)
            if self._saves_after(step):
                if isinstance(ahead, InFlight):  # its scores are saved with it
                    ahead = self._collect(ahead, watch)
                self._save(ahead)
            self.session.check_saving()

    def _save(self, ahead: Experience | None) -> None:
        if self.learner is not None:
            self.session.save(self.learner.engine, self.learner.policy, ahead, self.journal)

    def _train_step(
        self, step: int, flight: InFlight | Experience | None, watch: Stopwatch
    ) -> tuple[InFlight | Experience | None, dict[str, float]]:
        """Learn from a step's images, sampled ahead or now.

        Returns:
            The next step's images, where they are sampled ahead, and metrics, where it is trained.
        """
        if flight is None:
            flight = self._roll_out(step, watch)
        if self.link.hands_over and isinstance(flight, InFlight):
            flight = self._collect(flight, watch)
        ahead = None
        if self._samples_ahead(step):
            ahead = self._roll_out(step + 1, watch)
        if isinstance(flight, InFlight):
            flight = self._collect(flight, watch)
        if self.learner is None:
            return ahead, {}
        scores = flight.scores
        with watch("update"), self.link.stopping_together():
            metrics = self.learner.learn(flight)
        compared = comparison_metrics(scores, Comparison.of(self.config))
        if self.config.algorithm.ground_truth.enabled:
            compared |= truth_metrics(scores, self._samples(step))
        return ahead, {**flight.metrics, **scores.summary(), **compared, **metrics}

    def _samples(self, step: int) -> list[Sample]:
        return step_samples(self.collector.prompts, step, self.config)

    def _roll_out(self, step: int, watch: Stopwatch) -> InFlight:
        """Sample a step's images, here or where others do."""
        self.link.push_sampling_weights(watch)
        updates = self.session.updates
        if not self.link.samples:
            return InFlight(step, updates, rollouts=[], submissions=[], metrics={})
        return self.collector.roll_out(step, updates, watch)

    def _collect(self, flight: InFlight, watch: Stopwatch) -> Experience:
        """Wait for the scores; keep the best and worst images of some steps."""
        made = None
        if self.link.samples:
            with self.link.stopping_together():
                made = self.collector.collect(flight, watch)
        experience = self.link.hand_over(flight, made, watch)
        if made is not None and keeps_samples(flight.step, self.config):
            with watch("samples"):
                keep_samples(
                    self.journal.run,
                    self.collector.world,
                    experience,
                    self.config.tracking.images,
                )
        return experience if self.learner is not None else without_rollouts(experience)

    def _samples_ahead(self, step: int) -> bool:
        train = self.config.train
        drained = train.in_flight == "drain" and self._saves_after(step)
        return train.one_step_off and step < train.steps and not drained

    def _should_hold_images_ahead(self, step: int) -> bool:
        return step > 0 and self._samples_ahead(step)

    def _saves_after(self, step: int) -> bool:
        return step % self.config.train.checkpoint_every == 0 or step == self.config.train.steps

    # Evaluation --------------------------------------------------------------------------------

    def _write_evaluation_images(self, step: int, watch: Stopwatch) -> None:
        """Write the suite's images for the train stage to score; all ranks, averaged weights."""
        config = self.config.evaluation
        folder = self.journal.run.periodic_evaluation(config.suite, step)
        prompts = evaluated(self.heldout_prompts, config, config.periodic_prompts)
        requests = image_requests(prompts, config)
        size = config.micro_batch_size
        chunks = range(0, len(requests), size)
        written: list[Future[None]] = []
        with (
            self._averaged_weights(),
            ThreadPoolExecutor(WRITERS, "evaluation") as writers,
        ):
            self.link.push_weights(watch)
            for first in range(0, len(chunks), self.world.size):
                number = first + self.world.rank
                is_mine = number < len(chunks)
                if not (is_mine or self._shards_weights):
                    continue
                start = chunks[min(number, len(chunks) - 1)]
                chunk = requests[start : start + size]
                made = self._evaluation_images(chunk)
                if is_mine:
                    files = [one.file for one in chunk]
                    told = (folder, files, made.images, made.completions)
                    written.append(writers.submit(write_images, *told))
        for one in written:
            one.result()
        self.world.barrier()
        self.journal.event(
            "evaluation_images",
            step,
            suite=config.suite,
            folder=str(folder.relative_to(self.journal.run.train)),
            prompts=len(prompts),
        )

    def _averaged_weights(self) -> AbstractContextManager[None]:
        """Inside, this rank computes with them, where it has them."""
        if self.learner is None:
            return nullcontext()
        return self.session.averaged_weights(self.learner.engine)

    @property
    def _shards_weights(self) -> bool:
        return self.learner is not None and self.learner.engine.shards_weights

    def _evaluation_images(self, requests: Sequence[ImageRequest]) -> Generated:
        policy, seed = self.collector.policy, self.config.evaluation.seed
        keys = [one.key(seed) for one in requests]
        return policy.generate(policy.module, [one.prompt for one in requests], keys)
