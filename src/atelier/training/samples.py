"""The best and the worst images of a step, with what every reward says of them.

    train/samples/step-000010/
        00012.png       an image, by its index in the step
        00012-1.png     an earlier one of the same sample, where it made several
        source-00003.png    what the edits of a group changed, as the policy saw it
        samples.json    step, and of each image: place (best, worst, missing), prompt, total,
                        scores, weights, the rewards' details, why scores are missing, whether it is
                        ground truth, and whose; earlier images with what the policy said of them;
                        what it wrote before it; the source of an edit

They are for people: nothing reads them to train. All words in them are somebody else's, so they
are kept legible and bounded.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from PIL import Image
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.legible import LONGEST_COMPLETION, legible, legible_json
from atelier.policies.base import Rollout, Sample
from atelier.tracking.run_directory import RunDirectory, write_json
from atelier.training.distributed import World
from atelier.training.experience import Experience

Place = Literal["best", "worst", "missing"]


def keeps_samples(step: int, config: RunConfig) -> bool:
    """Whether the best and worst images of a step are kept."""
    every = config.tracking.samples_every
    return bool(every) and (step % every == 0 or step == config.train.steps)


def chosen(total: Tensor, valid: Tensor, groups: Tensor, count: int) -> dict[int, Place]:
    """At most `count` positions of images, in order: the best, the worst from the worst on, and up
    to a quarter without a total. Equal totals go by position; none is there twice.

    A group gives its second best only when every other one has given its best, so that one easy
    prompt does not fill the page; likewise the worst.

    total [N], NaN where not valid; valid [N] bool; groups [N].
    """
    missing = (~valid).nonzero().flatten()[: count // 4].tolist()
    known = valid.nonzero().flatten()
    ordered = known[total[known].argsort(stable=True, descending=True)].tolist()
    shown = min(count - len(missing), len(ordered))
    best = _spread(ordered, groups, math.ceil(shown / 2))
    others = [one for one in reversed(ordered) if one not in best]
    return {
        **dict.fromkeys(best, "best"),
        **dict.fromkeys(_spread(others, groups, shown // 2), "worst"),
        **dict.fromkeys(missing, "missing"),
    }


def _spread(ordered: Sequence[int], groups: Tensor, count: int) -> list[int]:
    """The first `count` of positions, turn by turn of their groups, in their order."""
    turns: Counter[int] = Counter()
    turn = {}
    for one in ordered:
        group = int(groups[one])
        turn[one] = turns[group]
        turns[group] += 1
    taken = set(sorted(ordered, key=turn.__getitem__)[:count])
    return [one for one in ordered if one in taken]


def keep_samples(
    run: RunDirectory,
    world: World,
    experience: Experience,
    count: int,
) -> None:
    """Write those of a step whose images are at hand. Collective; the main rank writes."""
    scores = experience.scores
    places = chosen(scores.total, scores.valid, scores.group_ids, count)
    wanted = {int(scores.index[position]): position for position in places}
    mine = {
        sample.index: _kept(rollout, row, experience)
        for rollout in (one for update in experience.rollouts for one in update)
        for row, sample in enumerate(rollout.samples)
        if sample.index in wanted
    }
    everyone = {index: one for part in world.gather(mine) for index, one in part.items()}
    if not world.is_main:
        return
    entries = [
        {
            "place": places[position],
            **everyone[index].said,
            "total": _number(scores.total[position]),
            "scores": {name: _number(one[position]) for name, one in scores.values.items()},
            "weights": {name: float(one[position]) for name, one in scores.weights.items()},
        }
        for index, position in wanted.items()
    ]
    images = {name: one for index in wanted for name, one in everyone[index].images.items()}
    content = {"step": experience.step, "samples": entries}
    _write(run.step_samples(experience.step), content, images)


@dataclass(frozen=True)
class _Kept:
    """A sample's images by file name, and what is known of it but for its scores, as JSON."""

    images: dict[str, np.ndarray]
    said: dict[str, Any]


def _kept(rollout: Rollout, row: int, experience: Experience) -> _Kept:
    sample, drawings = rollout.samples[row], rollout.drawings
    said = _described(sample, experience)
    images = {said["image"]: rollout.images[row]}
    if rollout.sources is not None:  # data may move on: the page shows it
        said["source"] = f"source-{sample.group_id:05d}.png"
        images[said["source"]] = np.asarray(rollout.sources[row])
    if rollout.completions is not None:
        said["completion"] = legible(rollout.completions[row], longest=LONGEST_COMPLETION)
    if drawings is None:
        return _Kept(images, said)
    answers = drawings.answers[row] if drawings.answers else []
    said["earlier"] = []
    for number, answer in enumerate(answers, start=1):
        name = f"{sample.index:05d}-{number}.png"
        if drawings.accepted[row, number - 1]:
            name = said["image"]  # it is what the sample came to
        else:
            images[name] = drawings.images[row, number - 1]
        said["earlier"].append({"image": name, "answer": legible(answer)})
    return _Kept(images, said)


def _described(sample: Sample, experience: Experience) -> dict[str, Any]:
    """What is known of an image but for its scores, as JSON."""
    said = experience.said[sample.index]
    return {
        "index": sample.index,
        "group": sample.group_id,
        "image": f"{sample.index:05d}.png",
        "prompt": legible(sample.prompt.text),
        "details": {name: legible_json(one) for name, one in said.details.items() if one},
        "missing": None if said.reason is None else legible(said.reason),
        "ground_truth": sample.truth is not None,
        "of_partner": sample.truth is not None and sample.truth != sample.prompt,
    }


def _number(value: Tensor) -> float | None:
    number = float(value)
    return number if math.isfinite(number) else None


def _write(folder: Path, content: Mapping[str, Any], images: Mapping[str, np.ndarray]) -> None:
    """Write aside, then put it in place; a resumed run writes the same once more."""
    aside = folder.with_name(f".{folder.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        for name, image in images.items():
            Image.fromarray(image).save(aside / name)
        write_json(aside / "samples.json", content)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
