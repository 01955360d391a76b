"""Which data a suite of held-out images needs, and which judge it may ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from atelier.config.complex_edit import LICENCE
from atelier.config.judge import JudgeConfig
from atelier.config.prompt_files import PAIR_SOURCES
from atelier.config.reward_names import ours
from atelier.config.rewards import JudgedSection
from atelier.config.suite_data import (
    LICENSED,
    MISFITS,
    are_scenes,
    data_has_words,
    has_pairs,
    heldout_format,
    suite_for,
    usable_heldout,
)
from atelier.legible import alike

if TYPE_CHECKING:
    from atelier.config.schema import DataConfig, EvaluationConfig, RunConfig

Problems = Iterator[tuple[str, str]]
MIXTURES = ("deepgen", "mixture")  # sources of several data sets with weights


def judge_is_reward(config: RunConfig) -> bool:
    """Whether the suite's judge, or another of the same model, is asked by a reward that counts.

    What a policy is trained on rises, so such a judge says little of what was learned (spec janus
    7, known validity concern).
    """
    name = config.evaluation.judge
    if name is None:
        return False
    model = config.judges[name].model
    asked = [
        one.judge
        for one in config.rewards.sections().values()
        if isinstance(one, JudgedSection) and one.weight != 0
    ]
    return any(config.judges[other].model == model for other in asked)


def data_conflicts(data: DataConfig) -> Problems:
    """Key and problem of settings of `data` that exclude each other."""
    yield from ((f"data.curriculum.{key}", text) for key, text in data.curriculum.conflicts())
    if data.curriculum.scores is not None and data.source in MIXTURES:
        yield (
            "data.curriculum.scores",
            f"a curriculum and the sample weights of data.source {data.source} would both say how "
            "often a prompt is drawn; use one of them",
        )
    if data.source == "mixture":
        yield from _mixture_conflicts(data)
    yield from ((f"data.sft.{key}", text) for key, text in data.sft.conflicts())
    if data.unpaired_path is not None and data.source not in PAIR_SOURCES:
        sources = " or ".join(PAIR_SOURCES)
        yield "data.unpaired_path", f"is added to pairs: it needs data.source {sources}"
    if data.heldout_source is not None and data.heldout_path is None:
        yield "data.heldout_source", "is the format of data.heldout_path, which is not set"
    if data.source != "scenes" or data.scene_task == "draw":
        return
    if data.scene_kind != "shapes":
        words = {"edit": "words are not edited", "graph": "graphs have no words"}
        yield (
            "data.scene_task",
            f"{data.scene_task} needs data.scene_kind shapes: {words[data.scene_task]}",
        )
    if data.scene_pairs:
        yield (
            "data.scene_pairs",
            f"{data.scene_task}s do not come in pairs (data.scene_task {data.scene_task})",
        )


def _mixture_conflicts(data: DataConfig) -> Problems:
    if not data.datasets:
        yield "data.datasets", "is required when data.source is mixture"
    for key in ("path", "heldout_path"):
        if getattr(data, key) is not None:
            yield f"data.{key}", f"does nothing with data.source mixture: data.datasets.NAME.{key}"
    for name, dataset in data.datasets.items():
        yield from ((f"data.datasets.{name}.{key}", text) for key, text in dataset.conflicts())
    for one, other in alike(data.datasets):
        problem = f"is called like {one} but for underscores, and both would be one metric; rename"
        yield f"data.datasets.{other}", problem


def suite_conflicts(evaluation: EvaluationConfig, judges: Mapping[str, JudgeConfig]) -> Problems:
    """Key and problem of a suite's judge that cannot be asked."""
    for key, problem in evaluation.mmmg.region_conflicts():
        yield f"evaluation.mmmg.{key}", problem
    for suite, name in evaluation.judges_of_suites.items():
        key = f"evaluation.{suite}.judge"
        if name is not None and name not in judges:
            known = ", ".join(judges) or "none"
            yield key, f"{name!r} is not one of judges (declared: {known})"
        elif name is not None and judges[name].placement == "in_process":
            yield from _wordless_conflicts(evaluation, suite, name)
    asked = judges.get(evaluation.judge or "")
    if asked is not None and asked.vllm.sleep:
        yield (
            f"evaluation.{evaluation.suite}.judge",
            f"{evaluation.judge} sleeps while weights are updated (vllm.sleep), when images may "
            "have to be scored; use another",
        )


def _wordless_conflicts(evaluation: EvaluationConfig, suite: str, name: str) -> Problems:
    """A judge that says yes or no only, in a suite that needs lists or marks."""
    if evaluation.asked_by(suite).in_words:
        may_each = suite in ("mmmg", "unigenbench")
        or_each = f", or evaluation.{suite}.ask to each" if may_each else ""
        yield (
            f"evaluation.{suite}.judge",
            f"{name} is in_process and answers yes or no only; this suite needs words: set "
            f"judges.{name}.placement to managed or remote{or_each}",
        )


def suite_rejections(config: RunConfig) -> Problems:
    """Key and problem of a suite or a step that does not fit the data."""
    data, evaluation = config.data, config.evaluation
    heldout = heldout_format(data)
    if has_pairs(data, data.source) and config.train.prompts_per_step % 2:
        yield (
            "train.prompts_per_step",
            f"{config.train.prompts_per_step} must be even: training prompts come in pairs",
        )
    if problem := MISFITS[evaluation.suite](data, heldout):
        yield "evaluation.suite", problem
    if evaluation.suite == "paircomp":
        yield from _halved_pairs(evaluation)
    yield from _missing_judge(config, heldout)


def _halved_pairs(evaluation: EvaluationConfig) -> Problems:
    for name in ("prompts", "periodic_prompts"):
        if getattr(evaluation, name) % 2:
            yield f"evaluation.{name}", f"{getattr(evaluation, name)} would cut a pair in two"


def _missing_judge(config: RunConfig, heldout: str) -> Problems:
    evaluation = config.evaluation
    suite, declared = evaluation.suite, _declared(config.judges)
    if suite not in evaluation.judges_of_suites or evaluation.judge:
        return
    if suite == "yes_no":
        yield "evaluation.yes_no.judge", f"is required: {declared}"
    elif not are_scenes(config.data, heldout):
        yield (
            f"evaluation.{suite}.judge",
            f"is required: the exact checker scores scenes only, not {heldout}; {declared}",
        )


def licence_rejections(data: DataConfig) -> Problems:
    """Key and problem of published data whose licence is not accepted."""
    if (key := licensed(data)) and data.accept_licence != LICENCE:
        yield (
            "data.accept_licence",
            f"{key} complex_edit is published under {LICENCE.upper()}: with attribution, and for "
            f"no commercial use; if yours keeps to that, set data.accept_licence={LICENCE}",
        )


def licensed(data: DataConfig) -> str | None:
    """Which key names data that come with a licence to be accepted; None where none does."""
    if data.source == LICENSED:
        return "data.source"
    return "data.heldout_source" if data.heldout_source == LICENSED else None


def suite_warnings(config: RunConfig) -> Problems:
    """Key and warning of a suite whose results say less than they seem to."""
    if config.data.source == LICENSED:
        yield (
            "data.source",
            "complex_edit is a test set: whoever trains on it can report no result of that "
            "benchmark, not even on pictures that were held out",
        )
    yield from _mixture_warnings(config)
    there = usable_heldout(config.data, config.evaluation.suite)
    for name in ("prompts", "periodic_prompts"):
        if (asked := getattr(config.evaluation, name)) > there:
            yield f"evaluation.{name}", f"{asked}, but {_heldout(config.data, there)}: all of them"
    if config.evaluation.suite == "ocr" and not data_has_words(config.data):
        yield (
            "evaluation.suite",
            "ocr finds no text to look for in these scenes, so it has no score but gold; use "
            f"{suite_for(config.data, 'scenes')}",
        )
    if judge_is_reward(config):
        yield (
            f"evaluation.{config.evaluation.suite}.judge",
            f"{config.evaluation.judge} is the judge that is trained on, or the same model: its "
            "scores rise whatever is learned, and the report says so in red; name another",
        )


def _heldout(data: DataConfig, there: int) -> str:
    """How many of the held-out prompts are of use."""
    most = data.most_heldout_prompts
    words = f"data.heldout_prompts is {most}"
    return words if there == most else f"{words}, of which {there} come in pairs (data.scene_pairs)"


def _mixture_warnings(config: RunConfig) -> Problems:
    """Rewards that are never asked."""
    datasets = config.data.datasets.values() if config.data.source == "mixture" else ()
    if not datasets or not all(one.rewards for one in datasets):
        return
    named = {name for one in datasets for name, weight in one.rewards.items() if weight}
    for path in config.rewards.by_path():
        name = path.rpartition(".")[2]
        if name not in named | {ours(one) for one in named}:
            yield path, "no data set of the mixture is rewarded by it, so it is never asked"


def _declared(judges: Mapping[str, JudgeConfig]) -> str:
    """Which judges a suite may name."""
    return f"name one of {', '.join(judges)}" if judges else "declare one in judges, and name it"
