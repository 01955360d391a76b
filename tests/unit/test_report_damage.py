"""What a page of a run says of files that are damaged, lost or anybody's."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from atelier.errors import DataError
from atelier.report.charts import Series, line_chart
from atelier.report.compared_runs import read_compared
from atelier.report.page import render
from atelier.report.samples import read_samples, samples_page
from atelier.report.templates import LONGEST_TEXT
from atelier.tracking.run_directory import RunDirectory, read_run_file
from tests.support import fake_run


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> RunDirectory:
    run = fake_run.open_fake_run(tmp_path / "run", "sqlite:///unused.db")
    fake_run.finish(run)
    return run


def change_rows(run: RunDirectory, **values: Any) -> None:
    """Of the second row of the final evaluation; what is ... is taken away."""
    file = run.evaluate / "scores.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    rows[1] = {key: one for key, one in (rows[1] | values).items() if one is not ...}
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def bomb(file: Path) -> None:
    Image.new("1", (20_000, 20_000)).save(file)


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (Path.unlink, "no such file images/00001.png"),
        (lambda file: file.write_bytes(file.read_bytes()[:60]), "images/00001.png is damaged"),
        (lambda file: file.write_bytes(b""), "images/00001.png is not an image"),
        (lambda file: file.write_text("<script>"), "images/00001.png is not an image"),
        (bomb, "images/00001.png has too many pixels"),
        (folder, "no such file images/00001.png"),
    ],
)
def test_a_damaged_image_costs_its_own_place_alone(
    run: RunDirectory, damage: Callable[[Path], object], says: str
) -> None:
    whole = render(run).count("<img")
    damage(run.evaluate / "images" / "00001.png")
    page = render(run)
    assert page.count(f'<div class="read worse">no image: {says}') == 1
    assert page.count("<img") == whole - 1
    assert str(run.root) not in page


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"image": ...}, "image: Field required"),
        ({"prompt_id": ...}, "prompt_id: Field required"),
        ({"prompt_id": "x"}, "prompt_id: Input should be a valid integer"),
        ({"prompt": ...}, "prompt: Field required"),
        ({"completion": 5}, "completion: Input should be a valid string"),
        ({"similarity": "high"}, "similarity: a number expected"),
        ({"similarity": [1]}, "similarity: a number expected"),
        ({"similarity": 10**400}, "similarity is 1000"),
        ({"gold": float("nan")}, "gold is nan, which is no number"),
        ({"image": "../baseline/images/00001.png"}, "00001.png' is outside the evaluation's fold"),
        ({"image": "/etc/hostname"}, "image: '/etc/hostname' is outside the evaluation's folder"),
    ],
)
def test_an_odd_row_is_named(run: RunDirectory, values: dict[str, Any], says: str) -> None:
    change_rows(run, **values)
    for read in (render, read_compared):
        with pytest.raises(DataError, match=rf"scores\.jsonl: row 2: .*{re.escape(says)}"):
            read(run)


def test_lost_scores_are_told(run: RunDirectory) -> None:
    file = run.evaluate / "scores.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    with pytest.raises(DataError, match=r"scores\.jsonl: 3 rows for 4 images"):
        render(run)
    file.unlink()
    with pytest.raises(DataError, match=r"scores\.jsonl: 0 rows for 4 images"):
        render(run)


@pytest.mark.parametrize("values", [{"metrics": 5}, {"metrics": {"a": {}}}, {"image_score": 5}])
def test_an_odd_summary_is_named(run: RunDirectory, values: dict[str, Any]) -> None:
    change(run.evaluate / "summary.json", **values)
    with pytest.raises(DataError, match=rf"summary\.json: {next(iter(values))}"):
        render(run)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"reward/mean": 1}', "line 2: step: a whole number expected"),
        ('{"step": "x"}', "line 2: step: a whole number expected"),
        (f'{{"step": 2, "kl": {10**400}}}', "line 2: kl is 1000"),
    ],
)
def test_an_odd_line_of_metrics_is_named(run: RunDirectory, line: str, says: str) -> None:
    run.metrics.write_text(f'{{"step": 1}}\n{line}\n')
    with pytest.raises(DataError, match=rf"metrics\.jsonl: {says}"):
        render(run)


def test_numbers_at_the_ends_of_floats_are_drawn(run: RunDirectory) -> None:
    lines = [{"step": 1, "kl": 1e308}, {"step": 2, "kl": -1e308}, {"step": 3, "kl": float("nan")}]
    run.metrics.write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert "KL to the reference" in render(run)
    drawn = line_chart([Series("\x1b" + "n" * 9999, [(1, 1e308), (2, -1e308)])])
    assert len(drawn) < 20_000
    assert "\x1b" not in drawn
    assert not re.search("nan|inf", drawn)


@pytest.mark.parametrize(
    "values",
    [
        {"warnings": 5},
        {"warnings": "abc"},
        {"variables": "abc"},
        {"variables": 5},
        {"variables": ["A"]},
        {"digests": 5},
        {"git": 5},
        {"run_name": ["a"]},
    ],
)
def test_an_odd_run_file_is_named(run: RunDirectory, values: dict[str, Any]) -> None:
    change(run.run_file, **values)
    for read in (render, read_run_file):
        with pytest.raises(DataError, match=rf"run\.json: {next(iter(values))}"):
            read(run)


def test_words_of_anybody_are_bounded_and_printable(run: RunDirectory) -> None:
    length = len(render(run))
    words = {
        "prompt": "p\x1b\x00\u202e\ud800" + "z" * 10**6,
        "target": "t\x1b" + "z" * 10**6,
        "text": "r\x07" + "z" * 10**6,
        "completion": "c\x1b" + "z" * 10**6,
    }
    for part in (run.baseline, run.evaluate, *run.train.glob("evaluation/ocr/step-*")):
        file = part / "scores.jsonl"
        rows = [json.loads(line) | words for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = render(run)
    page.encode()
    assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", page)
    assert len(page) < length + 100 * LONGEST_TEXT
    assert "z" * (LONGEST_TEXT + 1) not in page


SAMPLE = {
    **{"place": "best", "image": "00000.png", "prompt": "a \x1b", "total": 1.0, "missing": None},
    **{"scores": {"ocr": 1.0}, "weights": {"ocr": 1.0}, "details": {"ocr": "z" * 10**6}},
    "earlier": [{"image": "../../00000.png", "answer": "No"}],
}


def kept(folder: Path, **values: Any) -> Path:
    folder.mkdir(parents=True)
    sample = {key: one for key, one in (SAMPLE | values).items() if one is not ...}
    (folder / "samples.json").write_text(json.dumps({"step": 3, "samples": [sample]}))
    return folder


def test_a_sample_shows_what_is_wrong_with_its_image(tmp_path: Path) -> None:
    Image.new("RGB", (4, 4)).save(tmp_path / "00000.png")
    page = samples_page("run", read_samples(kept(tmp_path / "samples" / "step-000003")))
    assert "no image: no such file 00000.png" in page
    assert "no image: ../../00000.png is outside step-000003" in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert len(page) < 20_000


@pytest.mark.parametrize(
    "values",
    [
        {"image": ...},
        {"image": 5},
        {"place": "nowhere"},
        {"total": "much"},
        {"total": 10**400},
        {"scores": {"ocr": [1]}},
        {"earlier": 5},
    ],
)
def test_an_odd_sample_is_named(tmp_path: Path, values: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"samples\.json: samples\[0\] is not what a trainer"):
        read_samples(kept(tmp_path / "step-000003", **values))


def test_a_folder_that_is_no_step_is_none(run: RunDirectory) -> None:
    shutil.copytree(kept(run.step_samples(3)), run.samples / "step-x")
    assert render(run).count("<summary>Step") == 1
