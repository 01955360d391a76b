"""Which data a suite of held-out images needs, and which judge it may ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atelier.config.reward_names import ours
from atelier.config.schema import RunConfig
from atelier.config.sections.complex_edit import LICENCE
from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import JudgedSection
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

Problems = Iterator[tuple[str, str]]


def judge_is_reward(config: RunConfig) -> bool:
    """Whether the suite's judge, or another of the same model, is asked by a reward that counts.

    What a policy is trained on rises, so such a judge says little of what was learned.
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
