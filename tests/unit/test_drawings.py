"""Samples of several images: what is scored, and what each segment is worth."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from atelier.algorithms.introspection import first_accepted
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Drawings, Rollout, Sample
from atelier.report.samples import read_samples, samples_page
from atelier.tracking.run_directory import RunDirectory
from atelier.training.distributed import World
from atelier.training.drawings import drawn_images, step_segments
from atelier.training.experience import Experience, Said
from atelier.training.samples import keep_samples
from atelier.training.scores import StepScores

WORLD = World(0, 1, torch.device("cpu"))


def configured(version: str = "v1", rounds: int = 2) -> RunConfig:
    told = {"version": version, "rounds": rounds}
    return RunConfig.model_validate(
        {
            "policy": {"family": "janus"},
            "rollout": {"kind": "introspect", "group_size": 2, "introspection": told},
        }
    )


def rollout(accepted, made, first: int = 0) -> Rollout:
    """Image `number` of sample `row` is of the grey level 10 row + number."""
    accepted, made = np.array(accepted, bool), np.array(made, bool)
    count, rounds = made.shape
    images = np.zeros((count, rounds, 1, 1, 3), np.uint8)
    for row in range(count):
        for number in range(rounds):
            images[row, number] = 10 * (first + row) + number
    samples = [Sample(first + row, (first + row) // 2, Prompt(0, 0, "a")) for row in range(count)]
    final = first_accepted(torch.from_numpy(accepted))
    chosen = images[np.arange(count), final.numpy()]
    return Rollout(samples, 1, None, chosen, {}, drawings=Drawings(images, made, accepted))


def scored(rollouts, missing=()) -> StepScores:
    """Every image's score is its grey level / 100."""
    drawn = sorted((one for each in rollouts for one in drawn_images(each)), key=lambda d: d.place)
    total = torch.tensor([float(one.image[0, 0, 0]) / 100 for one in drawn])
    valid = torch.tensor([one.place not in missing for one in drawn])
    return StepScores(
        torch.tensor([one.place for one in drawn]),
        torch.where(valid, total, torch.nan),
        valid,
        torch.tensor([one.sample.pool for one in drawn]),
        {"judge": total},
        None,
        {"judge": torch.ones_like(total)},
    )


TWO = [
    rollout([[True], [False]], [[True, False], [True, True]]),
    rollout([[False], [True]], [[True, True], [True, False]], first=2),
]


WORDS = [[["Yes"], ["No, it is red"]], [["No, two"], ["Yes!"]]]


def test_only_what_was_made_is_scored() -> None:
    drawn = [one for each in TWO for one in drawn_images(each)]
    assert [one.place for one in drawn] == [0, 2, 3, 4, 5, 6]
    assert [one.is_final for one in drawn] == [True, False, True, False, True, True]


def test_segments_are_worth_what_the_rounds_say() -> None:
    parts = step_segments(scored(TWO), TWO, configured(), WORLD)
    first, answer, last = parts.segments
    assert first.total.tolist() == pytest.approx([0.0, 0.10, 0.20, 0.30])
    assert answer.total.tolist() == pytest.approx([0.0, 0.90, 0.80, 0.30])
    assert last.total.tolist() == pytest.approx([0.0, 0.11, 0.21, 0.30])
    assert parts.final.values["judge"].tolist() == pytest.approx([0.0, 0.11, 0.21, 0.30])
    assert parts.final.group_ids.tolist() == [0, 0, 1, 1]
    assert all(one.valid.all() for one in parts.segments)
    assert parts.metrics["introspection/accepted_1"] == 0.5
    assert parts.metrics["introspection/first"] == pytest.approx(0.15)
    for one in zip(TWO, (parts.final.total[:2], parts.final.total[2:]), strict=True):
        assert (one[0].images[:, 0, 0, 0] / 100).tolist() == pytest.approx(one[1].tolist())


def test_a_missing_score_leaves_out_what_needs_it() -> None:
    parts = step_segments(scored(TWO, missing={2, 5}), TWO, configured(), WORLD)
    assert [one.valid.tolist() for one in parts.segments] == [
        [True, False, True, True],
        [True, False, True, True],
        [True, True, False, True],
    ]
    assert parts.final.valid.tolist() == [True, True, False, True]
    assert parts.final.total.isnan().tolist() == [False, False, True, False]


def test_one_image_a_sample_is_one_segment() -> None:
    plain = RunConfig.model_validate({"policy": {"family": "janus"}})
    scores = scored(TWO)
    parts = step_segments(scores, [], plain, WORLD)
    assert parts.final is scores
    assert parts.segments == [scores]


def test_kept_samples_show_what_was_drawn_before(tmp_path) -> None:
    """And what the policy said of it; an accepted drawing is what the sample came to."""
    told = [replace(one.drawings, answers=words) for one, words in zip(TWO, WORDS, strict=True)]
    rollouts = [replace(one, drawings=drawings) for one, drawings in zip(TWO, told, strict=True)]
    parts = step_segments(scored(rollouts), rollouts, configured(), WORLD)
    said = {index: Said({}, None) for index in range(4)}
    run = RunDirectory(tmp_path)
    experience = Experience(5, 0, [rollouts], parts.final, parts.segments, {}, said)
    keep_samples(run, WORLD, experience, 4)
    folder = run.step_samples(5)
    assert {path.name for path in folder.glob("*.png")} == {
        *(f"0000{index}.png" for index in range(4)),
        *("00001-1.png", "00002-1.png"),
    }
    page = read_samples(folder)
    by_answer = {one.earlier[0].answer: one for many in page.places.values() for one in many}
    assert set(by_answer) == {"Yes", "No, it is red", "No, two", "Yes!"}
    assert by_answer["No, it is red"].earlier[0].uri
    assert not by_answer["Yes"].earlier[0].uri
    assert "No, it is red" in samples_page("run", page)
