"""Settings of the data, and of a suite and its judge, that exclude each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from atelier.config.judged import undeclared
from atelier.config.prompt_files import PAIR_SOURCES
from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.legible import alike

Problems = Iterator[tuple[str, str]]
MIXTURES = ("deepgen", "mixture")  # sources of several data sets with weights


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
            yield key, undeclared(name, judges)
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
