"""Why a plan cannot work: the field to change, and the reason. One rule is a `yield`."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator

from atelier.config.algorithm_rules import algorithm_rejections
from atelier.config.apart_rules import apart_rejections
from atelier.config.custom_rewards import function_problem
from atelier.config.divisors import counted, nearest_divisors, nearest_multiples
from atelier.config.log_probs import log_prob_name
from atelier.config.model_rules import HUB_ID
from atelier.config.paths import from_root
from atelier.config.placement import managed_servers, placement_conflicts
from atelier.config.policy_rules import policy_rejections
from atelier.config.prompt_files import (
    EDIT_SOURCES,
    FOLDER_FILES,
    WITHOUT_TARGET,
    can_be_had,
    named_files,
)
from atelier.config.reward_names import ours, unset_problem
from atelier.config.schema import RunConfig
from atelier.config.secret_names import without_user
from atelier.config.sections.launch import LaunchConfig
from atelier.config.sections.rewards import JudgedSection, RewardsConfig
from atelier.config.sections.rollout import RolloutConfig, WindowConfig
from atelier.config.sft_rules import sft_rejections
from atelier.config.suite_data import has_edits, has_graphs
from atelier.config.suite_rules import licence_rejections, suite_rejections
from atelier.config.token_rules import token_rejections
from atelier.config.whole_groups import comparing_rewards, images_together
from atelier.environments import DECLARED

Rejections = Iterator[tuple[str, str]]

# Below, log-probabilities of float32 latents are rounding divided by next to nothing.
LEAST_NOISE = 0.01


def rewards_in_use(rewards: RewardsConfig) -> dict[str, float]:
    """Name and weight of every reward that is set."""
    return {name: section.weight for name, section in rewards.sections().items()}


def rejections(config: RunConfig, ranks: int) -> Rejections:
    yield from policy_rejections(config)
    yield from apart_rejections(config, ranks)
    if config.launch.rollout_processes < ranks:
        yield from _batch_rejections(config, ranks)
        yield from _group_rejections(config, ranks)
        yield from sft_rejections(config, config.launch.shares(ranks).training)
    if config.policy.denoises:
        yield from _denoising_rejections(config.rollout)
    yield from algorithm_rejections(config)
    yield from token_rejections(config)
    yield from _sampling_rejections(config, ranks)
    yield from _reward_rejections(config)
    yield from placement_conflicts(config)
    yield from _judge_rejections(config)
    yield from _environment_rejections(config)
    yield from _data_rejections(config)
    yield from _mirror_rejections(config)
    updates = config.train.updates
    if config.train.ema.enabled and config.train.ema.every > updates:
        yield (
            "train.ema.every",
            f"{config.train.ema.every} is more than the {updates} updates of the run: the average "
            "would be the untrained model",
        )
    if config.export.weights == "ema" and not config.train.ema.enabled:
        yield "export.weights", "ema, but train.ema.enabled is false; use raw"


def _batch_rejections(config: RunConfig, ranks: int) -> Rejections:
    train, size = config.train, config.rollout.micro_batch_size
    images = train.prompts_per_step * config.rollout.group_size
    needs_more = config.policy.family == "janus" and config.algorithm.ground_truth.enabled
    if config.rollout.group_size < 2 and not needs_more:  # else token_rules.py says how many
        yield "rollout.group_size", "1 image has no group to be compared with; use 2 or more"
    sharers, who = _sharers(config.launch, ranks)
    parts = train.updates_per_step * sharers
    shareable = images % parts == 0  # by micro-batches of one size or another
    sizes = nearest_divisors(images // parts if shareable else images, size)
    whole = images % size == 0
    if size > images:
        yield (
            "rollout.micro_batch_size",
            f"{size} is more than the {images} images of a step; {sizes} works",
        )
    elif not whole:
        yield (
            "rollout.micro_batch_size",
            f"{size} does not divide the {images} images of a step "
            f"(train.prompts_per_step {train.prompts_per_step} x "
            f"rollout.group_size {config.rollout.group_size}); {sizes} works",
        )
    unit = size if whole else 1
    if (images // unit) % parts:
        step = parts * unit // math.gcd(parts * unit, config.rollout.group_size)
        works = [f"train.prompts_per_step {nearest_multiples(step, train.prompts_per_step)}"]
        if (images // unit) % sharers == 0:
            updates = nearest_divisors(images // unit // sharers, train.updates_per_step)
            works.insert(0, f"train.updates_per_step {updates}")
        if whole and shareable:
            works.insert(0, f"rollout.micro_batch_size {sizes}")
        if not config.launch.rollout_processes and config.launch.nodes == 1:
            works += _fewer_processes(images // unit, train.updates_per_step, ranks)
        what = "micro-batch" if whole else "image"
        yield (
            "train.updates_per_step",
            f"{counted(images // unit, what)} a step cannot be shared "
            f"equally by {train.updates_per_step} update(s) x {who}; what works: "
            f"{', or '.join(works)}",
        )


def _fewer_processes(units: int, updates: int, ranks: int) -> list[str]:
    """The most of them that share the units of an update equally, if any do."""
    if units % updates:
        return []
    return [f"launch.processes {max(n for n in range(1, ranks) if units // updates % n == 0)}"]


def _sharers(launch: LaunchConfig, ranks: int) -> tuple[int, str]:
    """Among how many a step has to be shared equally, and who they are."""
    if not launch.rollout_processes:
        return ranks, f"{ranks} process(es) (launch.processes x launch.nodes)"
    sampling, training = launch.shares(ranks)
    who = f"{sampling} process(es) that sample (launch.rollout_processes)"
    return math.lcm(sampling, training), f"{who}, and by {training} that train"


def _group_rejections(config: RunConfig, ranks: int) -> Rejections:
    """Whole groups are shared by updates and processes where a reward compares their images."""
    comparing = comparing_rewards(config.rewards)
    if not comparing:
        return
    train, rollout = config.train, config.rollout
    sharers, who = _sharers(config.launch, ranks)
    together, parts = images_together(config), train.updates_per_step * sharers
    images = train.prompts_per_step * rollout.group_size
    if images % together or (images // together) % parts:
        sizes = nearest_divisors(rollout.group_size, rollout.micro_batch_size)
        prompts = nearest_multiples(parts, train.prompts_per_step)
        yield (
            "rollout.micro_batch_size",
            f"{comparing[0]} compares the images of a group, so {together} images stay together "
            f"(rollout.group_size {rollout.group_size}, micro-batches of "
            f"{rollout.micro_batch_size}), and the {images} images of a step cannot be shared so "
            f"by {train.updates_per_step} update(s) x {who}; what works: "
            f"rollout.micro_batch_size {sizes} with train.prompts_per_step {prompts}",
        )


def _denoising_rejections(rollout: RolloutConfig) -> Rejections:
    if rollout.num_inference_steps < 2:
        yield (
            "rollout.num_inference_steps",
            "1 step is the last one, which is never stochastic, and has the level 1 only",
        )
    elif rollout.dynamics != "ode":
        yield from _rollout_rejections(rollout)
    yield from _schedule_rejections(rollout)


def _schedule_rejections(rollout: RolloutConfig) -> Rejections:
    if rollout.lowest_level is not None and rollout.schedule != "resolution_shift":
        yield (
            "rollout.lowest_level",
            f"stretches the levels of rollout.schedule resolution_shift, not of {rollout.schedule}",
        )
    if rollout.lowest_level is not None and rollout.tail is not None:
        yield "rollout.tail", "has no place among stretched levels (rollout.lowest_level)"


def _rollout_rejections(rollout: RolloutConfig) -> Rejections:
    if rollout.noise_level < LEAST_NOISE:
        yield (
            "rollout.noise_level",
            f"{rollout.noise_level:g} leaves nothing stochastic to train but rounding; use "
            f"{LEAST_NOISE:g} or more",
        )
    if rollout.dynamics == "cps" and log_prob_name(rollout) != "cps_raw":
        yield (
            "rollout.log_prob",
            f"{rollout.log_prob} assumes a Gaussian whose std does not go to 0, as that of "
            "rollout.dynamics cps does; use cps_raw, or flow_sde",
        )
    yield from _window_rejections(rollout)


def _window_rejections(rollout: RolloutConfig) -> Rejections:
    window, steps = rollout.window, rollout.num_inference_steps
    low, high = window.bounds(steps)
    if window.covers_any_step:
        yield from _any_step_rejections(rollout)
    elif high > steps - 1:
        yield (
            "rollout.window.range",
            f"[{low}, {high}) reaches past the {steps - 1} steps that can be stochastic "
            f"(rollout.num_inference_steps {steps}, the last one never is)",
        )
    elif low >= high:
        yield "rollout.window.range", f"[{low}, {high}) is empty"
    elif window.size > high - low:
        yield (
            "rollout.window.size",
            f"{window.size} does not fit into rollout.window.range [{low}, {high})",
        )
    elif window.moves and window.stride and low + window.stride + window.size > high:
        yield (
            "rollout.window.stride",
            f"{window.stride} leads a window of {window.size} out of rollout.window.range "
            f"[{low}, {high}) at once, so it would never move; use less, or 0 to freeze it",
        )
    if window.strategy == "decay":
        yield from _decay_rejections(window)
    if window.scope != "step" and window.strategy == "fraction":
        yield (
            "rollout.window.scope",
            f"{window.scope}: with rollout.window.strategy fraction all images of a step are "
            "trained at the same steps; use step",
        )
    elif window.scope != "step" and (window.moves or window.strategy == "all"):
        yield (
            "rollout.window.scope",
            f"{window.scope} shares a drawn window; with rollout.window.strategy "
            f"{window.strategy} nothing is drawn",
        )
    if rollout.tail is not None and window.covers_any_step:
        yield (
            "rollout.tail",
            f"rollout.window.strategy {window.strategy} leaves no steps behind the window",
        )
    if rollout.tail is not None and window.scope != "step":
        yield (
            "rollout.tail",
            "the images of a micro-batch take the same steps; use rollout.window.scope step",
        )


def _any_step_rejections(rollout: RolloutConfig) -> Rejections:
    """Of windows whose steps may lie anywhere."""
    window, steps = rollout.window, rollout.num_inference_steps
    low, high = window.bounds(steps)
    drawn = window.longest(steps)
    if drawn > high - low:
        yield (
            "rollout.window.fraction",
            f"{window.fraction:g} of {steps} steps (rollout.num_inference_steps) is {drawn}, and "
            f"{high - low} can be stochastic, which the last is not; lower it, or set "
            "rollout.window.include_last with another rollout.dynamics than cps",
        )
    if window.include_last and rollout.dynamics == "cps":
        yield (
            "rollout.window.include_last",
            "the last step of rollout.dynamics cps has no noise, so that nothing is drawn there "
            "and its ratio is always 1; use false, or flow_sde or dance_sde",
        )


def _decay_rejections(window: WindowConfig) -> Rejections:
    if window.fewest_steps_per_window > window.steps_per_window:
        yield (
            "rollout.window.fewest_steps_per_window",
            f"{window.fewest_steps_per_window} at the end is more than the "
            f"{window.steps_per_window} of rollout.window.steps_per_window at the beginning",
        )


def _sampling_rejections(config: RunConfig, ranks: int) -> Rejections:
    train, rollout = config.train, config.rollout
    if train.resample_rounds and rollout.group_size % rollout.micro_batch_size:
        yield (
            "train.resample_rounds",
            f"a micro-batch has to be of one group: rollout.micro_batch_size "
            f"{rollout.micro_batch_size} does not divide rollout.group_size {rollout.group_size}",
        )
    needed = (1 + train.resample_rounds) * train.prompts_per_step
    if train.resample_rounds and needed > config.data.most_train_prompts:
        yield (
            "train.resample_rounds",
            f"{train.resample_rounds} rounds of other prompts may need {needed} in a step, and "
            f"data.train_prompts is {config.data.most_train_prompts}",
        )
    shards_weights = config.launch.engine == "deepspeed" and config.launch.zero_stage == 3
    if train.resample_rounds and shards_weights and ranks > 1:
        yield (
            "train.resample_rounds",
            "sampling needs all ranks with launch.zero_stage 3, and only some have images to "
            "sample again; use zero_stage 2 or ddp",
        )
    if train.one_step_off and train.resample_rounds:
        yield (
            "train.resample_rounds",
            "other images would be sampled by other weights; not with train.one_step_off",
        )
    ahead = train.one_step_off or config.launch.rollout_processes  # which asks for the former
    if ahead and rollout.old_log_prob == "recompute":
        yield (
            "rollout.old_log_prob",
            "recomputed by weights that have moved on, they would correct nothing; use rollout "
            "with train.one_step_off",
        )


def _reward_rejections(config: RunConfig) -> Rejections:
    weights = rewards_in_use(config.rewards)
    if not any(weights.values()):
        why = "all weights are 0" if weights else "none is set"
        names = ", ".join(
            sorted(RewardsConfig.model_fields.keys() - {"min_valid_share", "deadline"})
        )
        yield "rewards", f"{why}; give one a weight, such as rewards.ocr.weight (known: {names})"
    for name in ("ocr", "vlm_ocr"):
        if getattr(config.rewards, name) is not None and _no_target(config):
            yield f"rewards.{name}", f"needs a text to look for, and {_no_target(config)} has none"
    yield from _graph_rejections(config)
    yield from _edit_rejections(config)
    for key, function in _named_functions(config.rewards):
        if problem := function_problem(function):
            yield key, problem


def _graph_rejections(config: RunConfig) -> Rejections:
    """Rewards of knowledge graphs beside prompts that surely have none."""
    data = config.data
    is_graph = has_graphs(data, data.source)
    if config.rewards.mmmg is not None and not is_graph and data.source != "deepgen":
        yield "rewards.mmmg", "needs knowledge graphs: data.source mmmg, or data.scene_task graph"
    if config.rewards.scene_graph is not None and not (is_graph and data.source == "scenes"):
        yield "rewards.scene_graph", "needs graphs of scenes: data.scene_task graph"


def _edit_rejections(config: RunConfig) -> Rejections:
    """Rewards of edits beside prompts that are none."""
    data = config.data
    is_edit = has_edits(data, data.source)
    if config.rewards.complex_edit is not None and not is_edit and data.source != "deepgen":
        sources = " or ".join(EDIT_SOURCES)
        yield "rewards.complex_edit", f"needs edits: data.source {sources}, or data.scene_task edit"
    if config.rewards.scene_edit is not None and not (is_edit and data.source == "scenes"):
        yield "rewards.scene_edit", "needs edits of scenes: data.scene_task edit"


def _named_functions(rewards: RewardsConfig) -> Iterator[tuple[str, str]]:
    """Key and `module:name` of every function that a reward names."""
    for name, section in rewards.custom.items():
        yield f"rewards.custom.{name}.function", section.function
    if rewards.geneval is not None:
        yield "rewards.geneval.detector", rewards.geneval.detector


def _judge_rejections(config: RunConfig) -> Rejections:
    for name, judge in config.judges.items():
        if judge.placement == "remote" or judge.server.command is not None:
            continue
        if problem := _model_problem(judge.model):
            yield f"judges.{name}.model", problem
        if judge.vllm.sleep and config.train.one_step_off:
            yield (
                f"judges.{name}.vllm.sleep",
                "scores are made while weights are updated with train.one_step_off, so it can "
                "never sleep",
            )
    for path, section in config.rewards.by_path().items():
        if not isinstance(section, JudgedSection) or section.placement == "in_process":
            continue
        if section.judge in config.judges and config.judges[section.judge].vllm.sleep:
            yield (
                f"{path}.placement",
                f"the trainer sends {section.judge} to sleep, so it must be the one who asks: "
                "use in_process",
            )


def _model_problem(model: str) -> str | None:
    """Why a judge's model can be neither a checkpoint here nor one of a hub; None else."""
    folder = from_root(model)
    if folder.is_dir():
        lacks = not (folder / "config.json").is_file()
        return f"{model} is no checkpoint of a model: it has no config.json" if lacks else None
    if not HUB_ID.fullmatch(model):
        return f"{without_user(model)} is neither a directory nor a hub id"
    # A hub id looks like a path; one that begins like a folder of the repository is a mistake.
    if "/" in model and folder.parent.is_dir():
        return f"there is no folder {model}"
    return None


def _environment_rejections(config: RunConfig) -> Rejections:
    for label, section in managed_servers(config):
        name, key = section.server.environment, label.rpartition("-")[0]
        if name is None or name in DECLARED or (from_root(name) / "bin" / "python").exists():
            continue
        yield (
            f"{key}.server.environment",
            f"{name!r} is neither declared below environments/ ({', '.join(DECLARED)}) nor a "
            "folder with bin/python",
        )


def _data_rejections(config: RunConfig) -> Rejections:
    data = config.data
    for one in named_files(data):
        if not can_be_had(one.path):
            folder = FOLDER_FILES.get(one.source, {}).get(one.part, one.path.name)
            hint = f", and no folder with {folder}" if one.path.name != folder else ""
            yield one.key, f"there is no file {one.path}{hint}"
    if data.source == "scenes" and data.heldout_path is not None and data.heldout_source is None:
        yield "data.heldout_source", "is required: scenes are no format of data.heldout_path"
    curriculum = data.curriculum
    if curriculum.scores is not None and curriculum.levels > config.train.steps:
        yield (
            "data.curriculum.levels",
            f"{curriculum.levels} levels in train.steps {config.train.steps}: have no more levels "
            "than steps",
        )
    if config.train.prompts_per_step > (most := data.most_train_prompts):
        yield (
            "train.prompts_per_step",
            f"{config.train.prompts_per_step} is more than data.train_prompts {most}",
        )
    yield from _mixture_rejections(config)
    yield from licence_rejections(data)
    yield from suite_rejections(config)


def _mixture_rejections(config: RunConfig) -> Rejections:
    """Mixes of rewards that are not set."""
    if config.data.source != "mixture":
        return
    known = config.rewards.sections()
    for name, dataset in config.data.datasets.items():
        for reward in dataset.rewards:
            if not {reward, ours(reward)} & known.keys():
                problem = unset_problem(ours(reward), known)
                yield f"data.datasets.{name}.rewards.{reward}", f"data set {name} {problem}"


def _mirror_rejections(config: RunConfig) -> Rejections:
    for name, _ in config.tracking.mirrors():
        if importlib.util.find_spec(name) is None:
            yield (
                f"tracking.{name}.enabled",
                f"the package {name} is not installed: .venv/bin/pip install --editable "
                f"'.[{name}]'",
            )


def _no_target(config: RunConfig) -> str | None:
    if config.data.source in WITHOUT_TARGET:
        return f"data.source {config.data.source}"
    if config.data.source == "scenes" and config.data.scene_task != "draw":
        return f"data.scene_task {config.data.scene_task}"
    if config.data.source == "scenes" and config.data.scene_kind == "shapes":
        return "data.scene_kind shapes"
    return None  # of a mixture, each data set says for itself
