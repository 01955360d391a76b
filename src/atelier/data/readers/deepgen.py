"""DeepGen-RL training mixtures: a YAML of prompt files, each with weight and reward mix.

Source: spec/deepgen.md 4.1-4.3. Deviation: a dataset without rewards is refused, not trained on
nothing; a dataset that is rewarded by OCR must have a quoted target in every line.
"""

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import yaml

from atelier.data.prompts import Prompt
from atelier.data.readers import ocr_text, plain
from atelier.data.readers.problems import Problems, did_you_mean, read_text
from atelier.data.samplers import SamplingMode
from atelier.errors import DataError

SAMPLING_MODES = ("sample_proportional", "weight_only")
KEYS = ("sampling_mode", "datasets")
DATASET_KEYS = ("name", "path", "sample_weight", "rewards")
EVALUATION_KEYS = ("cfg_scale", "num_inference_steps", "duplicates", "scoring")
OCR_REWARDS = ("ocr", "ocr_vllm", "vlm_ocr")


@dataclass(frozen=True)
class Dataset:
    """One prompt file; `dataset_id` is its place in the YAML, `rewards` name to weight."""

    dataset_id: int
    name: str
    path: Path
    sample_weight: float
    rewards: dict[str, float]


@dataclass(frozen=True)
class Mixture:
    """The datasets of one YAML and how they are mixed (see `samplers.mixed_indices`)."""

    sampling_mode: SamplingMode
    datasets: tuple[Dataset, ...]


def read(path: Path) -> list[Prompt]:
    """The prompts of all datasets, with metadata {"dataset": name, "rewards": mix}.

    Datasets rewarded by OCR also get "target". prompt_id counts within a dataset.

    Raises:
        DataError: the YAML or one of its prompt files is not what it should be.
    """
    prompts = []
    for dataset in read_mixture(path).datasets:
        for prompt in _read_dataset(dataset):
            own = {"dataset": dataset.name, "rewards": dataset.rewards}
            metadata = {**prompt.metadata, **own}
            prompts.append(Prompt(prompt.prompt_id, dataset.dataset_id, prompt.text, metadata))
    return prompts


def read_mixture(path: Path, known_rewards: Collection[str] | None = None) -> Mixture:
    """The YAML itself; prompt files are looked for next to it but not opened.

    `known_rewards` None accepts every reward name.

    Raises:
        DataError: not YAML, unknown keys (with a suggestion), bad values, missing prompt files:
            all reported with line and key.
    """
    problems = Problems(path)
    top = _mapping(problems, _compose(path), "the file", KEYS)
    mode = _scalar(problems, top.get("sampling_mode"), "sampling_mode", str) or SAMPLING_MODES[0]
    if mode not in SAMPLING_MODES:
        line = _line(top["sampling_mode"])
        problems.add(line, f"sampling_mode {mode!r}{did_you_mean(mode, SAMPLING_MODES)}")
    datasets: list[Dataset] = []
    for index, node in enumerate(_items(problems, top.get("datasets"), "datasets")):
        dataset = _dataset(problems, path.parent, index, node, known_rewards)
        if dataset.name in {other.name for other in datasets}:
            problems.add(_line(node), f"datasets[{index}].name {dataset.name!r} stands twice")
        datasets.append(dataset)
    problems.raise_if_any()
    return Mixture(cast(SamplingMode, mode), tuple(datasets))


def _read_dataset(dataset: Dataset) -> list[Prompt]:
    if not any(name in dataset.rewards for name in OCR_REWARDS):
        return plain.read(dataset.path)
    if dataset.path.suffix == ".txt":
        return ocr_text.read(dataset.path)
    problems = Problems(dataset.path)
    prompts = []
    for prompt in plain.read(dataset.path):
        problem = ocr_text.quoting_problem(prompt.text)
        if problem is not None:
            problems.add(f"prompt {prompt.prompt_id}", problem)
            continue
        metadata = {**prompt.metadata, "target": ocr_text.target_of(prompt.text)}
        prompts.append(Prompt(prompt.prompt_id, 0, prompt.text, metadata))
    problems.raise_if_any()
    return prompts


def _dataset(
    problems: Problems, folder: Path, index: int, node: yaml.Node, known: Collection[str] | None
) -> Dataset:
    where = f"datasets[{index}]"
    entry = _mapping(problems, node, where, DATASET_KEYS)
    for key in ("name", "path", "rewards"):
        if key not in entry and isinstance(node, yaml.MappingNode):
            problems.add(_line(node), f"{where} has no {key}")
    name = _scalar(problems, entry.get("name"), f"{where}.name", str) or ""
    file = folder / (_scalar(problems, entry.get("path"), f"{where}.path", str) or "")
    if "path" in entry and not _is_file(file):
        problems.add(_line(entry["path"]), f"{where}.path: no such file {file}")
    weight = _scalar(problems, entry.get("sample_weight"), f"{where}.sample_weight", float)
    if weight is not None and not (weight > 0 and math.isfinite(weight)):
        line = _line(entry["sample_weight"])
        problems.add(line, f"{where}.sample_weight {weight}: a number above 0")
    rewards = dict(_rewards(problems, entry.get("rewards"), f"{where}.rewards", known))
    return Dataset(index, name, file, 1.0 if weight is None else weight, rewards)


def _rewards(
    problems: Problems, node: yaml.Node | None, where: str, known: Collection[str] | None
) -> Iterator[tuple[str, float]]:
    """(name, weight) of a list of one-key mappings, in alphabetical order: ranks must agree."""
    found: dict[str, float] = {}
    for item in _items(problems, node, where) if node is not None else []:
        if not isinstance(item, yaml.MappingNode) or len(item.value) != 1:
            problems.add(_line(item), f"{where}: each entry is `- reward_name: weight`")
            continue
        name, weight_node = str(item.value[0][0].value), item.value[0][1]
        weight = _scalar(problems, weight_node, f"{where}.{name}", float)
        if known is not None and name not in known:
            problems.add(
                _line(item), f"{where}: unknown reward {name!r}{did_you_mean(name, known)}"
            )
        if name in found:
            problems.add(_line(item), f"{where}.{name} stands twice")
        if weight is not None and not (weight >= 0 and math.isfinite(weight)):
            problems.add(_line(item), f"{where}.{name} {weight}: a number, 0 or more")
        found[name] = 0.0 if weight is None else weight
    return iter(sorted(found.items()))


def _compose(path: Path) -> yaml.Node:
    text = read_text(path)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise DataError(f"{path}: {line}not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise DataError(f"{path}: not YAML: {error}") from error
    except RecursionError as error:
        raise DataError(f"{path}: nested too deeply") from error
    if node is None:
        raise DataError(f"{path}: holds nothing but comments")
    return node


def _mapping(
    problems: Problems, node: yaml.Node, where: str, known: Collection[str]
) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        problems.add(_line(node), f"{where}: a mapping with {', '.join(known)} expected")
        return {}
    entries: dict[str, yaml.Node] = {}
    for key_node, value in node.value:
        key = str(key_node.value)
        if key in EVALUATION_KEYS:
            hint = "; it belongs to an evaluation YAML, this reads a training one"
            problems.add(_line(key_node), f"{where}: unknown key {key!r}{hint}")
        elif key not in known:
            problems.add(_line(key_node), f"{where}: unknown key {key!r}{did_you_mean(key, known)}")
        elif key in entries:
            problems.add(_line(key_node), f"{where}: key {key!r} stands twice")
        entries[key] = value
    return entries


def _items(problems: Problems, node: yaml.Node | None, where: str) -> list[yaml.Node]:
    if isinstance(node, yaml.SequenceNode) and node.value:
        return list(node.value)
    line = "line 1" if node is None else _line(node)
    problems.add(line, f"{where}: a non-empty list expected")
    return []


def _scalar(problems: Problems, node: yaml.Node | None, where: str, kind: type) -> Any:
    """A non-empty text or a number; None where there is none or (reported) it is not one."""
    if node is None:
        return None
    text = str(node.value) if isinstance(node, yaml.ScalarNode) else ""
    if kind is str and text and _is_text(text):
        return text
    try:
        if kind is float and text:
            return float(text)
    except ValueError:
        pass
    expected = "a number" if kind is float else "a text"
    problems.add(_line(node), f"{where}: {expected} expected, not {text or 'nothing'!r}")
    return None


def _is_text(text: str) -> bool:
    """Whether UTF-8 can hold it: a YAML escape can make half a character."""
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # a name longer than a file system takes
        return False


def _line(node: yaml.Node) -> str:
    return f"line {node.start_mark.line + 1}"
