"""The best and worst images of a step: which they are, what is written, how it is shown."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import unescape
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from atelier.legible import legible_json
from atelier.report.page import render
from atelier.report.run_data import sample_folders
from atelier.report.samples import read_samples, samples_page
from atelier.tracking.run_directory import RunDirectory, write_json
from atelier.training.distributed import World
from atelier.training.experience import Experience, Said, score_batch
from atelier.training.samples import chosen, keep_samples
from atelier.training.scores import StepScores
from tests.support import fake_run
from tests.unit.test_report_page import outline

NAN = float("nan")
HOSTILE = "</p><script>alert(1)</script>\x1b[31m\n\u202e{{ 7*7 }}<img src=x onerror=y>"


def choice(totals: list[float], count: int) -> dict[int, str]:
    """Every image of a group of its own."""
    return of_groups(totals, list(range(len(totals))), count)


def of_groups(totals: list[float], groups: list[int], count: int) -> dict[int, str]:
    total = torch.tensor(totals)
    return chosen(total, ~total.isnan(), torch.tensor(groups), count)


def test_the_best_and_the_worst_are_chosen_each_once() -> None:
    ties = [0.5, 0.9, 0.1, 0.5, 0.9, 0.1]
    assert list(choice(ties, 4).items()) == [(1, "best"), (4, "best"), (5, "worst"), (2, "worst")]
    assert choice([1.0, 2.0, 3.0], 16) == {2: "best", 1: "best", 0: "worst"}
    assert choice([1.0, 2.0], 1) == {1: "best"}


def test_one_group_does_not_fill_the_page() -> None:
    """The first group has the four best images, the last one the worst: each shows one of its own
    before it shows a second one, and none is both best and worst."""
    totals = [9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]
    groups = [0, 0, 0, 0, 1, 1, 2, 2, 2]
    found = of_groups(totals, groups, 6)
    assert found == {0: "best", 4: "best", 6: "best", 8: "worst", 5: "worst", 3: "worst"}
    assert list(found)[:3] == [0, 4, 6]
    assert of_groups(totals, [7] * 9, 4) == {0: "best", 1: "best", 8: "worst", 7: "worst"}
    many = of_groups(totals, groups, 8)
    assert [one for one in many if many[one] == "best"] == [0, 1, 4, 6]


def test_a_quarter_at_most_is_of_images_without_a_total() -> None:
    found = choice([NAN] * 5 + [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0], 8)
    assert [one for one in found if found[one] == "missing"] == [0, 1]
    assert len(found) == 8
    assert choice([NAN, NAN], 8) == {0: "missing", 1: "missing"}
    assert choice([NAN, 1.0], 2) == {1: "best"}


def experience(prompt: str = "a red circle", words: object = "yes") -> Experience:
    """Four images in two groups; the third has no total, and its place is somebody else's words."""
    from atelier.data.prompts import Prompt
    from atelier.policies.base import Rollout, Sample

    samples = [Sample(i, i // 2, Prompt(i, 0, prompt, {})) for i in range(4)]
    images = np.stack([np.full((8, 8, 3), 60 * i, np.uint8) for i in range(4)])
    total = torch.tensor([0.1, 0.7, NAN, 0.4])
    values = {"judge": total.clone(), "log": torch.tensor([1.0, 2.0, 3.0, float("inf")])}
    weights = {"judge": torch.full((4,), 2.0), "log": torch.zeros(4)}
    groups = torch.arange(4) // 2
    scores = StepScores(torch.arange(4), total, ~total.isnan(), groups, values, None, weights)
    said = {
        i: Said({"judge": {"judge": [words]}, "log": {}}, "judge: " + prompt if i == 2 else None)
        for i in range(4)
    }
    return Experience(10, 0, [[Rollout(samples, 1, None, images, {})]], scores, [scores], {}, said)


def writing(one: Experience, completions: list[str]) -> Experience:
    """The same by a policy that writes."""
    ((rollout,),) = one.rollouts
    return replace(one, rollouts=[[replace(rollout, completions=completions)]])


def kept(run: RunDirectory, one: Experience) -> dict:
    world = World(0, 1, torch.device("cpu"))
    keep_samples(run, world, one, 8)
    return json.loads((run.step_samples(10) / "samples.json").read_text())


def test_each_image_is_there_with_its_scores_its_words_and_why_one_is_missing(tmp_path) -> None:
    run = RunDirectory(tmp_path)
    for _ in range(2):  # a resumed run writes the same again
        content = kept(run, experience())
    assert all(one["weights"] == {"judge": 2.0, "log": 0.0} for one in content["samples"])
    places = {entry["index"]: entry["place"] for entry in content["samples"]}
    assert places == {1: "best", 3: "best", 0: "worst", 2: "missing"}
    missing = content["samples"][-1]
    assert (missing["total"], missing["scores"]) == (None, {"judge": None, "log": 3.0})
    assert missing["missing"] == "judge: a red circle"
    assert content["samples"][0]["details"] == {"judge": {"judge": ["yes"]}}
    names = {path.name for path in run.step_samples(10).iterdir()}
    assert names == {"samples.json", *(f"0000{i}.png" for i in range(4))}
    assert [path.name for path in run.samples.iterdir()] == ["step-000010"]


@pytest.mark.parametrize("words", [HOSTILE, HOSTILE * 5000, [HOSTILE] * 5000, {HOSTILE: HOSTILE}])
def test_hostile_words_are_legible_bounded_and_escaped(tmp_path: Path, words) -> None:
    run = fake_run.open_fake_run(tmp_path / "run", "sqlite:///unused.db")
    kept(run, experience(HOSTILE * 100, words))
    text = (run.step_samples(10) / "samples.json").read_text()
    assert len(text) < 60_000
    assert not re.search(r"\\u001b|\\u202e|\x1b", text)
    for page in (render(run), samples_page("a <run>", read_samples(run.step_samples(10)))):
        outline(page)
        assert "&lt;script&gt;" in page
        assert "{{ 7*7 }}" in page
        assert not re.search(r"<script|\x1b|\u202e|<img src=x", page)
        assert not re.search(r'(?:src|href)="(?!data:)', page)


def test_the_report_shows_the_first_and_the_last_step(tmp_path: Path) -> None:
    run = fake_run.open_fake_run(tmp_path / "run", "sqlite:///unused.db")
    assert "Best and worst images" not in outline(render(run))
    kept(run, experience())
    for step in (20, 1000000):
        folder = run.step_samples(step)
        folder.mkdir()
        content = json.loads((run.step_samples(10) / "samples.json").read_text())
        write_json(folder / "samples.json", content | {"step": step})  # its images are pruned
    assert [folder.name for folder in sample_folders(run)][-1] == "step-1000000"
    page = render(run)
    assert "Best and worst images" in outline(page)
    assert re.findall(r"<summary>Step (\d+)", page) == ["10", "1000000"]
    assert "judge 0.700 &times; 2: judge: yes" in page
    assert "judge missing" in page
    assert "log missing" not in page, "it counts for nothing"
    assert "no total" in page


def test_a_true_image_says_whose_it_is(tmp_path: Path) -> None:
    """The other prompt's is rightly among the worst; of an earlier run one cannot say."""
    run, one = RunDirectory(tmp_path), experience()
    samples = one.rollouts[0][0].samples
    for index, of in ((0, 3), (1, 1)):  # samples' prompts have their numbers
        samples[index] = replace(samples[index], truth=samples[of].prompt)
    content = kept(run, one)
    page = unescape(samples_page("x", read_samples(run.step_samples(10))))
    best, worst = page.split("<h3>Worst")
    assert "(this prompt's true image, not the policy's)" in best
    assert "(the other prompt's true image, not the policy's)" in worst
    for entry in content["samples"]:
        del entry["of_partner"]
    write_json(run.step_samples(10) / "samples.json", content)
    page = samples_page("x", read_samples(run.step_samples(10)))
    assert page.count("a true image, this prompt") == 2


def test_what_was_written_is_kept_legible_and_shown(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    plain = kept(run, experience())["samples"]
    assert not any("completion" in one for one in plain)
    long = "many words " * 1000
    content = kept(run, writing(experience(), ["none", HOSTILE, long, "a plan\nof two lines"]))
    told = {one["index"]: one["completion"] for one in content["samples"]}
    assert (told[0], told[3]) == ("none", "a plan of two lines")
    assert 7000 < len(told[2]) < 9000
    assert "\x1b" not in told[1]
    page = samples_page("run", read_samples(run.step_samples(10)))
    assert "&ldquo;a plan of two lines&rdquo;" in page
    assert not re.search(r"<script|<img src=x", page)


def test_an_edit_is_shown_beside_its_source(tmp_path: Path) -> None:
    """As the policy saw it, once a group. The data may have moved on: its file is not read again,
    which may be of any size."""
    run, one = RunDirectory(tmp_path), experience()
    ((rollout,),) = one.rollouts
    gone = {"source_image": str(tmp_path / "gone.png")}
    rollout.samples[:] = [
        replace(sample, prompt=replace(sample.prompt, metadata=gone)) for sample in rollout.samples
    ]
    levels = (10, 10, 200, 200)  # by sample: its group's
    seen = [Image.new("RGB", (8, 8), (level, level, level)) for level in levels]
    content = kept(run, replace(one, rollouts=[[replace(rollout, sources=seen)]]))
    sources = {entry["index"]: entry["source"] for entry in content["samples"]}
    first, second = "source-00000.png", "source-00001.png"
    assert sources == {0: first, 1: first, 2: second, 3: second}
    for name, picture in ((first, seen[0]), (second, seen[2])):
        with Image.open(run.step_samples(10) / name) as shown:
            assert np.array_equal(np.asarray(shown), np.asarray(picture))
    found = read_samples(run.step_samples(10))
    page = samples_page("run", found)
    outline(page)
    assert page.count('<div class="read">source</div>') == 4
    assert found.edits
    for name in (first, second):
        (run.step_samples(10) / name).unlink()
    found = read_samples(run.step_samples(10))
    assert not found.edits
    assert "no source picture: no such file source-00000.png" in samples_page("run", found)


def test_rewards_see_what_was_written() -> None:
    """Beside what the prompt's own metadata say, which stay as they are."""
    ((rollout,),) = experience().rollouts
    assert [dict(one) for one in score_batch(rollout).metadata] == [{}] * 4
    written = replace(rollout, completions=["a", "b", "c", "d"])
    assert [one["completion"] for one in score_batch(written).metadata] == ["a", "b", "c", "d"]
    assert rollout.samples[0].prompt.metadata == {}


def test_any_detail_is_json_within_bounds() -> None:
    assert legible_json({"a": [1, 2.5, None, True, NAN], 3: ("x\ny",)}) == {
        "a": [1, 2.5, None, True, "nan"],
        "3": ["x y"],
    }
    assert legible_json(np.float32(0.5)) == 0.5
    assert legible_json(10**400) == "a number too large"
    assert len(legible_json(["x" * 5000] * 50)) < 1100
    nested: list = []
    for _ in range(5000):
        nested = [nested]
    assert len(json.dumps(legible_json(nested))) < 1100
    assert legible_json({"key": "secret token"}, "token") == {"key": "secret [token]"}
