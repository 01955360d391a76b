"""Settings that do nothing beside the others. Not an error, since a recipe may have set them for
another choice; but whoever set one meant something by it, so the plan warns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from pydantic import BaseModel

from atelier.config.facts.deepgen import of_checkpoint
from atelier.config.placement import gpus_wanted
from atelier.config.schema import RunConfig
from atelier.config.sections.data import DataConfig
from atelier.config.sections.gpu_waiting import GpuWaitConfig
from atelier.config.sections.ground_truth import GroundTruthConfig
from atelier.config.sections.learning_rate import ScheduleConfig
from atelier.config.sections.mirrors import MirrorConfig, MirrorsConfig
from atelier.config.sections.policy import LORA_TARGETS
from atelier.config.sections.rewards import OcrConfig, SpansConfig
from atelier.config.sections.sft import PicturesConfig, SftConfig
from atelier.config.suite_data import heldout_format
from atelier.config.suite_rules import licensed


@dataclass(frozen=True)
class Rule:
    """Keys that say something only where `matters`."""

    keys: tuple[str, ...]
    matters: Callable[[RunConfig], bool]
    needs: str


_STOCHASTIC_STEPS = (
    *(f"rollout.{name}" for name in ("dynamics", "noise_level", "log_prob", "window", "schedule")),
    *(f"rollout.{name}" for name in ("shift", "lowest_level", "tail", "solver", "level_share")),
    "policy.text",
    "algorithm.nft",
)
_DENOISING = (
    *("rollout.num_inference_steps", "rollout.shared_start"),
    *("policy.vae", "evaluation.num_inference_steps"),
)
_WRITING = (
    *(f"rollout.{name}" for name in ("completion", "conditioning", "environment")),
    "evaluation.completions",
)

# What a suite's judge is asked, beside who it is.
_ASKED = {
    "yes_no": ("question",),
    "paircomp": ("question",),
    "editing": ("about", "following_question", "preserving_question"),
    "mmmg": ("ask", "parser", "min_judged_share"),
    "complex_edit": ("alignment_question", "quality_question"),
    "unigenbench": ("ask", "question"),
}


def _asked_rule(suite: str, keys: tuple[str, ...]) -> Rule:
    return Rule(
        tuple(f"evaluation.{suite}.{key}" for key in keys),
        lambda config: _asks(config, suite),
        f"evaluation.suite: {suite} with evaluation.{suite}.judge",
    )


def _asks(config: RunConfig, suite: str) -> bool:
    return config.evaluation.suite == suite and config.evaluation.judge is not None


def _mirror_rule(name: str) -> Rule:
    return Rule(
        tuple(f"tracking.{name}.{key}" for key in MirrorConfig.model_fields if key != "enabled"),
        lambda config: getattr(config.tracking, name).enabled,
        f"tracking.{name}.enabled: true",
    )


def _spans_rule(section: str) -> Rule:
    def matters(config: RunConfig) -> bool:
        ocr: OcrConfig | None = getattr(config, section).ocr
        return ocr is None or ocr.rule == "spans"

    keys = tuple(f"{section}.ocr.spans.{key}" for key in SpansConfig.model_fields)
    return Rule(keys, matters, f"{section}.ocr.rule: spans")


RULES = (
    *(_asked_rule(*each) for each in _ASKED.items()),
    *(_mirror_rule(name) for name in MirrorsConfig.model_fields),
    *(_spans_rule(section) for section in ("rewards", "evaluation")),
    Rule(
        ("rewards.unified_reward_think.both_orders",),
        lambda config: (
            (own := config.rewards.unified_reward_think) is None or own.form == "verdict"
        ),
        "rewards.unified_reward_think.form: verdict",
    ),
    Rule(_STOCHASTIC_STEPS, lambda config: config.policy.denoises, "policy.family: sd3 or deepgen"),
    Rule(
        ("policy.transformer",),
        lambda config: config.policy.denoises,
        "policy.family: sd3 or deepgen",
    ),
    Rule(
        ("policy.compile",),
        lambda config: config.policy.transformer == "fast",
        "policy.transformer: fast",
    ),
    Rule(
        ("policy.lora.folded",),
        lambda config: (
            config.policy.denoises
            and config.policy.transformer == "fast"
            and config.policy.trainable == "lora"
        ),
        "policy.transformer: fast and policy.trainable: lora, of sd3 or deepgen",
    ),
    Rule(
        ("policy.max_sequence_length",),
        lambda config: config.policy.family == "sd3",
        "policy.family: sd3",
    ),
    Rule(
        ("policy.connector.padding",),
        lambda config: config.policy.family == "deepgen",
        "policy.family: deepgen",
    ),
    Rule(
        ("policy.text.memory_gigabytes",),
        lambda config: (
            config.policy.family != "deepgen" or config.policy.connector.padding == "masked"
        ),
        "embeddings that can be kept: policy.connector.padding: masked",
    ),
    Rule(
        ("policy.connector.heads",),
        lambda config: of_checkpoint(config.policy),
        "policy.family: deepgen, and a file of weights as policy.path",
    ),
    Rule(
        _DENOISING,
        lambda config: config.policy.family != "janus",
        "policy.family: sd3, deepgen or qwen",
    ),
    Rule(_WRITING, lambda config: config.policy.family == "qwen", "policy.family: qwen"),
    Rule(
        ("rollout.sampler",),
        lambda config: config.sampler is not None,
        "policy.family: qwen with rollout.completion.backend: vllm",
    ),
    Rule(
        ("rollout.environment.condition_side", "rollout.environment.reference_side"),
        lambda config: config.policy.family != "qwen" or config.rollout.kind == "edit",
        "rollout.kind: edit",
    ),
    Rule(
        ("export.whole_pipeline",),
        lambda config: config.policy.family == "qwen" and "merged" in config.export.formats,
        "policy.family: qwen and merged among export.formats",
    ),
    Rule(("rollout.tokens",), lambda config: config.policy.family == "janus", "janus"),
    Rule(
        ("rollout.editing",),
        lambda config: config.policy.family == "janus" and config.rollout.kind == "edit",
        "policy.family: janus with rollout.kind: edit",
    ),
    Rule(
        ("rollout.introspection",),
        lambda config: config.rollout.kind == "introspect",
        "rollout.kind: introspect",
    ),
    Rule(
        ("train.schedule.warm_up_updates",),
        lambda config: config.train.schedule.kind != "constant",
        "train.schedule.kind: constant_with_warmup or two_slopes",
    ),
    Rule(
        tuple(
            f"train.schedule.{name}"
            for name in ScheduleConfig.model_fields
            if name not in ("kind", "warm_up_updates")
        ),
        lambda config: config.train.schedule.kind == "two_slopes",
        "train.schedule.kind: two_slopes",
    ),
    Rule(
        tuple(
            f"algorithm.ground_truth.{name}"
            for name in GroundTruthConfig.model_fields
            if name != "enabled"
        ),
        lambda config: config.algorithm.ground_truth.enabled,
        "algorithm.ground_truth.enabled: true",
    ),
    Rule(
        ("policy.lora.rank", "policy.lora.alpha"),
        lambda config: config.policy.trainable == "lora",
        "policy.trainable: lora",
    ),
    Rule(
        ("policy.lora.target_modules",),
        lambda config: config.policy.trainable == "lora" or _has_usual_targets(config),
        "policy.trainable: lora",
    ),
    Rule(
        ("rollout.shift",),
        lambda config: config.rollout.schedule == "linear_shift",
        "rollout.schedule: linear_shift",
    ),
    Rule(
        ("rollout.window.size", "rollout.window.range"),
        lambda config: not config.rollout.window.covers_any_step,
        "another rollout.window.strategy than all and fraction",
    ),
    Rule(
        ("rollout.window.fraction",),
        lambda config: config.rollout.window.strategy == "fraction",
        "rollout.window.strategy: fraction",
    ),
    Rule(
        ("rollout.window.include_last",),
        lambda config: config.rollout.window.covers_any_step,
        "rollout.window.strategy: all or fraction",
    ),
    Rule(
        (
            "rollout.window.stride",
            "rollout.window.roll_back",
            "rollout.window.steps_per_window",
        ),
        lambda config: config.rollout.window.moves,
        "a rollout.window.strategy that moves: progressive, decay or exp_decay",
    ),
    Rule(
        ("rollout.window.fewest_steps_per_window",),
        lambda config: config.rollout.window.strategy == "decay",
        "rollout.window.strategy: decay",
    ),
    Rule(
        ("data.path",),
        lambda config: config.data.source != "scenes",
        "a data.source that reads files, such as plain or ocr_text",
    ),
    Rule(
        ("data.datasets", "data.sampling_mode"),
        lambda config: config.data.source == "mixture",
        "data.source: mixture",
    ),
    # Of a file's prompts nothing is said: who names a file leaves the recipe's scenes behind.
    Rule(
        ("data.scene_tiers",),
        lambda config: config.data.source != "scenes" or config.data.scene_task == "graph",
        "data.scene_task: graph",
    ),
    Rule(
        ("data.edit_levels",),
        lambda config: config.data.source != "scenes" or config.data.scene_task == "edit",
        "data.scene_task: edit, or data.source: complex_edit",
    ),
    Rule(
        ("data.malformed_rows",),
        lambda config: any(map(_has_sound_rows, _data_sets(config))),
        "a source or heldout_source: unigenbench, or heldout_source: deepgen_eval",
    ),
    Rule(
        ("evaluation.unigenbench.question",),
        lambda config: (
            config.evaluation.unigenbench.ask == "each" or not _asks(config, "unigenbench")
        ),
        "evaluation.unigenbench.ask: each",
    ),
    Rule(
        ("data.accept_licence",),
        lambda config: bool(licensed(config.data)),
        "data.source: complex_edit",
    ),
    Rule(
        tuple(f"data.curriculum.{name}" for name in ("score", "cells", "levels")),
        lambda config: config.data.curriculum.scores is not None,
        "data.curriculum.scores",
    ),
    Rule(
        ("algorithm.kl", "algorithm.kl_placement", "algorithm.kl_correction"),
        lambda config: config.algorithm.beta > 0,
        "algorithm.beta above 0",
    ),
    Rule(
        ("algorithm.clip_range_high",),
        lambda config: config.algorithm.surrogate in ("clipped", "cispo"),
        "algorithm.surrogate: clipped or cispo",
    ),
    Rule(
        ("algorithm.clip_delta",),
        lambda config: config.algorithm.surrogate == "clipped",
        "algorithm.surrogate: clipped",
    ),
    Rule(
        ("algorithm.sapo",),
        lambda config: config.algorithm.surrogate == "sapo",
        "algorithm.surrogate: sapo",
    ),
    Rule(
        ("algorithm.ratio_level",),
        lambda config: config.algorithm.surrogate != "vespo",
        "another algorithm.surrogate than vespo, whose ratio is always a sequence's",
    ),
    Rule(
        tuple(f"algorithm.{name}" for name in ("ratio_level", "surrogate", "clip_delta")),
        lambda config: _ratio_moves(config),
        "a ratio other than 1: train.updates_per_step or train.inner_epochs above 1, "
        "train.one_step_off, or rollout.old_log_prob: rollout",
    ),
    Rule(
        tuple(f"train.sft.{name}" for name in SftConfig.model_fields if name != "coefficient"),
        lambda config: config.train.sft.enabled,
        "train.sft.coefficient above 0",
    ),
    Rule(
        tuple(f"data.sft.{name}" for name in PicturesConfig.model_fields),
        lambda config: config.train.sft.enabled,
        "train.sft.coefficient above 0",
    ),
    Rule(
        ("data.sft.scenes",),
        lambda config: not config.train.sft.enabled or config.data.sft.source == "scenes",
        "data.sft.source: scenes",
    ),
    Rule(
        ("data.sft.sampling_mode",),
        lambda config: not config.train.sft.enabled or config.data.sft.source == "files",
        "data.sft.source: files",
    ),
    Rule(
        ("train.in_flight",), lambda config: config.train.one_step_off, "train.one_step_off: true"
    ),
    Rule(
        ("train.ema.decay", "train.ema.every"),
        lambda config: config.train.ema.enabled,
        "train.ema.enabled: true",
    ),
    Rule(
        tuple(f"launch.wait_for_gpus.{name}" for name in GpuWaitConfig.model_fields),
        lambda config: gpus_wanted(config) > 0,
        "a GPU to wait for: launch.device auto or cuda, or a server with GPUs",
    ),
    Rule(
        tuple(
            f"launch.wait_for_gpus.{name}"
            for name in GpuWaitConfig.model_fields
            if name != "enabled"
        ),
        lambda config: config.launch.wait_for_gpus.enabled or not gpus_wanted(config),
        "launch.wait_for_gpus.enabled: true",
    ),
    Rule(
        (
            *("launch.master_address", "launch.master_port"),
            *("launch.join_limit", "launch.launcher"),
        ),
        lambda config: config.launch.nodes > 1,
        "launch.nodes above 1",
    ),
    Rule(
        ("launch.zero_stage",),
        lambda config: config.launch.engine == "deepspeed",
        "launch.engine: deepspeed",
    ),
    Rule(
        ("launch.zero_tuning",),
        lambda config: config.launch.engine == "deepspeed" and config.launch.zero_stage == 3,
        "launch.engine: deepspeed with launch.zero_stage: 3",
    ),
)


def _data_sets(config: RunConfig) -> Sequence[DataConfig]:
    return [config.data, *config.data.parts().values()]


def _has_sound_rows(data: DataConfig) -> bool:
    """Whether malformed rows of its files can be told from others."""
    return "unigenbench" in (data.source, heldout_format(data)) or (
        heldout_format(data) == "deepgen_eval"
    )


def _ratio_moves(config: RunConfig) -> bool:
    """Whether a policy ever learns from what another one sampled."""
    train = config.train
    updates = train.updates_per_step * train.inner_epochs
    return updates > 1 or train.one_step_off or config.rollout.old_log_prob == "rollout"


def _has_usual_targets(config: RunConfig) -> bool:
    usual = LORA_TARGETS[config.policy.family]
    return config.policy.lora.target_modules == list(usual)


def without_effect(config: RunConfig) -> Iterator[tuple[str, str]]:
    """Key and reason of every setting that is not the default and does nothing here."""
    for rule in RULES:
        if not rule.matters(config):
            for key in rule.keys:
                if _is_set(config, key):
                    yield key, f"does nothing here: it needs {rule.needs}"


def _is_set(config: RunConfig, key: str) -> bool:
    """Whether it has another value than the default. A resolved file names every key, so that a
    key is there says nothing."""
    *path, name = key.split(".")
    section: BaseModel = reduce(getattr, path, config)
    field = type(section).model_fields[name]
    return bool(getattr(section, name) != field.get_default(call_default_factory=True))
