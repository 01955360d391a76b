"""The one loop: roll out, score, compare within groups, replay with gradients, step, save.

It knows no diffusion: a Policy supplies rollout and replay, an algorithm advantages and loss, a
reward set the scores, an engine the arithmetic between ranks. Every draw is keyed by the run's
seed, the step and the global sample id, so the loop has no random state of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.algorithms.advantages import zero_std_share
from atelier.algorithms.grpo import Grpo, ratio_gap
from atelier.config.schema import RunConfig
from atelier.data.keys import key
from atelier.data.prompts import Prompt
from atelier.errors import Stopped
from atelier.evaluation.files import write_images
from atelier.policies.base import Policy, Rollout
from atelier.rewards.base import ScoreBatch
from atelier.rewards.images import pil_images
from atelier.rewards.reward_set import RewardSet
from atelier.training.batches import MicroBatch, micro_batches_by_update, step_samples
from atelier.training.distributed import World
from atelier.training.engines import Engine
from atelier.training.journal import Journal
from atelier.training.measures import Stopwatch, WeightedMeans
from atelier.training.scores import StepScores, gather_scores
from atelier.training.session import Session


@dataclass
class Trainer:
    """A run in progress. `session` carries what a checkpoint saves; `journal` what people read."""

    config: RunConfig
    policy: Policy
    algorithm: Grpo
    rewards: RewardSet
    engine: Engine
    session: Session
    journal: Journal
    world: World
    train_prompts: Sequence[Prompt]
    heldout_prompts: Sequence[Prompt]

    def run(self) -> None:
        """Train from where the session stands to the last step."""
        train = self.config.train
        for step in range(self.session.step + 1, train.steps + 1):
            watch = Stopwatch()
            metrics = self._train_step(step, watch)
            self.session.step = step
            self.journal.step(step, train.steps, {**metrics, **watch.seconds()})
            if train.evaluate_every and step % train.evaluate_every == 0:
                self._write_evaluation_images(step)
            if step % train.checkpoint_every == 0 or step == train.steps:
                folder = self.session.save(self.engine, self.policy, self.journal)
                self.journal.event("checkpoint", step, folder=folder.name)
        self.journal.event("finished", train.steps)

    # One step ----------------------------------------------------------------------------------

    def _train_step(self, step: int, watch: Stopwatch) -> dict[str, float]:
        plan = dict(self.policy.begin_step(step))
        samples = step_samples(self.train_prompts, step, self.config)
        updates = micro_batches_by_update(
            samples, step, self.config, self.world.rank, self.world.size
        )
        rollouts, scores = self._rollout_and_score(updates, watch)
        self._require_scores(step, scores)
        advantages = self.algorithm.advantages(scores.total, scores.group_ids, scores.valid)
        with watch("update"):
            metrics = self._recompute_old_log_probs(rollouts)
            for index, update in enumerate(rollouts):
                metrics |= self._update(step, index, update, advantages, scores.valid)
        return {
            **plan,
            **scores.summary(),
            "advantage/zero_std_share": zero_std_share(
                scores.total, scores.group_ids, scores.valid
            ),
            **metrics,
        }

    def _rollout_and_score(
        self, updates: Sequence[Sequence[MicroBatch]], watch: Stopwatch
    ) -> tuple[list[list[Rollout]], StepScores]:
        """Scoring of a micro-batch runs while the next one is rolled out."""
        rollouts: list[list[Rollout]] = []
        handles = []
        with watch("rollout"):
            for update in updates:
                rollouts.append([])
                for batch in update:
                    rollout = self.policy.rollout(self.policy.module, batch)
                    rollouts[-1].append(rollout)
                    handles.append(self.rewards.submit(score_batch(rollout)))
        with watch("score"):
            table = self.rewards.collect(handles, self.config.rewards.deadline)
            samples = [one for update in rollouts for rollout in update for one in rollout.samples]
            return rollouts, gather_scores(self.world, samples, table)

    def _require_scores(self, step: int, scores: StepScores) -> None:
        share = float(scores.valid.float().mean())
        if share < self.config.rewards.min_valid_share:
            raise Stopped(
                f"step {step}: only {share:.0%} of the images have a score, below "
                f"rewards.min_valid_share={self.config.rewards.min_valid_share}; first reason: "
                f"{scores.first_reason}. Mend the reward and resume: no weight was changed by "
                "this step"
            )

    def _recompute_old_log_probs(self, rollouts: list[list[Rollout]]) -> dict[str, float]:
        """In `recompute` mode, replace the rollout's log-probs by those of the training graph."""
        if self.config.rollout.old_log_prob == "rollout":
            return {}
        gaps = []
        for update in rollouts:
            for index, rollout in enumerate(update):
                with torch.no_grad():
                    parts = [
                        self.policy.replay(self.policy.module, rollout, actions, False).log_prob
                        for actions in self.policy.action_slices(rollout)
                    ]
                recomputed = torch.cat(parts, dim=1)
                gaps.append((recomputed - rollout.old_log_probs).flatten().cpu())
                update[index] = Rollout(rollout.samples, recomputed, rollout.images, rollout.record)
        everywhere = torch.cat(self.world.gather(torch.cat(gaps)))
        gap = ratio_gap(everywhere, torch.zeros_like(everywhere))
        return {f"ratio/rollout_gap_{name}": value for name, value in gap.items()}

    def _update(
        self,
        step: int,
        index: int,
        rollouts: Sequence[Rollout],
        advantages: Tensor,
        valid: Tensor,
    ) -> dict[str, float]:
        """One optimizer update on this rank's share of its micro-batches."""
        slices = [list(self.policy.action_slices(rollout)) for rollout in rollouts]
        rows = [torch.tensor([one.index for one in rollout.samples]) for rollout in rollouts]
        kept = sum(self.world.gather(sum(int(valid[row].sum()) for row in rows)))
        means = WeightedMeans()
        log_ratios = []
        calls = [(i, actions) for i, parts in enumerate(slices) for actions in parts]
        for number, (i, actions) in enumerate(calls):
            rollout, row = rollouts[i], rows[i]
            old = rollout.old_log_probs[:, actions]
            device = old.device
            # The share of one action of one sample in the mean over all kept ones, on all ranks.
            weight = valid[row].to(device).float() / (max(kept, 1) * rollout.old_log_probs.shape[1])
            last = number == len(calls) - 1
            with self.engine.accumulate(last):
                replay = self.policy.replay(
                    self.engine.module, rollout, actions, self.algorithm.needs_reference
                )
                terms = self.algorithm.loss(replay, old, advantages[row].to(device))
                self.engine.backward((terms.loss * weight[:, None]).sum(), last)
            means.add(terms.metrics, weight)
            log_ratios.append(terms.metrics["log_ratio"].flatten().cpu())
        gathered = torch.cat(self.world.gather(torch.cat(log_ratios)))
        if index == 0:
            self._replay_gate(step, gathered)
        gradient_norm = self.engine.step()
        self.session.after_update(self.engine)
        return {
            **means.over(self.world),
            "log_ratio/std": float(gathered.std(correction=0)),
            "ratio/mean_abs_dev": ratio_gap(gathered, torch.zeros_like(gathered))["mean"],
            "grad_norm": gradient_norm,
        }

    def _replay_gate(self, step: int, log_ratio: Tensor) -> None:
        """Before a step's first update the weights are the rollout's: its ratio must be 1.

        A larger gap means that rollout and replay compute different things, and clipping then
        acts on noise.
        """
        gap = ratio_gap(log_ratio, torch.zeros_like(log_ratio))
        if self.session.first_step_of_this_life(step):
            self.journal.event("replay_gate", step, **gap)
        limit = self.config.train.replay_gate * min(self.algorithm.clip_range)
        if gap["mean"] > limit:
            raise Stopped(
                f"step {step}: the replayed rollout has a mean |ratio-1| of {gap['mean']:.2e}, "
                f"above train.replay_gate x the clip range = {limit:.2e}. Likely causes: a "
                "16-bit policy.dtype (set rollout.old_log_prob=recompute), or weights changed "
                "between rollout and replay. No weight was changed by this step"
            )

    # Evaluation --------------------------------------------------------------------------------

    def _write_evaluation_images(self, step: int) -> None:
        """Write the suite's images for the train stage to score; all ranks, averaged weights."""
        config = self.config.evaluation
        folder = self.journal.run.periodic_evaluation(config.suite, step)
        prompts = self.heldout_prompts[: config.periodic_prompts]
        size = config.micro_batch_size
        starts = range(0, len(prompts), size)[self.world.rank :: self.world.size]
        with self.session.averaged_weights(self.engine):
            for start in starts:
                chunk = prompts[start : start + size]
                images = self.policy.generate(
                    self.policy.module,
                    [prompt.text for prompt in chunk],
                    [evaluation_key(config.seed, prompt) for prompt in chunk],
                )
                write_images(folder, images, start)
        self.world.barrier()
        self.journal.event(
            "evaluation_images",
            step,
            suite=config.suite,
            folder=str(folder.relative_to(self.journal.run.train)),
            prompts=len(prompts),
        )


def score_batch(rollout: Rollout) -> ScoreBatch:
    """What the rewards are shown of a rollout."""
    return ScoreBatch(
        images=pil_images(rollout.images),
        prompts=[one.prompt.text for one in rollout.samples],
        metadata=[one.prompt.metadata for one in rollout.samples],
        group_ids=[one.group_id for one in rollout.samples],
    )


def evaluation_key(seed: int, prompt: Prompt) -> int:
    """Key of the fixed evaluation noise of a prompt: the same before, during and after."""
    return key("evaluation", seed, prompt.prompt_id)
