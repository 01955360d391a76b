"""DiffusionNFT: learning from clean images alone, without a stochastic step or a log-probability.

An image is noised to a level t, and the velocity there is pulled towards what would restore it
where the image was good, and away where it was bad; both directions are measured from the velocity
of the behaviour policy, a slow copy of the trained one that sampled the image. Pure.

Source: MM-GRPO.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from atelier.algorithms.base import Advantages, LossTerms, Replayed, Scored, spread
from atelier.algorithms.comparison import Comparison
from atelier.algorithms.kl import velocity as velocity_distance
from atelier.config.schema import RunConfig
from atelier.config.sections.algorithm import AdvantageUse, AlgorithmConfig, BehaviourSchedule

SMALLEST_WEIGHT = 1e-5
# A relative difference of velocities that a wrong level or prompt makes, and rounding does not.
LARGE_DIFFERENCE = 0.1


@dataclass(frozen=True)
class Nft:
    """See algorithms.base.Algorithm. Actions are noise levels; they have no probability."""

    config: AlgorithmConfig
    comparison: Comparison

    kl_in_reward = False
    gap_name = "relative difference of velocities"
    gap_unit = f"a large one ({LARGE_DIFFERENCE})"
    gap_causes = "a 16-bit policy.dtype"
    gap_scale = LARGE_DIFFERENCE

    @classmethod
    def of(cls, config: RunConfig) -> Nft:
        return cls(config.algorithm, Comparison.of(config))

    @property
    def needs_reference(self) -> bool:
        return self.config.beta > 0

    @property
    def kl_in_loss(self) -> bool:
        return self.needs_reference

    def kl(self, replay: Replayed) -> Tensor:
        return velocity_distance(replay.statistics)

    def advantages(self, scored: Scored, distances: Tensor | None = None) -> Advantages:
        return self.comparison.advantages(scored)

    def loss(
        self,
        replay: Replayed,
        old_log_prob: Tensor | None,
        advantages: Tensor,
        truth: Tensor | None = None,
        trained: Tensor | None = None,
    ) -> LossTerms:
        """See Algorithm. Needs the statistics velocity, behaviour_velocity, clean, noisy and
        level of every sample and action."""
        said, config = replay.statistics, self.config
        trained, old = said["velocity"], said["behaviour_velocity"]
        good = optimality(advantages, config.advantage_clip, config.nft.advantage_use)
        loss = nft_loss(
            _flat(trained),
            _flat(old),
            _flat(said["clean"]),
            _flat(said["noisy"]),
            _flat(said["level"]),
            good.expand_as(said["level"]).flatten(),
            config.nft.strength,
            config.advantage_clip,
        ).reshape(said["level"].shape)
        with torch.no_grad():
            square = ((trained - old) ** 2).flatten(2).mean(2)
            drift = (square / (old**2).flatten(2).mean(2).clamp(min=1e-12)).sqrt()
            metrics = {
                "loss/policy": loss.detach(),
                "nft/good": good.expand_as(loss),
                # Brightness and contrast that run away show here before anywhere else.
                "nft/clean_rms": (said["clean"] ** 2).flatten(2).mean(2).sqrt(),
            }
        if self.kl_in_loss:
            kl = self.kl(replay)
            metrics["kl"] = kl.detach()
            loss = loss + config.beta * kl
        return LossTerms(loss, drift, metrics)

    @property
    def keeps_behaviour(self) -> bool:
        return self.config.keeps_behaviour

    def behaviour_decay(self, updates: int) -> float:
        return behaviour_decay(self.config.nft.behaviour, updates)

    # Drift is the relative difference of velocities ----------------------------------------------

    def gap(self, drift: Tensor) -> dict[str, float]:
        return spread(drift)

    def drift_metrics(self, drift: Tensor) -> dict[str, float]:
        return {"nft/velocity_gap": float(drift.mean())}


def optimality(advantages: Tensor, clip: float = 5.0, use: AdvantageUse = "all") -> Tensor:
    """r in [0, 1], how good a sample is: 1/2 + A / (2 clip), A clamped to +-clip.

    Args:
        use: which advantages count, applied to the clamped ones: those above 0, those below 0, 1
            for those above 0 (one_only), their signs (binary).
    """
    clamped = advantages.clamp(-clip, clip)
    chosen = {
        "all": clamped,
        "positive_only": clamped.clamp(min=0),
        "negative_only": clamped.clamp(max=0),
        "one_only": (clamped > 0).to(clamped.dtype),
        "binary": clamped.sign(),
    }[use]
    return (chosen / clip / 2 + 0.5).clamp(0, 1)


def nft_loss(
    velocity: Tensor,
    behaviour_velocity: Tensor,
    clean: Tensor,
    noisy: Tensor,
    level: Tensor,
    good: Tensor,
    strength: float,
    clip: float = 5.0,
) -> Tensor:
    """The contrastive loss of each sample: [B].

    velocity, behaviour_velocity (of the policy that sampled), clean x0 and noisy x_t have one shape
    [B, ...]; level t and good r (`optimality`) are [B].

    Args:
        strength: beta, how far the implicit policies lie from the behaviour policy: 1 compares the
            trained policy itself; 0.1 is for narrow rewards such as OCR.
    """
    t = _over(level, clean)
    old = behaviour_velocity.detach()
    towards = strength * velocity + (1 - strength) * old
    away = (1 + strength) * old - strength * velocity
    positive = _restored_error(noisy - t * towards, clean)
    negative = _restored_error(noisy - t * away, clean)
    return clip * (good * positive + (1 - good) * negative) / strength


def _restored_error(restored: Tensor, clean: Tensor) -> Tensor:
    """Mean of (x0_hat - x0)^2 / w with w the mean |x0_hat - x0|, detached: [B]. So large errors do
    not count more than they should, as in consistency training."""
    difference = restored - clean
    with torch.no_grad():
        weight = difference.double().abs().flatten(1).mean(1).clamp(min=SMALLEST_WEIGHT)
    return (difference**2).flatten(1).mean(1) / weight.to(difference.dtype)


def behaviour_decay(schedule: BehaviourSchedule, updates: int) -> float:
    """eta: how much of the behaviour policy stays when it moves towards the trained one, `updates`
    optimizer updates into the run.

    follow: none. ramp: min(0.001 n, 0.5). late_ramp (OCR): none until 75 updates, then
    min(0.0075 (n - 75), 0.999).
    """
    if schedule == "ramp":
        return min(0.001 * updates, 0.5)
    if schedule == "late_ramp":
        return min(0.0075 * max(0, updates - 75), 0.999)
    return 0.0


def _flat(values: Tensor) -> Tensor:
    """[B, A, ...] -> [B A, ...]."""
    return values.flatten(0, 1)


def _over(values: Tensor, like: Tensor) -> Tensor:
    return values.reshape(-1, *[1] * (like.dim() - 1)).to(like.dtype)
