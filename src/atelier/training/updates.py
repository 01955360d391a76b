"""What a step's experience changes: replay with gradients, weigh, step the optimizer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atelier.algorithms.base import Advantages, Algorithm, LossTerms
from atelier.config.schema import RunConfig
from atelier.config.sections.learning_rate import learning_rate
from atelier.errors import Stopped
from atelier.policies.base import Part, Policy, Replay, Rollout
from atelier.training.distributed import World
from atelier.training.engines import Engine
from atelier.training.experience import Experience, Updates
from atelier.training.journal import Journal
from atelier.training.loss_weights import Counts, LossWeights, counted, loss_weights
from atelier.training.measures import WeightedMeans
from atelier.training.session import Session
from atelier.training.supervision import Supervision
from atelier.transfer import to_device


@dataclass
class Learner:
    """Trains a policy on experience."""

    config: RunConfig
    policy: Policy
    algorithm: Algorithm
    engine: Engine
    session: Session
    journal: Journal
    world: World
    supervision: Supervision | None = None

    def learn(self, experience: Experience) -> dict[str, float]:
        """All updates of a step. Collective.

        Returns:
            Metrics of the last update.

        Raises:
            Stopped: the first replay does not repeat the rollout, or a server drew by something
                else; no weight was changed.
        """
        staleness = self.session.updates - experience.updates_before
        sampled_by_trained = self.session.samples_with_trained and not staleness
        metrics = self._recompute_old_log_probs(experience.rollouts)
        if sampled_by_trained:
            self._sampler_gate(experience.step, metrics)
        metrics |= self._truncated_share(experience.rollouts)
        metrics |= self._lengths(experience.rollouts)
        distances = self._distances(experience)
        advantages = [
            self.algorithm.advantages(scores, distances) for scores in experience.segments
        ]
        rollouts = self._trained(experience.rollouts)
        whole = self._counted(rollouts, advantages)
        for number, update in enumerate(rollouts * self.config.train.inner_epochs):
            fresh = sampled_by_trained and number == 0
            metrics |= self._update(experience.step, number, update, advantages, whole, fresh)
        decay = self.algorithm.behaviour_decay(self.session.updates)
        self.session.move_behaviour(self.engine, decay)
        return {**metrics, "rollout/staleness": float(staleness)}

    def _update(
        self,
        step: int,
        number: int,
        rollouts: Sequence[Rollout],
        advantages: Sequence[Advantages],
        whole: Counts,
        fresh: bool,
    ) -> dict[str, float]:
        """One optimizer update on this rank's share of its micro-batches, however many those are.

        Args:
            number: of the update in the step, from 0.
            advantages: of the whole step, one a segment.
            whole: what the whole step holds.
            fresh: whether the weights are still those of the rollout.
        """
        rows = [_rows(rollout) for rollout in rollouts]
        mean, updates = self.config.algorithm.loss_mean, self.config.train.updates_per_step
        weights = loss_weights(mean, advantages, rollouts, rows, self.world, whole, updates)
        rate = self._learning_rate()
        if weights.nothing_kept:
            # Without a gradient, the optimizer's momentum would still move the weights.
            return {"grad_norm": 0.0, "learning_rate": rate}
        means, supervision = WeightedMeans(), self.supervision
        if supervision is None:
            drift = self._learn(rollouts, rows, advantages, weights, 1.0, True, means)
        else:
            pictures = supervision.batches(step, number)
            share = supervision.policy_share(pictures)
            with supervision.read_ahead(pictures) as pixels:
                drift = self._learn(rollouts, rows, advantages, weights, share, not pictures, means)
                supervision.learn(self.engine, pictures, pixels, means)
        if fresh:
            self._replay_gate(step, drift)
        gradient_norm = self.engine.step(rate)
        _require_finite(step, gradient_norm)
        self.session.after_update(self.engine)
        return {
            **means.over(self.world),
            **self.algorithm.drift_metrics(drift),
            "grad_norm": gradient_norm,
            "learning_rate": rate,
        }

    def _learn(
        self,
        rollouts: Sequence[Rollout],
        rows: Sequence[Tensor],
        advantages: Sequence[Advantages],
        weights: LossWeights,
        share: float,
        is_last: bool,
        means: WeightedMeans,
    ) -> Tensor:
        """Accumulate gradients of rollouts; how far log-probs have drifted, of all ranks.

        Args:
            share: by what their loss is multiplied.
            is_last: whether the optimizer's step comes next.
            means: gets their metrics.
        """
        drifts, trained, device = [], [], self.world.device
        calls = [(i, part) for i, one in enumerate(rollouts) for part in self.policy.parts(one)]
        for call, (i, part) in enumerate(calls):
            weight = to_device(weights.of(rollouts[i], rows[i], part), device)
            last = call == len(calls) - 1 and is_last
            with self.engine.accumulate(last):
                terms = self._loss(rollouts[i], rows[i], part, advantages[part.segment])
                self.engine.backward(share * (terms.loss * weight).sum(), last)
            shares = to_device(weights.shares(rollouts[i], rows[i], part), device)
            means.add(terms.metrics, shares)
            drifts.append(terms.drift.detach())
            trained.append(rollouts[i].trained(part) > 0)
        drift = _on_host(drifts)[torch.cat([one.flatten() for one in trained])]
        return torch.cat(self.world.gather(drift))

    def _loss(self, rollout: Rollout, row: Tensor, part: Part, advantages: Advantages) -> LossTerms:
        old = None if rollout.old_log_probs is None else rollout.old_log_probs[:, part.actions]
        module, with_reference = self.engine.module, self.algorithm.kl_in_loss
        replay = self.policy.replay(module, rollout, part, with_reference)
        device = self.world.device
        relative = to_device(advantages.of(row, part.actions), device)
        truth = _truth(rollout)
        given = to_device(truth, device) if bool(truth.any()) else None
        if self.config.algorithm.compares_sequences:
            _require_whole_segment(rollout, part)
        own = to_device(rollout.trained(part), device)
        return self.algorithm.loss(replay, old, relative, given, own)

    def _learning_rate(self) -> float:
        """Of the next update."""
        train = self.config.train
        return learning_rate(
            train.learning_rate, train.schedule, self.session.updates, train.updates
        )

    def _replay_gate(self, step: int, drift: Tensor) -> None:
        """Before a step's first update the weights are the rollout's, and nothing has drifted.

        A gap means that rollout and replay compute different things: a loss would act on noise.
        """
        algorithm = self.algorithm
        gap = algorithm.gap(drift)
        if self.session.first_step_of_this_life(step):
            self.journal.event("replay_gate", step, **gap)
        limit = self.config.train.replay_gate * algorithm.gap_scale
        if not gap["mean"] <= limit:  # nor is NaN a pass
            raise Stopped(
                f"step {step}: the replayed rollout has a mean {algorithm.gap_name} of "
                f"{gap['mean']:.2e}, above train.replay_gate x {algorithm.gap_unit} = "
                f"{limit:.2e}. Likely causes: {algorithm.gap_causes}, or weights changed between "
                "rollout and replay. No weight was changed by this step"
            )

    def _sampler_gate(self, step: int, metrics: Mapping[str, float]) -> None:
        """What servers drew by the weights that are trained must be as likely by these.

        A gap means that a server computes something else, or with other weights.
        """
        sampler = self.config.sampler
        if sampler is None:
            return
        gap = metrics["ratio/rollout_gap_mean"]
        if not gap <= sampler.tolerance:  # nor is NaN a pass
            raise Stopped(
                f"step {step}: the completions that servers drew have a mean "
                f"{self.algorithm.gap_name} of {gap:.2e} by the trainer, above "
                f"rollout.sampler.tolerance={sampler.tolerance:g}: a server draws by other "
                "weights, computes in another dtype, or sees images otherwise. No weight was "
                "changed by this step"
            )

    # Before the updates ------------------------------------------------------------------------

    def _trained(self, rollouts: Updates) -> Updates:
        """What of the rollouts is trained."""
        if not self.config.algorithm.mask_truncated:
            return rollouts
        return [[one.without_truncated() for one in update] for update in rollouts]

    def _counted(self, rollouts: Updates, advantages: Sequence[Advantages]) -> Counts:
        """What the whole step holds. Collective."""
        mine = [one for update in rollouts for one in update]
        return counted(advantages, mine, [_rows(one) for one in mine], self.world)

    def _truncated_share(self, rollouts: Updates) -> dict[str, float]:
        """Share of the samples of which something was cut off, where that can be. Collective."""
        mine = [one.ended.all(1) for update in rollouts for one in update if one.ended is not None]
        if not mine:
            return {}
        ended = torch.cat(self.world.gather(torch.cat(mine).cpu()))
        return {"rollout/truncated_share": 1 - float(ended.double().mean())}

    def _lengths(self, rollouts: Updates) -> dict[str, float]:
        """How long the samples are, where they are nothing but what is written. Collective."""
        mine = [one for update in rollouts for one in update]
        if any(one.ended is None or len(one.all_segments()) > 1 for one in mine):
            return {}
        lengths = torch.cat(self.world.gather(torch.cat([one.trained_count(0) for one in mine])))
        return {
            "rollout/mean_length": float(lengths.double().mean()),
            "rollout/longest": float(lengths.max()),
        }

    def _recompute_old_log_probs(self, rollouts: Updates) -> dict[str, float]:
        """In `recompute` mode, replace the rollout's log-probs by those of the training graph, and
        say how far apart the two are where the policy itself drew."""
        if self.config.rollout.old_log_prob == "rollout":
            return {}
        gaps, known, drawn = [], [], []
        for update in rollouts:
            for index, rollout in enumerate(update):
                replays = self._replays(rollout, with_reference=False)
                recomputed = torch.cat([_log_prob(one.log_prob) for one in replays], dim=1)
                sampled = _log_prob(rollout.old_log_probs)
                gaps.append(recomputed - sampled)
                known.append(~sampled.isnan())  # NaN: to be computed anew
                everything = Part(slice(0, rollout.actions))
                own = (rollout.trained(everything) > 0) & ~_truth(rollout)[:, None]
                drawn.append(own.flatten())
                update[index] = replace(rollout, old_log_probs=recomputed)
        gap = _on_host(gaps)[torch.cat(drawn) & _on_host(known)]
        everyone = self.algorithm.gap(torch.cat(self.world.gather(gap)))
        return {f"ratio/rollout_gap_{name}": value for name, value in everyone.items()}

    def _distances(self, experience: Experience) -> Tensor | None:
        """Distance to the reference of every action of all ranks' samples [N, A], where rewards
        take it into account."""
        if not self.algorithm.kl_in_reward:
            return None
        rollouts = [one for update in experience.rollouts for one in update]
        rows = []
        for rollout in rollouts:
            parts = [self.algorithm.kl(one) for one in self._replays(rollout, with_reference=True)]
            rows.append(torch.cat(parts, dim=1))
        indices = (one.index for rollout in rollouts for one in rollout.samples)
        mine = dict(zip(indices, torch.cat(rows).cpu(), strict=True))
        everyone = {k: v for part in self.world.gather(mine) for k, v in part.items()}
        return torch.stack([everyone[index] for index in sorted(everyone)])

    def _replays(self, rollout: Rollout, with_reference: bool) -> list[Replay]:
        with torch.no_grad():
            return [
                self.policy.replay(self.policy.module, rollout, part, with_reference)
                for part in self.policy.parts(rollout)
            ]


def _require_whole_segment(rollout: Rollout, part: Part) -> None:
    """A ratio of some of a sequence's actions would pass for that of all.

    Raises:
        ValueError: the policy replays a sequence in pieces.
    """
    if part.actions != rollout.all_segments()[part.segment]:
        raise ValueError(
            f"actions {part.actions.start} to {part.actions.stop} are no whole segment: a ratio of "
            "sequences needs all of one in a forward pass (algorithm.ratio_level: token does not)"
        )


def _rows(rollout: Rollout) -> Tensor:
    """Positions of its samples in the step [B]."""
    return torch.tensor([one.index for one in rollout.samples])


def _on_host(values: Sequence[Tensor]) -> Tensor:
    """All values of all, one after another: a device is waited for once."""
    return torch.cat([one.flatten() for one in values]).cpu()


def _truth(rollout: Rollout) -> Tensor:
    """Which samples [B] are ground truth, and not the policy's."""
    return torch.tensor([one.truth is not None for one in rollout.samples])


def _require_finite(step: int, gradient_norm: float) -> None:
    """Stop before anything of such an update is saved.

    Raises:
        Stopped: the last checkpoint is what a resumed run goes on from.
    """
    if not math.isfinite(gradient_norm):
        raise Stopped(
            f"step {step}: the gradient's norm is {gradient_norm}: the loss or the model has left "
            "the range of its numbers. Nothing of this step is saved, the last checkpoint is as it "
            "was; begin a new run with a lower train.learning_rate, or with policy.dtype=float32"
        )


def _log_prob(known: Tensor | None) -> Tensor:
    if known is None:
        raise ValueError("rollout.old_log_prob recompute: these actions have no probability")
    return known
