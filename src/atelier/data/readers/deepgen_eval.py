"""DeepGen-RL evaluation sets: a YAML of prompt files, each with how its images are made and scored.

Source: DeepGen-RL. Deviation: a run measures all of its held-out images alike, so what the
YAML says of that is not followed but compared with the run's settings (`differences`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Protocol

import yaml

from atelier.data.prompts import Prompt
from atelier.data.readers import plain, unigenbench
from atelier.data.readers.problems import Problems
from atelier.data.readers.yaml_nodes import compose, file_of, items, line_of, mapping, scalar

DATASET_KEYS = ("name", "path", "duplicates", "cfg_scale", "num_inference_steps", "scoring")
_ELSEWHERE = dict.fromkeys(
    ("sampling_mode", "sample_weight", "rewards"),
    "a training YAML, which data.source deepgen reads; this is an evaluation one",
)


@dataclass(frozen=True)
class EvaluationDataset:
    """One prompt file, and how its images are to be made; None where the YAML does not say.

    Attributes:
        duplicates: images of each prompt.
        scoring: the suite; None where its images are not scored.
    """

    name: str
    path: Path
    duplicates: int | None
    cfg_scale: float | None
    num_inference_steps: int | None
    scoring: str | None


class Measured(Protocol):
    """How a run measures its held-out images (atelier.config.sections.evaluation)."""

    @property
    def suite(self) -> str: ...
    @property
    def images_of_a_prompt(self) -> int: ...
    @property
    def guidance_scale(self) -> float: ...
    @property
    def num_inference_steps(self) -> int: ...


def read(path: Path) -> list[Prompt]:
    """The prompts of all data sets, with metadata {"dataset": name} and those of their formats.

    Raises:
        DataError: the YAML or one of its prompt files is not what it should be.
    """
    return [
        one
        for dataset_id, dataset in enumerate(read_datasets(path))
        for one in _labelled(_reader(dataset).read(dataset.path), dataset_id, dataset)
    ]


def read_sound(path: Path) -> tuple[list[Prompt], list[str]]:
    """The prompts of the rows that are not malformed, and what is wrong with the others, of the
    files whose format tells them apart (unigenbench).

    Raises:
        DataError: as `read`; or no row of a file is left.
    """
    prompts: list[Prompt] = []
    wrong: list[str] = []
    for dataset_id, dataset in enumerate(read_datasets(path)):
        if _reader(dataset) is unigenbench:
            found, told = unigenbench.read_sound(dataset.path)
            wrong += told
        else:
            found = plain.read(dataset.path)
        prompts += _labelled(found, dataset_id, dataset)
    return prompts, wrong


def _reader(dataset: EvaluationDataset) -> ModuleType:
    return unigenbench if dataset.scoring == "unigenbench" else plain


def _labelled(
    prompts: Sequence[Prompt], dataset_id: int, dataset: EvaluationDataset
) -> Iterator[Prompt]:
    for one in prompts:
        metadata = {**one.metadata, "dataset": dataset.name}
        yield replace(one, dataset_id=dataset_id, metadata=metadata)


def read_datasets(path: Path) -> list[EvaluationDataset]:
    """The YAML itself; prompt files are looked for next to it but not opened.

    Raises:
        DataError: not YAML, unknown keys, bad values, missing files: all with line and key.
    """
    problems = Problems(path)
    top = mapping(problems, compose(path), "the file", ("datasets",), _ELSEWHERE)
    found = [
        _dataset(problems, path.parent, f"datasets[{index}]", node)
        for index, node in enumerate(items(problems, top.get("datasets"), "datasets"))
    ]
    problems.raise_if_any()
    return found


def differences(
    datasets: Sequence[EvaluationDataset], measured: Measured
) -> Iterator[tuple[str, str]]:
    """Key of the section `evaluation` and what is said otherwise for it, a data set each."""
    for one in datasets:
        wanted = {
            "images_per_prompt": (one.duplicates, measured.images_of_a_prompt),
            "guidance_scale": (one.cfg_scale, measured.guidance_scale),
            "num_inference_steps": (one.num_inference_steps, measured.num_inference_steps),
            "suite": (one.scoring, measured.suite),
        }
        for key, (theirs, ours) in wanted.items():
            if theirs is not None and theirs != ours:
                yield key, f"{ours}, and data set {one.name} asks for {theirs}"


def _dataset(problems: Problems, folder: Path, where: str, node: yaml.Node) -> EvaluationDataset:
    entry = mapping(problems, node, where, DATASET_KEYS, _ELSEWHERE)
    for key in ("name", "path"):
        if key not in entry and isinstance(node, yaml.MappingNode):
            problems.add(line_of(node), f"{where} has no {key}")
    return EvaluationDataset(
        name=scalar(problems, entry.get("name"), f"{where}.name", str) or "",
        path=file_of(problems, entry.get("path"), f"{where}.path", folder),
        duplicates=_count(problems, entry.get("duplicates"), f"{where}.duplicates"),
        cfg_scale=scalar(problems, entry.get("cfg_scale"), f"{where}.cfg_scale", float),
        num_inference_steps=_count(
            problems, entry.get("num_inference_steps"), f"{where}.num_inference_steps"
        ),
        scoring=_suite(problems, entry.get("scoring"), f"{where}.scoring"),
    )


def _count(problems: Problems, node: yaml.Node | None, where: str) -> int | None:
    value: float | None = scalar(problems, node, where, float)
    if node is None or value is None:
        return None
    if not value.is_integer() or value < 1:
        problems.add(line_of(node), f"{where} {value:g}: a whole number, 1 or more")
        return None
    return int(value)


def _suite(problems: Problems, node: yaml.Node | None, where: str) -> str | None:
    """Its name, of `unigenbench`, `unigenbench/zh`, {type: unigenbench, language: zh} or a list of
    one of them."""
    if isinstance(node, yaml.SequenceNode) and len(node.value) == 1:
        return _suite(problems, node.value[0], where)
    if isinstance(node, yaml.MappingNode):
        node = mapping(problems, node, where, ("type", "language")).get("type")
    name: str | None = scalar(problems, node, where, str)
    return name.partition("/")[0] if name else None
