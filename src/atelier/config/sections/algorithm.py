"""What is learned from scores: advantages, loss and KL."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atelier.config.sections.base import Factor, RatioBound, Section, Steepness
from atelier.config.sections.ground_truth import GroundTruthConfig
from atelier.config.sections.objective import LossMean, RatioLevel, SapoConfig, Surrogate

AdvantageUse = Literal["all", "positive_only", "negative_only", "one_only", "binary"]
BehaviourSchedule = Literal["follow", "ramp", "late_ramp"]


class NftConfig(Section):
    """DiffusionNFT (arXiv 2509.16117)."""

    strength: Steepness = Field(
        1.0,
        description="How far the two policies that are compared lie from the one that sampled "
        "(its beta); 0.1 for narrow rewards such as OCR.",
    )
    advantage_use: AdvantageUse = Field(
        "all",
        description="Which clamped advantages count: all; those above 0; those below 0; 1 for "
        "those above 0 (one_only); their signs (binary).",
    )
    behaviour: BehaviourSchedule = Field(
        "ramp",
        description="How slowly the policy that samples follows the trained one: at once; "
        "slower and slower, down to half a step; not so for 75 steps, and then slower and slower "
        "until it stands nearly still.",
    )


class AlgorithmConfig(Section):
    """Advantages, loss and distance to the reference."""

    name: Literal["grpo", "nft"] = Field(
        "grpo",
        description="GRPO on stochastic steps or on tokens, or DiffusionNFT on finished images.",
    )
    advantage_over: Literal["prompt", "pair", "step"] = Field(
        "prompt",
        description="Whose images are compared: a prompt's; those of both prompts of a pair "
        "(Pair-GRPO), prompts without a partner alone; all of a step (REINFORCE++).",
    )
    advantage_std: Literal["group", "batch", "none"] = Field(
        "group",
        description="What a group-centred reward is divided by: the std of the images that are "
        "compared; of all of a step, those of all ranks; nothing.",
    )
    advantage_ddof: Literal[0, 1] = Field(
        0, description="What is taken off the number of images that a variance is divided by."
    )
    advantage_from: Literal["total", "each_reward", "gdpo"] = Field(
        "total",
        description="What is made relative to the group: the weighted sum of the rewards; each "
        "reward, summed afterwards by shares of the weights (MixGRPO); each, summed by the weights "
        "and then scaled over the step (GDPO).",
    )
    advantage_trim: Annotated[float, Field(ge=0, le=0.5)] = Field(
        0.0, description="Share of a group's lowest rewards that its mean and std leave out."
    )
    keep_extremes: Annotated[int, Field(ge=2, multiple_of=2)] | None = Field(
        None, description="Train on so many of a group: half the best, half the worst."
    )
    advantage_clip: Annotated[float, Field(ge=1e-3, le=1e6, allow_inf_nan=False)] = Field(
        5.0, description="Advantages are clamped to +-this."
    )
    ratio_level: RatioLevel = Field(
        "token",
        description="What the ratio of new to old probability is of: each token; or a sequence, "
        "the geometric mean of its tokens' ratios, for all of them (GSPO).",
    )
    surrogate: Surrogate = Field(
        "clipped",
        description="What the ratio does to the loss: clipped (PPO, GRPO); cispo: weighs the "
        "log-probability, capped and constant; sapo: a gate that is steepest at 1; vespo: weighs "
        "the log-probability by the ratio of the whole sequence, most near 1.",
    )
    clip_range: RatioBound | None = Field(
        None,
        description="Ratio clip below 1, and above 1 unless clip_range_high is set. Default: of "
        "the log-probability: gaussian_mean 1e-4, cps_raw 1e-5, ratio_norm 2e-6; of tokens 0.2, "
        "of sequences 3e-4.",
    )
    clip_range_high: RatioBound | None = Field(
        None, description="Ratio clip above 1 (DAPO: 0.28); cispo: its cap is 1 more (4)."
    )
    clip_delta: RatioBound | None = Field(
        None,
        description="Largest ratio that counts where the advantage is below 0, above 1 + the clip "
        "range (two-sided clip); default: none.",
    )
    sapo: SapoConfig = SapoConfig()
    beta: Factor = Field(0.0, description="Weight of the KL to the reference.")
    kl_placement: Literal["loss", "reward"] = Field(
        "loss",
        description="Whether beta x KL is added to the loss, or taken off each action's reward.",
    )
    kl: Literal["latent_mean", "velocity", "scaled_velocity", "k3"] = Field(
        "latent_mean",
        description="Form of the KL: of a step's means by its noise, of velocities, of velocities "
        "by the step's noise; k3 is for token policies; nft has velocity.",
    )
    kl_correction: bool = Field(
        False,
        description="Whether k3 is multiplied by the ratio: then it is the KL of the policy that "
        "is trained, and not of the one that sampled.",
    )
    loss_mean: LossMean = Field(
        "sequence",
        description="Mean of the loss over actions: of each sample's own, then over samples; over "
        "those of a micro-batch, then over micro-batches (BNPO); over all of a step (token: DAPO); "
        "the sum by the most there can be (constant: Dr.GRPO); each sample's sum, then over "
        "samples (sum: LUSPO). They differ where answers differ in length.",
    )
    mask_truncated: bool = Field(
        False,
        description="Whether answers that came to no end in the tokens they had are left out of "
        "the loss. Their rewards still count in their group.",
    )
    ground_truth: GroundTruthConfig = GroundTruthConfig()
    nft: NftConfig = NftConfig()

    @property
    def compares_sequences(self) -> bool:
        """Whether the loss of an action depends on the ratios of its whole sequence."""
        return self.ratio_level == "sequence" or self.surrogate == "vespo"

    @property
    def keeps_behaviour(self) -> bool:
        """Whether images are sampled by a slow copy of the trained weights."""
        return self.name == "nft" and self.nft.behaviour != "follow"
