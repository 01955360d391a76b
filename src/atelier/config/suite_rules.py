"""Which data a suite of held-out images needs, and which judge it may ask."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from atelier.config.complex_edit import LICENCE
from atelier.config.judge import JudgeConfig
from atelier.config.prompt_files import EDIT_SOURCES, PAIR_SOURCES, WITHOUT_TARGET
from atelier.config.reward_names import ours
from atelier.config.rewards import JudgedSection
from atelier.legible import alike

if TYPE_CHECKING:
    from atelier.config.schema import DataConfig, EvaluationConfig, RunConfig

Problems = Iterator[tuple[str, str]]
MIXTURES = ("deepgen", "mixture")  # sources of several data sets with weights
LICENSED = "complex_edit"  # the source whose licence is to be accepted


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
    ways = {"mmmg": evaluation.mmmg.ask, "unigenbench": evaluation.unigenbench.ask}
    in_lists = ways.get(suite) == "together"
    if suite == "complex_edit" or in_lists:
        or_each = f", or evaluation.{suite}.ask to each" if in_lists else ""
        yield (
            f"evaluation.{suite}.judge",
            f"{name} is in_process and answers yes or no only; this suite needs words: set "
            f"judges.{name}.placement to managed or remote{or_each}",
        )


def suite_rejections(config: RunConfig) -> Problems:
    """Key and problem of a suite or a step that does not fit the data."""
    data, evaluation = config.data, config.evaluation
    heldout = (data.heldout_source if data.heldout_path else None) or data.source
    if has_pairs(data, data.source) and config.train.prompts_per_step % 2:
        yield (
            "train.prompts_per_step",
            f"{config.train.prompts_per_step} must be even: training prompts come in pairs",
        )
    if evaluation.suite == "scenes" and not _asks_for_scenes(data, heldout):
        yield (
            "evaluation.suite",
            "scenes needs data.source scenes, and data.scene_task draw; prompts of any kind have "
            "yes_no, with a judge (evaluation.yes_no.judge)",
        )
    if evaluation.suite == "ocr" and _lacks_target(data, heldout):
        yield (
            "evaluation.suite",
            f"ocr needs a text to look for, and the held-out prompts of {heldout} have none; use "
            f"{_suite_for(data, heldout)}",
        )
    if evaluation.suite == "yes_no" and has_edits(data, heldout):
        yield "evaluation.suite", "yes_no is asked about prompts, and these are edits; use editing"
    if evaluation.suite == "paircomp":
        yield from _paircomp_rejections(data, evaluation, heldout)
    if evaluation.suite == "editing" and not has_edits(data, heldout):
        sources = " or ".join(EDIT_SOURCES)
        yield (
            "evaluation.suite",
            f"editing needs held-out edits: data.source {sources}, or data.scene_task edit",
        )
    if evaluation.suite == "complex_edit" and not has_levels(data, heldout):
        yield (
            "evaluation.suite",
            f"complex_edit needs held-out edits of levels: data.source {LICENSED}, or "
            "data.scene_task edit",
        )
    if evaluation.suite == "mmmg" and not has_graphs(data, heldout):
        yield (
            "evaluation.suite",
            "mmmg needs held-out knowledge graphs: data.source mmmg, or data.scene_task graph",
        )
    if evaluation.suite == "unigenbench" and not has_test_points(data, heldout):
        yield (
            "evaluation.suite",
            "unigenbench needs held-out test points: data.source unigenbench or a mixture with it, "
            "or scenes with data.scene_task draw",
        )
    may_ask = evaluation.suite in evaluation.judges_of_suites
    if evaluation.suite == "yes_no" and not evaluation.judge:
        yield "evaluation.yes_no.judge", f"is required: {_declared(config.judges)}"
    elif may_ask and heldout != "scenes" and not evaluation.judge:
        yield (
            f"evaluation.{evaluation.suite}.judge",
            f"is required: the exact checker scores scenes only, not {heldout}; "
            f"{_declared(config.judges)}",
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
    for name in ("prompts", "periodic_prompts"):
        asked, there = getattr(config.evaluation, name), config.data.most_heldout_prompts
        if asked > there:
            yield f"evaluation.{name}", f"{asked}, but data.heldout_prompts is {there}: all of them"
    if config.evaluation.suite == "ocr" and not data_has_words(config.data):
        yield (
            "evaluation.suite",
            "ocr finds no text to look for in these scenes, so it has no score but gold; use "
            f"{_suite_for(config.data, 'scenes')}",
        )
    if judge_is_reward(config):
        yield (
            f"evaluation.{config.evaluation.suite}.judge",
            f"{config.evaluation.judge} is the judge that is trained on, or the same model: its "
            "scores rise whatever is learned, and the report says so in red; name another",
        )


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


def _paircomp_rejections(data: DataConfig, evaluation: EvaluationConfig, heldout: str) -> Problems:
    if not has_pairs(data, heldout):
        sources = " or ".join(PAIR_SOURCES)
        yield (
            "evaluation.suite",
            f"paircomp needs held-out pairs: data.source {sources}, or data.scene_pairs above 0",
        )
    for name in ("prompts", "periodic_prompts"):
        if getattr(evaluation, name) % 2:
            yield f"evaluation.{name}", f"{getattr(evaluation, name)} would cut a pair in two"


def _asks_for_scenes(data: DataConfig, heldout: str) -> bool:
    """Whether every held-out prompt of a source asks for a scene to be drawn."""
    if heldout == "mixture":
        return all(one.source == "scenes" for one in data.datasets.values())
    return heldout == "scenes" and data.scene_task == "draw"


def _suite_for(data: DataConfig, heldout: str) -> str:
    """The suite that was made for such prompts."""
    if has_pairs(data, heldout):
        return "paircomp"
    if has_edits(data, heldout):
        return "complex_edit" if heldout == LICENSED else "editing"
    if has_graphs(data, heldout):
        return "mmmg"
    return heldout if heldout in ("scenes", "unigenbench") else "yes_no"


def _lacks_target(data: DataConfig, heldout: str) -> bool:
    """Whether held-out prompts of a format surely have no text to look for. JSON lines of plain
    prompts may: their other keys are metadata."""
    if heldout == "mixture":
        return all(one.without_target() for one in data.datasets.values())
    path = data.heldout_path or data.path or ""
    return heldout in WITHOUT_TARGET and not (heldout == "plain" and path.endswith(".jsonl"))


def _declared(judges: Mapping[str, JudgeConfig]) -> str:
    """Which judges a suite may name."""
    return f"name one of {', '.join(judges)}" if judges else "declare one in judges, and name it"


def data_has_words(data: DataConfig) -> bool:
    """Whether held-out prompts may ask for a text; files are believed."""
    if (data.heldout_path and data.heldout_source) or data.source != "scenes":
        return True
    return data.scene_task == "draw" and data.scene_kind != "shapes"


def has_pairs(data: DataConfig, source: str) -> bool:
    """Whether prompts of a source come in pairs."""
    return data.scene_pairs > 0 if source == "scenes" else source in PAIR_SOURCES


def has_graphs(data: DataConfig, source: str) -> bool:
    """Whether prompts of a source have knowledge graphs."""
    return data.scene_task == "graph" if source == "scenes" else source == "mmmg"


def has_test_points(data: DataConfig, source: str) -> bool:
    """Whether prompts of a source, or some of a mixture's, have test points."""
    if source == "mixture":
        return any(has_test_points(one, one.source) for one in data.parts().values())
    if source == "scenes":
        return data.scene_task == "draw"
    return source in ("unigenbench", "deepgen_eval")


def has_levels(data: DataConfig, source: str) -> bool:
    """Whether instructions of a source are of levels."""
    return data.scene_task == "edit" if source == "scenes" else source == LICENSED


def has_edits(data: DataConfig, source: str) -> bool:
    """Whether prompts of a source ask for changes of images."""
    return data.scene_task == "edit" if source == "scenes" else source in EDIT_SOURCES
