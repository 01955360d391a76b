"""The best and worst images of a step, as the run kept them (training/samples.py), for a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.errors import DataError
from atelier.legible import legible_error, legible_value
from atelier.report.pictures import Source, picture_uri
from atelier.report.templates import fill
from atelier.tracking.run_directory import read_json_object

TITLES = {"best": "Best", "worst": "Worst", "missing": "Without a total"}


@dataclass(frozen=True)
class Part:
    """One reward's word on an image: its score, if there is one, its weight, and what it saw."""

    reward: str
    score: float | None
    weight: float
    words: str


@dataclass(frozen=True)
class Earlier:
    """An image that a sample made before (no URI where it came to it, or there is a problem), and
    what the policy said."""

    uri: str
    answer: str
    problem: str = ""


@dataclass(frozen=True)
class KeptImage:
    """An image as a data URI (empty where there is a problem with it), and all that is said of it.

    `completion` is what the policy wrote before it, None where it does not write; `source` is the
    picture that an edit changed.
    """

    uri: str
    prompt: str
    total: float | None
    parts: list[Part]
    reason: str | None
    truth: str  # words where it is an image of the data's, else empty
    earlier: list[Earlier]
    completion: str | None = None
    problem: str = ""
    source: Source | None = None


@dataclass(frozen=True)
class StepSamples:
    """The images of a step, under the titles of their places."""

    step: int
    places: dict[str, list[KeptImage]]

    @property
    def edits(self) -> bool:
        """Whether an image has a source picture."""
        shown = (one.source for images in self.places.values() for one in images)
        return any(source is not None and source.uri for source in shown)


def read_samples(folder: Path) -> StepSamples:
    """What a step kept.

    Raises:
        DataError: samples.json cannot be read.
    """
    path = folder / "samples.json"
    content = read_json_object(path)
    kept: dict[str, list[KeptImage]] = {title: [] for title in TITLES.values()}
    entries, step = content.get("samples"), content.get("step")
    if not isinstance(entries, list) or not isinstance(step, int):
        raise DataError(f"{path}: it must hold step, a number, and samples, a list")
    for number, entry in enumerate(entries):
        try:
            kept[TITLES[entry["place"]]].append(_image(folder, entry))
        except (LookupError, TypeError, AttributeError, OverflowError) as error:
            raise DataError(
                f"{path}: samples[{number}] is not what a trainer keeps: {legible_error(error)}"
            ) from error
    return StepSamples(step, {title: images for title, images in kept.items() if images})


def samples_page(run_name: str, samples: StepSamples) -> str:
    """One self-contained HTML text of a step alone."""
    return fill("samples_page.html.j2", run_name=run_name, samples=samples)


def _image(folder: Path, entry: Mapping[str, Any]) -> KeptImage:
    weights, details = entry["weights"], entry["details"]
    parts = [
        Part(name, _number(score), float(weights[name]), "; ".join(_words(details.get(name, {}))))
        for name, score in entry["scores"].items()
        # Without either, its data set does not name it, or it only logs and the reason tells why.
        if score is not None or weights[name]
    ]
    uri, problem = picture_uri(folder, entry["image"])
    return KeptImage(
        uri=uri,
        prompt=entry["prompt"],
        total=_number(entry["total"]),
        parts=parts,
        reason=entry["missing"],
        truth=_truth_words(entry),
        earlier=[_earlier(folder, entry, one) for one in entry.get("earlier", [])],
        completion=entry.get("completion"),
        problem=problem,
        source=Source(*picture_uri(folder, entry["source"])) if "source" in entry else None,
    )


def _earlier(folder: Path, entry: Mapping[str, Any], one: Mapping[str, Any]) -> Earlier:
    if one["image"] == entry["image"]:
        return Earlier("", one["answer"])
    uri, problem = picture_uri(folder, one["image"])
    return Earlier(uri, one["answer"], problem)


def _number(value: Any) -> float | None:
    if value is not None and not isinstance(value, int | float):
        raise TypeError(f"{legible_value(value)} is no number")
    return None if value is None else float(value)


def _truth_words(entry: Mapping[str, Any]) -> str:
    """Whose true image it is: the partner's ranks low where rewards are right."""
    if not entry.get("ground_truth", False):
        return ""
    if "of_partner" not in entry:  # of an earlier run
        return "a true image, this prompt's or the other's of its pair"
    return "the other prompt's true image" if entry["of_partner"] else "this prompt's true image"


def _words(detail: Any) -> Iterator[str]:
    """A scorer's details, one text an entry."""
    if not isinstance(detail, Mapping):
        yield _text(detail)
        return
    for name, value in detail.items():
        if value is not None and value != [] and value != "":
            yield f"{name}: {_text(value)}"


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return " / ".join(value)
    return json.dumps(value, ensure_ascii=False)
