"""Every key a run can set, by concern. The reference page in docs/ is generated from this file.

Values come from four places, later ones winning: the defaults here, the recipe (and those it
inherits), params.yaml, and `--set dotted.key=value`. A key that is not here is refused with a
suggestion (see resolve.py). Cross-field rules that need arithmetic live in plan.py; the sections of
rewards in rewards.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from atelier.config.completion import CompletionConfig, EvaluatedCompletions
from atelier.config.complex_edit import ComplexEditMeasure, Licence
from atelier.config.curriculum import CurriculumConfig
from atelier.config.datasets import DatasetConfig, DatasetName, SamplingMode
from atelier.config.deepgen import BasesConfig, ConnectorConfig
from atelier.config.edit_levels import MOST, EditLevels, levels_of
from atelier.config.gpu_waiting import GpuWaitConfig
from atelier.config.ground_truth import GroundTruthConfig
from atelier.config.judge import JudgeConfig, JudgeName
from atelier.config.judged import judge_conflicts
from atelier.config.learning_rate import ScheduleConfig
from atelier.config.mirrors import MirrorsConfig
from atelier.config.mmmg import MmmgMeasure
from atelier.config.objective import LossMean, RatioLevel, SapoConfig, Surrogate
from atelier.config.policy_parts import Dtype, TextConfig, VaeConfig
from atelier.config.prompt_files import PromptFormat, PromptSource
from atelier.config.questions import Asked, PromptQuestion
from atelier.config.qwen import ConditioningConfig, EnvironmentConfig
from atelier.config.rewards import SHOWS, EditQuestions, OcrConfig, RewardsConfig
from atelier.config.sampler import SamplerConfig
from atelier.config.sections import (
    Decay,
    Factor,
    Fraction,
    Guidance,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    RatioBound,
    Section,
    Steepness,
    operational,
)
from atelier.config.sft import PicturesConfig, SftConfig
from atelier.config.suite_rules import data_conflicts, suite_conflicts
from atelier.config.tokens import EditingRolloutConfig, IntrospectionConfig, TokensConfig

AdvantageUse = Literal["all", "positive_only", "negative_only", "one_only", "binary"]
SuiteName = Literal[
    "ocr", "scenes", "yes_no", "paircomp", "editing", "mmmg", "complex_edit", "unigenbench"
]
LOOPBACK = "127.0.0.1"
LAST_MEETING_PORT = 65534  # the one after it is wanted, too
BehaviourSchedule = Literal["follow", "ramp", "late_ramp"]
_IMAGES_OF_A_PROMPT = {"paircomp": 2, "unigenbench": 4}  # as published
_TEST_POINTS = 3  # of a prompt, about as many: 1 813 of the 600 short ones that are published
WindowStrategy = Literal["all", "fast", "random", "fraction", "progressive", "decay", "exp_decay"]


class DataConfig(Section):
    """Which prompts are trained on and which are held out."""

    source: PromptSource = Field(
        "scenes",
        description="The embedded scene world, the format of the prompt file, or a mixture of both "
        "(data.datasets).",
    )
    path: str | None = Field(
        None,
        description="Prompt file, or folder with one; required unless source is scenes or mixture.",
    )
    heldout_path: str | None = Field(
        None,
        description="Held-out prompt file or folder; without it a folder's own test file is held "
        "out, and a file's prompts are split by content.",
    )
    heldout_source: PromptFormat | None = Field(
        None, description="Format of heldout_path; default: source."
    )
    unpaired_path: str | None = Field(
        None, description="Plain prompt file whose prompts are added to the pairs of path."
    )
    scene_kind: Literal["word", "shapes", "mixed"] = Field(
        "word", description="Kind of scene to sample (source: scenes)."
    )
    scene_task: Literal["draw", "edit", "graph"] = Field(
        "draw",
        description="draw: prompts ask for scenes; edit: for a change of one; graph: for shapes "
        "and how they stand to each other, with a knowledge graph (source: scenes; edit and graph: "
        "scene_kind: shapes).",
    )
    scene_wording: Literal["plain", "riddle"] = Field(
        "plain",
        description="plain: prompts name colours and shapes; riddle: what these are known for, "
        "which a completion may say in plain words (source: scenes).",
    )
    scene_tiers: Annotated[int, Field(ge=1, le=6)] = Field(
        6,
        description="Tiers of difficulty that graphs are of, from the easiest of six "
        "(scene_task: graph).",
    )
    edit_levels: EditLevels | None = Field(
        None,
        description="Levels of instructions, in turn: how many atomic edits, 1 to 8, one asks for; "
        '"8", "1-8" or "1,3,5". Default: 1 of scenes (scene_task: edit), 1-8 of complex_edit.',
    )
    accept_licence: Licence | None = operational(
        None,
        "Licence of published data that you have read and keep to: cc-by-nc-4.0, for research and "
        "other uses that are not commercial. Required for source complex_edit.",
    )
    scene_pairs: Fraction = Field(
        0.0,
        description="Share of the prompts that come in pairs, two that differ in one thing "
        "(source: scenes).",
    )
    malformed_rows: Literal["refuse", "leave_out"] = Field(
        "refuse",
        description="What becomes of rows that cannot be read: the file is refused with all of "
        "them named; or they are left out, counted and named in the summary (unigenbench, and "
        "deepgen_eval with such files).",
    )
    train_prompts: PositiveInt = Field(
        2048,
        description="Training prompts to keep or generate; of a mixture, of each data set that "
        "does not say it itself.",
    )
    heldout_prompts: PositiveInt = Field(
        256, description="Held-out prompts to keep or generate, likewise."
    )
    seed: NonNegativeInt = Field(0, description="Seed of the generated scenes and of the split.")
    datasets: dict[DatasetName, DatasetConfig] = Field(
        default={}, description="Data sets by names of yours (source: mixture)."
    )
    sampling_mode: SamplingMode = Field(
        "sample_proportional",
        description="What a sample_weight multiplies (source: mixture): sample_proportional: the "
        "share that a data set has by its size; weight_only: nothing, whatever its size.",
    )
    curriculum: CurriculumConfig = CurriculumConfig()
    sft: PicturesConfig = PicturesConfig()

    def parts(self) -> dict[str, DataConfig]:
        """The data sets of a mixture by name, each as data by itself."""
        if self.source != "mixture":
            return {}
        own = {
            "train_prompts": self.train_prompts,
            "heldout_prompts": self.heldout_prompts,
            "seed": self.seed,
            "malformed_rows": self.malformed_rows,
        }
        mixing = {"sample_weight", "rewards"}
        return {
            name: DataConfig(**own | one.model_dump(exclude=mixing, exclude_none=True))
            for name, one in self.datasets.items()
        }

    @property
    def most_train_prompts(self) -> int:
        """Training prompts that are kept or generated at most."""
        return sum(one.train_prompts for one in self.parts().values()) or self.train_prompts

    @property
    def most_heldout_prompts(self) -> int:
        """Held-out prompts that are kept or generated at most."""
        return sum(one.heldout_prompts for one in self.parts().values()) or self.heldout_prompts

    def levels_for(self, source: str) -> tuple[int, ...]:
        """The levels of instructions of a source, ascending."""
        return levels_of(self.edit_levels or ("1" if source == "scenes" else f"1-{MOST}"))


LORA_TARGETS = {
    "sd3": (
        "attn.to_q",
        "attn.to_k",
        "attn.to_v",
        "attn.to_out.0",
        "attn.add_q_proj",
        "attn.add_k_proj",
        "attn.add_v_proj",
        "attn.to_add_out",
    ),
    "janus": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
    "qwen": ("q_proj", "k_proj", "v_proj", "o_proj"),
}
LORA_TARGETS["deepgen"] = LORA_TARGETS["sd3"]  # it has the same transformer


class LoraConfig(Section):
    """Low-rank adapter (peft) on the transformer or language model, Gaussian A and zero B, without
    dropout.

    The defaults are those published for SD3.5-Medium: 18.8 M trained parameters.
    """

    rank: PositiveInt = Field(32, description="Rank of the adapter.")
    alpha: PositiveInt = Field(64, description="Scale numerator: the update is alpha/rank * BA.")
    target_modules: list[str] = Field(
        default=[*LORA_TARGETS["sd3"]],
        description="Module name suffixes that get an adapter. Of janus, the seven linear layers "
        "of a block of the language model where none are named; of qwen, the four of its "
        "attention.",
    )


class PolicyConfig(Section):
    """The model that is trained."""

    family: Literal["sd3", "deepgen", "janus", "qwen"] = Field(
        "sd3",
        description="Policy family. deepgen: the transformer of SD3 is trained on what a frozen "
        "Qwen2.5-VL reads. qwen: Qwen-Image, whose text encoder is trained to write what its "
        "frozen transformer paints.",
    )
    path: str = Field(
        "assets/tiny-sd3",
        description="Pipeline or model directory, or hub id, to start from; also a file of weights "
        "as the original code saves them (.pth, .safetensors): of janus with policy.layout, of "
        "deepgen with policy.bases.",
    )
    layout: str | None = Field(
        None,
        description="Model directory or hub id that a .pth file's configuration and tokenizer "
        "come from.",
    )
    revision: str | None = Field(
        None, description="Commit, tag or branch of a hub id; a commit is what never changes."
    )
    trainable: Literal["full", "lora", "dit", "dit_connector"] = Field(
        "full",
        description="What is trained: everything that the family trains, or an adapter on it. Of "
        "deepgen full is dit, the transformer; dit_connector is the transformer with the "
        "connector.",
    )
    lora: LoraConfig = LoraConfig()
    text: TextConfig = TextConfig()
    vae: VaeConfig = VaeConfig()
    connector: ConnectorConfig = ConnectorConfig()
    bases: BasesConfig = BasesConfig()
    resolution: PositiveInt | None = Field(
        None, description="Side of the images in pixels; default: what the model was made for."
    )
    max_sequence_length: PositiveInt = Field(
        256, description="Tokens of the third (T5) text encoder; the pipeline's default is 256."
    )
    dtype: Dtype = Field(
        "float32",
        description="Autocast dtype of what is trained; latents are always float32.",
    )
    base_dtype: Dtype = Field(
        "float32",
        description="Dtype the frozen model under a LoRA is held in: float32, or dtype. What is "
        "trained is always held in float32.",
    )
    gradient_checkpointing: bool = Field(False, description="Recompute activations in backward.")

    @property
    def denoises(self) -> bool:
        """Whether its actions are steps of a transformer of latents, and no tokens."""
        return self.family in ("sd3", "deepgen")

    @model_validator(mode="before")
    @classmethod
    def _usual_part(cls, values: Any) -> Any:
        """Of deepgen, full is what is trained as published: the transformer."""
        is_deepgen = isinstance(values, dict) and values.get("family") == "deepgen"
        if is_deepgen and values.get("trainable", "full") == "full":
            return {**values, "trainable": "dit"}
        return values

    @model_validator(mode="before")
    @classmethod
    def _usual_targets(cls, values: Any) -> Any:
        """Where none are named, those of the family."""
        if not isinstance(values, dict) or values.get("family", "sd3") == "sd3":
            return values
        lora, targets = values.get("lora", {}), LORA_TARGETS.get(values["family"])
        if targets is None or not isinstance(lora, dict) or "target_modules" in lora:
            return values
        return {**values, "lora": {**lora, "target_modules": list(targets)}}


class WindowConfig(Section):
    """Which denoising steps are stochastic and trained, as in Flow-GRPO-Fast and MixGRPO."""

    strategy: WindowStrategy = Field(
        "fast",
        description="all: every step but a deterministic last one. fast, random: a window drawn "
        "each training step. fraction: single steps drawn each training step (MR-GRPO). "
        "progressive, decay, exp_decay: a window that moves on (MixGRPO), evenly or faster and "
        "faster.",
    )
    size: PositiveInt = Field(2, description="Steps in the window (not for all and fraction).")
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        0.6,
        description="Share of the denoising steps that is drawn, rounded down, at least one "
        "(fraction).",
    )
    include_last: bool = Field(
        False,
        description="Whether the last step may be stochastic, too (all, fraction; not with cps, "
        "whose last step has no noise). It leaves noise in the image.",
    )
    range: tuple[NonNegativeInt, PositiveInt] | None = Field(
        None,
        description="[low, high): the window lies inside. Default: fast: the first half of the "
        "steps; the others: all but the last two.",
    )
    scope: Literal["step", "group", "rank"] = Field(
        "step", description="Who shares one draw of the window (fast, random)."
    )
    stride: NonNegativeInt | None = Field(
        None,
        description="Steps by which a moving window moves on; default: its size, so that windows "
        "do not overlap; 0 freezes it.",
    )
    steps_per_window: PositiveInt = Field(
        25, description="Training steps until a moving window moves on (decay: at the beginning)."
    )
    fewest_steps_per_window: PositiveInt = Field(
        1, description="Training steps until it moves on at the end (decay)."
    )
    roll_back: bool = Field(
        True, description="Whether a window that reached the end begins anew, or stays there."
    )

    @property
    def moves(self) -> bool:
        """Whether its place follows from the training step, and not from a draw."""
        return self.strategy in ("progressive", "decay", "exp_decay")

    @property
    def covers_any_step(self) -> bool:
        """Whether its steps are not those of a window of a size, inside a range."""
        return self.strategy in ("all", "fraction")

    def bounds(self, num_steps: int) -> tuple[int, int]:
        """[low, high) of the step indices the window may cover, of `num_steps` denoising steps."""
        if self.covers_any_step:
            return 0, num_steps if self.include_last else num_steps - 1
        if self.range is not None:
            return self.range
        return 0, num_steps // 2 if self.strategy == "fast" else num_steps - 2

    def longest(self, num_steps: int) -> int:
        """Steps it covers of `num_steps` denoising steps; a moving one has fewer at its end."""
        if self.strategy == "fraction":
            return max(1, int(num_steps * self.fraction))
        low, high = self.bounds(num_steps)
        return high - low if self.strategy == "all" else self.size


class RolloutConfig(Section):
    """How training images are sampled."""

    group_size: PositiveInt = Field(16, description="Images per prompt.")
    kind: Literal["draw", "introspect", "edit"] = Field(
        "draw",
        description="What one sample is: an image; an image, what the policy thinks of it, and "
        "another one (rollout.introspection); a source image, edited.",
    )
    tokens: TokensConfig = TokensConfig()
    introspection: IntrospectionConfig = IntrospectionConfig()
    editing: EditingRolloutConfig = EditingRolloutConfig()
    completion: CompletionConfig = CompletionConfig()
    sampler: SamplerConfig = SamplerConfig()
    conditioning: ConditioningConfig = ConditioningConfig()
    environment: EnvironmentConfig = EnvironmentConfig()
    num_inference_steps: PositiveInt = Field(8, description="Denoising steps.")
    guidance_scale: Guidance = Field(
        1.0, description="Classifier-free guidance; 1 samples without it."
    )
    dynamics: Literal["flow_sde", "dance_sde", "wan_sde", "cps", "ode"] = Field(
        "cps",
        description="Stochastic transition inside the window: that of Flow-GRPO, of DanceGRPO, of "
        "flow_grpo for Wan, or coefficients-preserving sampling; ode: none at all, for algorithms "
        "that learn from finished images.",
    )
    noise_level: Annotated[float, Field(ge=0, le=10)] = Field(
        0.4, description="Noise of a stochastic step: a of flow_sde and of cps (at most 1), g."
    )
    log_prob: Literal["gaussian_mean", "cps_raw", "ratio_norm"] | None = Field(
        None,
        description="Log-probability of a transition. Default: cps_raw for cps, else "
        "gaussian_mean; ratio_norm is GRPO-Guard.",
    )
    window: WindowConfig = WindowConfig()
    schedule: Literal["scheduler", "linear_shift", "resolution_shift"] = Field(
        "scheduler",
        description="Noise levels: of the pipeline's scheduler; evenly spaced ones shifted; the "
        "same, shifted the further the larger images are (FLUX).",
    )
    shift: Annotated[float, Field(ge=0.1, le=100)] = Field(
        3.0, description="Shift of linear_shift (5 for video)."
    )
    lowest_level: Annotated[float, Field(gt=0, lt=1)] | None = Field(
        None,
        description="Last level above 0 that those of resolution_shift are stretched to "
        "(Qwen-Image: 0.02); default: they are not.",
    )
    tail: Fraction | None = Field(
        None,
        description="Share of the steps behind the window that is left, run by DPM-Solver++ "
        "(MixGRPO-Flash); default: all, by Euler.",
    )
    solver: Literal["euler", "dpm_solver"] = Field(
        "euler", description="What takes the steps of a rollout without stochastic ones (ode)."
    )
    level_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.99,
        description="Share of the noise levels of a rollout that each of its images is trained "
        "at, drawn an image (ode).",
    )
    shared_start: bool = Field(
        False, description="Whether the images of a group start from the same noise."
    )
    micro_batch_size: PositiveInt = Field(
        16, description="Images sampled and replayed together; never depends on world size."
    )
    old_log_prob: Literal["rollout", "recompute"] = Field(
        "rollout", description="Old log-probs as sampled, or recomputed in the training graph."
    )

    @property
    def trained_levels(self) -> int:
        """Noise levels each image is trained at (ode)."""
        return max(1, int(self.num_inference_steps * self.level_share))


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


class EmaConfig(Section):
    """Moving average of the trained parameters."""

    enabled: bool = Field(True, description="Keep a moving average; evaluation and export use it.")
    decay: Fraction = Field(0.9, description="Largest decay; (1+n)/(10+n) before it is reached.")
    every: PositiveInt = Field(1, description="Optimizer updates between two averages.")


class TrainConfig(Section):
    """The loop and the optimizer."""

    seed: NonNegativeInt = Field(1, description="Seed of every draw of the run.")
    steps: PositiveInt = Field(60, description="Rollout steps.")
    prompts_per_step: PositiveInt = Field(12, description="Prompts (groups) in a step.")
    updates_per_step: PositiveInt = Field(2, description="Optimizer updates in a step.")
    inner_epochs: PositiveInt = Field(
        1, description="How often a step's images are trained on, each time in as many updates."
    )
    resample_rounds: NonNegativeInt = Field(
        0,
        description="How often a step draws other prompts for groups whose rewards are all equal.",
    )
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        2e-5, description="AdamW learning rate, the highest of its schedule."
    )
    schedule: ScheduleConfig = ScheduleConfig()
    weight_decay: Factor = Field(1e-4, description="AdamW weight decay.")
    adam_betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="AdamW betas.")
    adam_epsilon: Annotated[float, Field(ge=1e-30, le=1)] = Field(
        1e-8, description="AdamW epsilon."
    )
    max_grad_norm: Annotated[float, Field(ge=1e-6, le=1e9)] = Field(
        1.0, description="Gradient norm clip."
    )
    ema: EmaConfig = EmaConfig()
    sft: SftConfig = SftConfig()
    one_step_off: bool = Field(
        False,
        description="Sample a step's images before the update of the step before, so that they are "
        "scored during it; the policy that learns from them is a step ahead.",
    )
    in_flight: Literal["drain", "store"] = Field(
        "drain",
        description="One step off, what a checkpoint does with images sampled ahead: none are "
        "before it, or they are saved with it, scores and all.",
    )
    checkpoint_every: PositiveInt = Field(10, description="Steps between two checkpoints.")
    keep_checkpoints: PositiveInt = Field(2, description="Newest checkpoints kept.")
    evaluate_every: NonNegativeInt = Field(
        20, description="Steps between two periodic evaluations; 0: none."
    )
    replay_gate: Fraction = Field(
        0.1,
        description="Largest mean gap between rollout and replay before the first update: of the "
        "ratio to 1, in clip ranges; nft: of velocities, relative, in tenths.",
    )

    @property
    def updates_a_step(self) -> int:
        """Optimizer updates of a step, all epochs."""
        return self.updates_per_step * self.inner_epochs

    @property
    def updates(self) -> int:
        """Optimizer updates of the whole run, at most."""
        return self.steps * self.updates_a_step


class YesNoSuiteConfig(Section):
    """Suite yes_no: P(yes) of a judge to a question about each image, of prompts of any kind."""

    judge: str | None = Field(
        None, description="Which of `judges` is asked, none that is trained on; required."
    )
    question: PromptQuestion = Field(
        SHOWS,
        min_length=1,
        description="What it is asked, for P(yes); {prompt} is the image's.",
    )

    @property
    def asked(self) -> Asked:
        """About one image."""
        return Asked(in_words=False)


class PairCompConfig(Section):
    """Suite paircomp: pairs of captions that differ in one thing (PairComp, of FocusDiff)."""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores pairs of scenes.",
    )
    question: PromptQuestion = Field(
        SHOWS,
        min_length=1,
        description="What it is asked, for P(yes); {prompt} is the image's own caption.",
    )

    @property
    def asked(self) -> Asked:
        """About one image."""
        return Asked(in_words=False)


class EditingConfig(EditQuestions):
    """Suite editing: was the instruction followed, and the rest preserved?"""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores edits of scenes.",
    )


class MmmgSuiteConfig(MmmgMeasure):
    """Suite mmmg: how much of a knowledge graph is shown, times readability (MMMG)."""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores graphs of scenes.",
    )


class ComplexEditSuiteConfig(ComplexEditMeasure):
    """Suite complex_edit: marks of edited images, by level of instruction (Complex-Edit)."""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores edits of scenes.",
    )


def _of_a_point(question: str) -> str:
    if "{description}" not in question:
        raise ValueError(
            "a judge has to be told what to look for: write {description} where it belongs"
        )
    return question


class UniGenBenchConfig(Section):
    """Suite unigenbench: which test points of its prompt an image shows (UniGenBench)."""

    judge: str | None = Field(
        None,
        description="Which of `judges` is asked, none that is trained on; default: the exact "
        "checker scores scenes.",
    )
    ask: Literal["together", "each"] = Field(
        "together",
        description="together: about all test points of an image in one question, as published; "
        "each: a yes or no to each, for judges that write no lists. Scenes are asked about in the "
        "embedded judge's words then.",
    )
    question: Annotated[str, AfterValidator(_of_a_point)] = Field(
        "This image was made for the prompt: {prompt}\n"
        "Is this plainly and rightly to be seen in it: {description}? What is meant: {point}, that "
        "is, {definition}. Answer yes or no.",
        description="With ask: each, what is asked about a test point of a prompt that is no "
        "scene's, for P(yes); above one half is yes. {prompt}, {point}, {definition} and "
        "{description} are put in.",
    )

    @property
    def asked(self) -> Asked:
        """About one image."""
        if self.ask == "together":
            return Asked()
        return Asked(_TEST_POINTS, in_words=False, is_exact=False)


class EvaluationConfig(Section):
    """Held-out evaluation, before, during and after training."""

    suite: SuiteName = Field(
        "ocr",
        description="ocr: words that are read in the images. scenes: facts that the exact checker "
        "finds. yes_no: what a judge says of any prompts. paircomp: pairs of captions. editing: "
        "edited images. mmmg: knowledge graphs. complex_edit: edited images, by level. "
        "unigenbench: test points of prompts.",
    )
    prompts: PositiveInt = Field(256, description="Held-out prompts of baseline and final.")
    periodic_prompts: PositiveInt = Field(64, description="Held-out prompts of a periodic one.")
    images_per_prompt: PositiveInt | None = Field(
        None,
        description="Images of each prompt; default: 4 for unigenbench, 2 for paircomp, else 1.",
    )
    num_inference_steps: PositiveInt = Field(8, description="Denoising steps (deterministic ODE).")
    guidance_scale: Guidance = Field(
        1.0, description="Classifier-free guidance of the evaluated images."
    )
    seed: NonNegativeInt = Field(0, description="Seed of the fixed noise, one draw an image.")
    completions: EvaluatedCompletions = Field(
        "own",
        description="Of a policy that writes, what images are made of besides the prompt: what it "
        "writes; none: nothing; shuffled: what it writes to another prompt of the same batch.",
    )
    micro_batch_size: PositiveInt = Field(16, description="Images generated together.")
    ocr: OcrConfig = Field(
        OcrConfig(), description="How the suite reads text, in process; independent of the reward."
    )
    yes_no: YesNoSuiteConfig = YesNoSuiteConfig()
    paircomp: PairCompConfig = PairCompConfig()
    editing: EditingConfig = EditingConfig()
    mmmg: MmmgSuiteConfig = MmmgSuiteConfig()
    complex_edit: ComplexEditSuiteConfig = ComplexEditSuiteConfig()
    unigenbench: UniGenBenchConfig = UniGenBenchConfig()
    judge_deadline: Annotated[float, Field(gt=0, le=604_800)] = operational(
        1800.0,
        "Seconds for which a suite's judge that cannot be reached is asked again; then the stage "
        "stops, resumable.",
    )
    bootstrap_samples: Annotated[int, Field(ge=1, le=1_000_000)] = Field(
        10_000, description="Resamples of the paired bootstrap intervals."
    )

    @property
    def images_of_a_prompt(self) -> int:
        return self.images_per_prompt or _IMAGES_OF_A_PROMPT.get(self.suite, 1)

    @property
    def judge(self) -> str | None:
        """Which of `judges` the suite asks; None where it asks none."""
        return self.judges_of_suites.get(self.suite)

    def asked_by(self, suite: str) -> Asked:
        """What a suite that may ask a judge asks it about one image."""
        asked: Asked = getattr(self, suite).asked
        return asked

    @property
    def judges_of_suites(self) -> dict[str, str | None]:
        """Which each suite that may ask one would ask."""
        return {
            "yes_no": self.yes_no.judge,
            "paircomp": self.paircomp.judge,
            "editing": self.editing.judge,
            "mmmg": self.mmmg.judge,
            "complex_edit": self.complex_edit.judge,
            "unigenbench": self.unigenbench.judge,
        }


class ExportConfig(Section):
    """What is written at the end and proven by reloading."""

    weights: Literal["ema", "raw"] = Field("ema", description="Averaged or last weights.")
    formats: list[Literal["adapter", "merged"]] = Field(
        default=["merged"],
        description="adapter: the LoRA alone, for the base; merged: a whole model directory (qwen: "
        "the text encoder's).",
    )
    whole_pipeline: bool = Field(
        False,
        description="Whether merged has the frozen transformer and autoencoder, too (qwen: 41 GB "
        "of 20 billion parameters that nobody trained).",
    )
    dtype: Literal["float32", "bfloat16", "float16"] = Field(
        "float32", description="Dtype of the merged weights; 16 bit is rounded once."
    )
    min_update_survival: Fraction = Field(
        0.9, description="Share of the update that must survive rounding to 16 bit."
    )
    verify_prompts: PositiveInt = Field(4, description="Images compared in a clean process.")


class LaunchConfig(Section):
    """How the trainer process is started."""

    processes: PositiveInt = operational(1, "Ranks of a node (torchrun --nproc-per-node).")
    nodes: PositiveInt = operational(
        1, "Machines that train together, with `processes` ranks each (docs/many-machines.md)."
    )
    node_rank: NonNegativeInt = operational(
        0, "Which of the nodes this one is: 0 has the run, the others help it train."
    )
    master_address: Annotated[str, Field(min_length=1)] = operational(
        LOOPBACK, "Name or address of node 0, as the other nodes reach it."
    )
    master_port: Annotated[int, Field(ge=1, le=LAST_MEETING_PORT)] = operational(
        29700, "Port of node 0 where the nodes meet; their torchruns do at the one after it."
    )
    join_limit: PositiveFloat = operational(
        1800.0, "Seconds that node 0 waits for the others before it stops, resumable."
    )
    launcher: list[str] = operational(
        [],
        "Program and arguments with which node 0 starts the other nodes, such as [srun, "
        "--nodes=3, --ntasks-per-node=1]; Atelier's own command follows. Default: they are started "
        "by hand.",
    )
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="Where the ranks compute.")
    engine: Literal["ddp", "deepspeed"] = Field("ddp", description="Distributed engine.")
    zero_stage: Literal[2, 3] = Field(2, description="DeepSpeed ZeRO stage.")
    zero_tuning: Literal["general", "sd3"] = Field(
        "general",
        description="What ZeRO-3 gathers and reduces at a time: 50 million parameters; sd3: a "
        "block of a diffusion transformer of 2 billion, whose vectors are never shared out.",
    )
    offload: bool = Field(
        False, description="Keep the optimizer in main memory and step it on the CPU (ZeRO-3)."
    )
    threads: PositiveInt = Field(
        2,
        description="CPU threads of a node's ranks together; fixed, because it can change sums.",
    )
    deterministic: bool = Field(
        True,
        description="Sum in a fixed order, so that a run repeats, and resumes, bit for bit. On a "
        "GPU this costs some of the backward pass of attention.",
    )
    max_restarts: NonNegativeInt = operational(2, "Crashes after which a stage gives up.")
    wait_for_gpus: GpuWaitConfig = operational(
        GpuWaitConfig(), "Whether to wait for GPUs that other programs use."
    )

    @property
    def ranks(self) -> int:
        """Of all nodes together."""
        return self.nodes * self.processes


class TrackingConfig(MirrorsConfig):
    """Where the run is mirrored for people to look at: in MLflow, and where else they like."""

    mlflow_uri: str | None = Field(
        None, description="MLflow tracking URI; default: the SQLite store of the project."
    )
    experiment: str = Field("atelier", description="MLflow experiment.")
    run_name: str | None = Field(None, description="Name of the run; default: recipe and seed.")
    images: PositiveInt = Field(
        16, description="Images in a logged grid, and best and worst ones kept of a step."
    )
    samples_every: NonNegativeInt = Field(
        10,
        description="Steps between two whose best and worst images are kept; 0: none. The last "
        "step is one.",
    )
    judge_traces: Fraction = Field(
        0.01,
        description="Share of the questions to judges whose answers are shown, drawn at random.",
    )


class RunConfig(Section):
    """A whole run."""

    recipe: str | None = Field(None, description="Recipe the values come from, for the record.")
    data: DataConfig = DataConfig()
    policy: PolicyConfig = PolicyConfig()
    rollout: RolloutConfig = RolloutConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    train: TrainConfig = TrainConfig()
    rewards: RewardsConfig = RewardsConfig()
    judges: dict[JudgeName, JudgeConfig] = Field(
        default={}, description="Judges by names of yours, which rewards refer to."
    )
    evaluation: EvaluationConfig = EvaluationConfig()
    export: ExportConfig = ExportConfig()
    launch: LaunchConfig = LaunchConfig()
    tracking: TrackingConfig = TrackingConfig()

    @property
    def sampler(self) -> SamplerConfig | None:
        """The servers that draw what is trained on; None where the policy draws itself."""
        writes = self.policy.family == "qwen"
        is_served = writes and self.rollout.completion.backend == "vllm"
        return self.rollout.sampler if is_served else None

    @model_validator(mode="after")
    def _fields_that_exclude_each_other(self) -> RunConfig:
        conflicts = list(self._conflicts())
        if conflicts:
            text = "; ".join(f"{key}: {problem}" for key, problem in conflicts)
            raise PydanticCustomError("conflict", "{text}", {"text": text, "conflicts": conflicts})
        return self

    def _conflicts(self) -> Iterator[tuple[str, str]]:
        """Key and problem of every field that does not fit the others."""
        yield from self.rewards.conflicts()
        for name, judge in self.judges.items():
            yield from ((f"judges.{name}.{key}", text) for key, text in judge.conflicts())
        yield from judge_conflicts(self.rewards, self.judges)
        if self.data.source not in ("scenes", "mixture") and self.data.path is None:
            yield "data.path", f"is required when data.source is {self.data.source}"
        yield from data_conflicts(self.data)
        yield from ((f"train.sft.{key}", text) for key, text in self.train.sft.conflicts())
        yield from suite_conflicts(self.evaluation, self.judges)
        sampler = self.rollout.sampler
        yield from ((f"rollout.sampler.{key}", text) for key, text in sampler.conflicts())
        if self.rollout.dynamics == "cps" and self.rollout.noise_level > 1:
            yield "rollout.noise_level", "is at most 1 with rollout.dynamics: cps"
        yield from (
            (f"rollout.conditioning.{key}", text)
            for key, text in self.rollout.conditioning.conflicts()
        )
        if self.rollout.environment.preset == "lightning" and self.rollout.guidance_scale > 1:
            yield (
                "rollout.guidance_scale",
                "is 1 with rollout.environment.preset: lightning, whose adapter was distilled "
                "with guidance",
            )
        if not self.export.formats or len({*self.export.formats}) < len(self.export.formats):
            yield "export.formats", "names each format to write once, and at least one"
        if self.launch.node_rank >= self.launch.nodes:
            yield (
                "launch.node_rank",
                f"{self.launch.node_rank} is none of launch.nodes {self.launch.nodes}: they are "
                "counted from 0; set launch.nodes to how many there are, or a smaller rank",
            )
        if "adapter" in self.export.formats and self.policy.trainable != "lora":
            yield "export.formats", "adapter needs policy.trainable: lora"
