"""DeepGen-RL training mixtures: a YAML of prompt files, each with weight and reward mix.

Source: DeepGen-RL. Deviations: a data set without rewards is refused, not trained on
nothing; a prompt without quoted text is not rewarded by what reads text, where the original scores
0, or nothing of the whole batch.
"""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import yaml

from atelier.config.reward_names import ours, reward_hint
from atelier.config.sections.datasets import SamplingMode
from atelier.data.datasets import Dataset, Mixture, labelled
from atelier.data.prompts import Prompt
from atelier.data.readers import ocr_text, plain
from atelier.data.readers.problems import Problems, did_you_mean
from atelier.data.readers.yaml_nodes import compose, file_of, items, line_of, mapping, scalar
from atelier.errors import DataError
from atelier.legible import alike

SAMPLING_MODES = ("sample_proportional", "weight_only")
KEYS = ("sampling_mode", "datasets")
DATASET_KEYS = ("name", "path", "sample_weight", "rewards")
_ELSEWHERE = dict.fromkeys(
    ("cfg_scale", "num_inference_steps", "duplicates", "scoring"),
    "an evaluation YAML, which data.heldout_source deepgen_eval reads; this is a training one",
)


def read(path: Path) -> list[Prompt]:
    """The prompts of all datasets, with metadata {"dataset": name, "rewards": mix}.

    Prompts that are rewarded by what reads text also have those of `ocr_text`; one without quoted
    text has a mix without such rewards (`mixtures.without_target` counts them). prompt_id counts
    within a dataset.

    Raises:
        DataError: the YAML or one of its prompt files is not what it should be, or none of the
            prompts that are rewarded by what reads text has any.
    """
    return [one for dataset in read_mixture(path).datasets for one in _read_dataset(dataset)]


def read_mixture(path: Path, known_rewards: Collection[str] | None = None) -> Mixture:
    """The YAML itself; prompt files are looked for next to it but not opened.

    Args:
        known_rewards: names that rewards may have here; published ones may be used for them. None
            accepts every name.

    Raises:
        DataError: not YAML, unknown keys (with a suggestion), bad values, missing prompt files:
            all reported with line and key.
    """
    if path.suffix == ".py":
        raise DataError(
            f"{path}: Python is not run, and names pictures of the auxiliary loss: "
            "data.sft.files.NAME.path reads it; name the YAML of prompt files here"
        )
    problems = Problems(path)
    top = mapping(problems, compose(path), "the file", KEYS)
    mode = scalar(problems, top.get("sampling_mode"), "sampling_mode", str) or SAMPLING_MODES[0]
    if mode not in SAMPLING_MODES:
        line = line_of(top["sampling_mode"])
        problems.add(line, f"sampling_mode {mode!r}{did_you_mean(mode, SAMPLING_MODES)}")
    datasets: list[Dataset] = []
    for index, node in enumerate(items(problems, top.get("datasets"), "datasets")):
        dataset = _dataset(problems, path.parent, index, node, known_rewards)
        if dataset.name in {other.name for other in datasets}:
            problems.add(line_of(node), f"datasets[{index}].name {dataset.name!r} stands twice")
        datasets.append(dataset)
    for one, other in alike(dataset.name for dataset in datasets):
        problems.add("datasets", f"{one!r} and {other!r} would be one metric; name them apart")
    problems.raise_if_any()
    return Mixture(cast(SamplingMode, mode), datasets)


def _read_dataset(dataset: Dataset) -> list[Prompt]:
    assert dataset.path is not None
    problems = Problems(dataset.path)
    reads_text = dataset.reads_text
    prompts = []
    for where, prompt in plain.read_placed(dataset.path):
        if not reads_text or "target" in prompt.metadata:
            prompts.append(labelled(prompt, dataset))
        elif '"' in prompt.text:
            prompts.append(labelled(_with_target(prompt, where, problems), dataset))
        else:
            mix = {name: one for name, one in dataset.rewards.items() if name not in reads_text}
            if not any(mix.values()):
                problems.add(where, ocr_text.quoting_problem(prompt.text) or "")
            prompts.append(labelled(prompt, dataset, mix))
    if reads_text and not any("target" in one.metadata for one in prompts):
        problems.add(f"data set {dataset.name}", _no_target(prompts, reads_text))
    problems.raise_if_any()
    return prompts


def _no_target(prompts: Sequence[Prompt], reads_text: Collection[str]) -> str:
    """What is wrong with a set of which no prompt can have the reward that its mix names."""
    curly = any(quote in one.text for one in prompts for quote in ocr_text.CURLY_QUOTES)
    hint = "; curly quotes do not count" if curly else ""
    return (
        f"rewarded by {', '.join(sorted(reads_text))}, but none of its {len(prompts)} prompts has "
        f'text in straight double quotes ("){hint}'
    )


def _with_target(prompt: Prompt, where: str, problems: Problems) -> Prompt:
    if problem := ocr_text.quoting_problem(prompt.text):
        problems.add(where, problem)
        return prompt
    metadata = {**prompt.metadata, **ocr_text.targets_of(prompt.text)}
    return replace(prompt, metadata=metadata)


def _dataset(
    problems: Problems, folder: Path, index: int, node: yaml.Node, known: Collection[str] | None
) -> Dataset:
    where = f"datasets[{index}]"
    entry = mapping(problems, node, where, DATASET_KEYS, _ELSEWHERE)
    for key in ("name", "path", "rewards"):
        if key not in entry and isinstance(node, yaml.MappingNode):
            problems.add(line_of(node), f"{where} has no {key}")
    name = scalar(problems, entry.get("name"), f"{where}.name", str) or ""
    file = file_of(problems, entry.get("path"), f"{where}.path", folder)
    weight = scalar(problems, entry.get("sample_weight"), f"{where}.sample_weight", float)
    if weight is not None and not (weight > 0 and math.isfinite(weight)):
        line = line_of(entry["sample_weight"])
        problems.add(line, f"{where}.sample_weight {weight}: a number above 0")
    rewards = dict(_rewards(problems, entry.get("rewards"), f"{where}.rewards", known))
    return Dataset(index, name, 1.0 if weight is None else weight, rewards, file)


def _rewards(
    problems: Problems, node: yaml.Node | None, where: str, known: Collection[str] | None
) -> Iterator[tuple[str, float]]:
    """(name, weight) of a list of one-key mappings, in alphabetical order: ranks must agree."""
    found: dict[str, float] = {}
    for item in items(problems, node, where) if node is not None else []:
        if not isinstance(item, yaml.MappingNode) or len(item.value) != 1:
            problems.add(line_of(item), f"{where}: each entry is `- reward_name: weight`")
            continue
        name, weight_node = str(item.value[0][0].value), item.value[0][1]
        weight = scalar(problems, weight_node, f"{where}.{name}", float)
        if known is not None and not {name, ours(name)} & {*known}:
            hint = reward_hint(name, sorted(known))
            problems.add(line_of(item), f"{where}: unknown reward {name!r}{hint}")
        if name in found:
            problems.add(line_of(item), f"{where}.{name} stands twice")
        if weight is not None and not (weight >= 0 and math.isfinite(weight)):
            problems.add(line_of(item), f"{where}.{name} {weight}: a number, 0 or more")
        found[name] = 0.0 if weight is None else weight
    return iter(sorted(found.items()))
