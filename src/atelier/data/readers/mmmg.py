"""MMMG: prompts with the knowledge graph that a picture should show.

The published test rows, as a JSON list or, in a file called .jsonl, one a line:
{key, Education, Discipline, prompt, Knowledge_Graph, Annotation}, other keys being ignored; or the
training file, one JSON object: "0_preschool" -> discipline -> list of
{question, key, "Visual Components", "Key Knowledge", img_path}. Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from atelier.data.ground_truth import picture_problem
from atelier.data.prompts import Prompt
from atelier.data.readers.objects import Checked
from atelier.data.readers.problems import (
    NotJson,
    Problems,
    did_you_mean,
    json_lines,
    parse_json,
    read_text,
)
from atelier.errors import DataError
from atelier.legible import legible_value
from atelier.mmmg.benchmark import DISCIPLINES, TIERS, differences
from atelier.mmmg.fidelity import MOST_PARTS
from atelier.mmmg.graphs import KnowledgeGraph, knowledge_graph
from atelier.mmmg.predicates import MalformedPredicate, parse

logger = logging.getLogger(__name__)

LONGEST_KEY = 200  # bytes; file systems take 255, and tools add words of theirs
# What each file calls the parts of a sample.
TEST = {"prompt": "prompt", "graph": "Knowledge_Graph", "annotation": "Annotation"}
TRAINING = {"prompt": "question", "graph": "Visual Components", "annotation": "Key Knowledge"}

Found = Iterator[tuple[str, Any]]


def read(path: Path) -> list[Prompt]:
    """One prompt a sample.

    Metadata: "key", "tier", "discipline", "knowledge_graph" ({"elements", "dependencies"}),
    "annotation" and, of training samples whose picture is there, "image" (its path; a relative one
    is of the file's folder). A test file whose counts are not those of the benchmark is warned of.

    Raises:
        DataError: not a text file, not JSON (line named); or samples that are wrong, all reported
            with their place and key.
    """
    problems = Problems(path)
    if path.suffix == ".jsonl":
        prompts = _test_prompts(path, problems, json_lines(path, problems))
    else:
        content = _document(path)
        if isinstance(content, dict):
            return _training_prompts(path, problems, content)
        rows = ((f"sample {index}", value) for index, value in enumerate(content))
        prompts = _test_prompts(path, problems, rows)
    told = differences((one.metadata["tier"], one.metadata["discipline"]) for one in prompts)
    if told:
        logger.warning("%s: not all of MMMG: %s", path, "; ".join(told[:3]))
    return prompts


def _document(path: Path) -> dict[str, Any] | list[Any]:
    try:
        content = parse_json(read_text(path))
    except NotJson as error:
        line = f"line {error.line}: " if error.line else ""
        lines = "; call a file of one sample a line .jsonl"
        raise DataError(f"{path}: {line}not JSON: {error}{lines}") from error
    if not isinstance(content, dict | list) or not content:
        raise DataError(f"{path}: a list of samples, or an object of levels expected, not empty")
    return content


def _test_prompts(path: Path, problems: Problems, rows: Found) -> list[Prompt]:
    prompts: list[Prompt] = []
    places: dict[tuple[str, str], str] = {}
    for where, value in rows:
        row = _object(path, problems, where, value)
        if row is None:
            continue
        tier = _name(row, "Education", row.text("Education"), TIERS)
        discipline = _name(row, "Discipline", row.text("Discipline"), DISCIPLINES)
        made = _prompt(len(prompts), row, TEST, tier, discipline)
        first = places.setdefault((tier, made.metadata["key"]), where)
        if first != where:
            row.wrong(f"key 'key': {first} of this level has it too, and so the same picture")
        prompts.append(made)
    problems.raise_if_any()
    large = sum(_parts(one) > MOST_PARTS for one in prompts)
    if large:
        told = "%s: graphs of more than %d parts, whose official fidelity is left out: %d"
        logger.warning(told, path, MOST_PARTS, large)
    return prompts


def _parts(prompt: Prompt) -> int:
    return sum(len(texts) for texts in prompt.metadata["knowledge_graph"].values())


def _training_prompts(path: Path, problems: Problems, content: dict[str, Any]) -> list[Prompt]:
    prompts: list[Prompt] = []
    absent = 0
    for where, level, field, value in _levels(problems, content):
        row = _object(path, problems, where, value)
        if row is None:
            continue
        tier = _name(row, level, level.partition("_")[2] or level, TIERS)
        made = _prompt(len(prompts), row, TRAINING, tier, _name(row, field, field, DISCIPLINES))
        picture = row.text("img_path", optional=True)
        if picture and picture_problem(path.parent / picture) is None:
            made.metadata["image"] = str(path.parent / picture)
        absent += bool(picture) and "image" not in made.metadata
        prompts.append(made)
    problems.raise_if_any()
    if absent:
        logger.warning(
            "%s: %d of %d samples name a picture (img_path) that is not there; they are used "
            "without it",
            path,
            absent,
            len(prompts),
        )
    keys = {(one.metadata["tier"], one.metadata["key"]) for one in prompts}
    if len(keys) < len(prompts):
        told = "%s: %d of %d samples have the key of another one of their level; are they the same?"
        logger.warning(told, path, len(prompts) - len(keys), len(prompts))
    return prompts


def _levels(problems: Problems, content: dict[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
    """Place, level and discipline of every sample of a training file, and the sample."""
    for level, fields in content.items():
        if not isinstance(fields, dict) or not fields:
            problems.add(level, f"an object of disciplines expected, not {legible_value(fields)}")
            continue
        for field, samples in fields.items():
            if not isinstance(samples, list) or not samples:
                found = legible_value(samples)
                problems.add(f"{level}: {field}", f"a list of samples, not {found}")
                continue
            for index, sample in enumerate(samples):
                yield f"{level}: {field}: sample {index}", level, field, sample


def _object(path: Path, problems: Problems, where: str, value: Any) -> Checked | None:
    if isinstance(value, dict):
        return Checked(path, problems, where, value)
    problems.add(where, f"an object expected, found {legible_value(value)}")
    return None


def _prompt(number: int, row: Checked, names: dict[str, str], tier: str, discipline: str) -> Prompt:
    key = row.text("key")
    if problem := _name_problem(key):
        row.wrong(f"key 'key': pictures are called by it, so {problem}, not {legible_value(key)}")
    graph = _graph(row, names["graph"])
    metadata = {
        "key": key,
        "tier": tier,
        "discipline": discipline,
        "knowledge_graph": graph.to_json(),
        "annotation": row.text(names["annotation"], optional=True),
    }
    return Prompt(number, 0, row.text(names["prompt"]), metadata)


def _name_problem(key: str) -> str | None:
    """What a key has to be, so that a file can have it as its name."""
    if "/" in key or "\\" in key:
        return "without slashes"
    if key in (".", ".."):
        return "a name"
    if not key.isprintable():
        return "of printable characters"
    if len(key.encode()) > LONGEST_KEY:
        return f"of at most {LONGEST_KEY} bytes"
    return None


def _graph(row: Checked, name: str) -> KnowledgeGraph:
    value = row.get(name)
    try:
        graph = knowledge_graph(parse_json(value) if isinstance(value, str) else value)
        for text in graph.dependencies:
            parse(text)
    except MalformedPredicate as error:
        row.wrong(f"key {name!r}: {error.reason}")
    except ValueError as error:  # no JSON, or no graph
        row.wrong(f"key {name!r}: {error}")
    else:
        return graph
    return KnowledgeGraph(())


def _name(row: Checked, key: str, text: str, known: Sequence[str]) -> str:
    """One of the known names, in whatever case the file has it."""
    for name in known:
        if name.lower() == text.lower():
            return name
    if text:  # else it was reported
        row.wrong(f"key {key!r}: {legible_value(text)} is unknown{did_you_mean(text, known)}")
    return text
