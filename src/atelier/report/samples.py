"""The best and worst images of a step, as the run kept them (training/samples.py), for a page."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atelier.report.pictures import data_uri
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
    """An image that a sample made before (no URI where it came to it), and what the policy said."""

    uri: str
    answer: str


@dataclass(frozen=True)
class KeptImage:
    """An image as a data URI (empty where its file is gone), and all that is said of it.

    `completion` is what the policy wrote before it, None where it does not write; `source` is the
    picture that an edit changed, as a data URI, empty where it is none.
    """

    uri: str
    prompt: str
    total: float | None
    parts: list[Part]
    reason: str | None
    truth: str  # words where it is an image of the data's, else empty
    earlier: list[Earlier]
    completion: str | None = None
    source: str = ""


@dataclass(frozen=True)
class StepSamples:
    """The images of a step, under the titles of their places."""

    step: int
    places: dict[str, list[KeptImage]]

    @property
    def edits(self) -> bool:
        """Whether an image has a source picture."""
        return any(one.source for images in self.places.values() for one in images)


def read_samples(folder: Path) -> StepSamples:
    """What a step kept.

    Raises:
        DataError: samples.json cannot be read.
    """
    content = read_json_object(folder / "samples.json")
    kept: dict[str, list[KeptImage]] = {title: [] for title in TITLES.values()}
    for entry in content["samples"]:
        kept[TITLES[entry["place"]]].append(_image(folder, entry))
    return StepSamples(content["step"], {title: images for title, images in kept.items() if images})


def samples_page(run_name: str, samples: StepSamples) -> str:
    """One self-contained HTML text of a step alone."""
    return fill("samples_page.html.j2", run_name=run_name, samples=samples)


def _image(folder: Path, entry: Mapping[str, Any]) -> KeptImage:
    weights, details = entry["weights"], entry["details"]
    parts = [
        Part(name, score, weights[name], "; ".join(_words(details.get(name, {}))))
        for name, score in entry["scores"].items()
        # Without either, its data set does not name it, or it only logs and the reason tells why.
        if score is not None or weights[name]
    ]
    earlier = [
        Earlier(
            "" if one["image"] == entry["image"] else _uri(folder / one["image"]), one["answer"]
        )
        for one in entry.get("earlier", [])
    ]
    return KeptImage(
        uri=_uri(folder / entry["image"]),
        prompt=entry["prompt"],
        total=entry["total"],
        parts=parts,
        reason=entry["missing"],
        truth=_truth_words(entry),
        earlier=earlier,
        completion=entry.get("completion"),
        source=_uri(folder / entry["source"]) if "source" in entry else "",
    )


def _truth_words(entry: Mapping[str, Any]) -> str:
    """Whose true image it is: the partner's ranks low where rewards are right."""
    if not entry.get("ground_truth", False):
        return ""
    if "of_partner" not in entry:  # of an earlier run
        return "a true image, this prompt's or the other's of its pair"
    return "the other prompt's true image" if entry["of_partner"] else "this prompt's true image"


def _uri(path: Path) -> str:
    return data_uri(path) if path.exists() else ""


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
