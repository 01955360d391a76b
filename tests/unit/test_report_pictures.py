"""What a policy wrote for held-out prompts, and the sources of edits: from an evaluation's folder
to the pages."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from atelier.data.prompts import Prompt, write_prompts
from atelier.errors import DataError
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.files import read_completions, read_evaluation, write_images
from atelier.evaluation.requests import image_requests
from atelier.legible import LONGEST_COMPLETION
from atelier.report.page import render
from atelier.report.pictures import Source, first_prompts
from atelier.report.run_data import Evaluation
from atelier.report.templates import LONGEST_TEXT
from atelier.tracking.run_directory import RunDirectory
from tests.support import fake_run
from tests.unit.test_evaluation_complex_edit import CONFIG, PROMPTS, edited_as_told

FEW = PROMPTS[:2]
FILES = [one.file for one in image_requests(FEW, CONFIG)]
WORDS = ["move it\nto the left", "<script>alert(1)</script> " + "w" * 2 * LONGEST_COMPLETION]


def test_what_was_written_is_kept_beside_the_image_and_in_its_row(tmp_path: Path) -> None:
    write_images(tmp_path, FILES, edited_as_told(FEW), WORDS)
    assert (tmp_path / "images/00000.txt").read_text() == WORDS[0]
    found = score_folder(tmp_path, FEW, CONFIG).rows
    assert found[0]["completion"] == "move it to the left"
    assert found[1]["completion"] == WORDS[1][:LONGEST_COMPLETION] + "..."
    assert read_evaluation(tmp_path).rows == found


def test_where_nothing_was_written_a_row_says_nothing(tmp_path: Path) -> None:
    """As in evaluations from before it was kept."""
    write_images(tmp_path, FILES, edited_as_told(FEW))
    assert read_completions(tmp_path, FILES) == [None, None]
    assert not any("completion" in row for row in score_folder(tmp_path, FEW, CONFIG).rows)


def test_words_that_are_no_text_and_words_for_other_images_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path, FILES, edited_as_told(FEW), WORDS)
    (tmp_path / "images/00001.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"00001\.txt: not a readable text"):
        score_folder(tmp_path, FEW, CONFIG)
    with pytest.raises(ValueError, match="shorter"):
        evaluate(edited_as_told(FEW), FEW, CONFIG, completions=["one"])


@pytest.fixture(name="run")
def _run(tmp_path: Path) -> RunDirectory:
    """A run of edits whose policy writes: fake scores, true rows of words."""
    edits = ("rollout.kind=edit", "data.scene_kind=shapes", "data.scene_task=edit")
    run = fake_run.open_fake_run(
        tmp_path / "run", "sqlite:///unused.db", "policy.family=deepgen",
        *("policy.path=assets/tiny-deepgen", *edits),
    )  # fmt: skip
    fake_run.finish(run)
    return run


def put(run: RunDirectory, prompts: list[Prompt]) -> None:
    write_prompts(run.data / "heldout.parquet", prompts)


def write_words(folder: Path, words: str) -> None:
    lines = (folder / "scores.jsonl").read_text().splitlines()
    rows = [json.loads(line) | {"completion": words} for line in lines]
    (folder / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_page_shows_what_was_written_before_and_after(run: RunDirectory) -> None:
    write_words(run.baseline, "a plain <b>idea</b>")
    write_words(run.evaluate, "x" * 2 * LONGEST_TEXT)
    page = render(run)
    assert page.count("&ldquo;a plain &lt;b&gt;idea&lt;/b&gt;&rdquo;") == 4
    assert "<b>idea" not in page
    assert page.count(f"&ldquo;{'x' * LONGEST_TEXT}...&rdquo;") == 4
    assert "x" * (LONGEST_TEXT + 1) not in page
    assert "the beginning of what the policy wrote" in page


def test_a_run_that_keeps_no_words_has_the_page_it_had(run: RunDirectory) -> None:
    page = render(run)
    assert 'class="wrote"' not in page
    assert "what the policy wrote" not in page
    assert 'alt="source"' not in page


def test_edits_stand_beside_their_source(run: RunDirectory, tmp_path: Path) -> None:
    large = Image.new("RGB", (900, 300), "red")
    large.save(tmp_path / "source.png")
    sources = {"source_image": str(tmp_path / "source.png")}
    others = [Prompt(index, 0, "x", FEW[0].metadata) for index in (1, 2)]
    put(run, [Prompt(0, 0, "x", sources), *others, Prompt(3, 0, "x", {})])
    page = render(run)
    pairs, steps = re.split("<h2>During training</h2>", page)
    assert pairs.count('alt="source"') == steps.count('alt="source"') == 3
    assert "the source picture left of both" in page
    evaluations = [Evaluation("", 0, run.baseline)]
    (row, *_) = first_prompts(evaluations, 1, {(0, 0): Prompt(0, 0, "x", sources)})
    assert row.source is not None
    assert shown(row.source).size == (192, 64)
    assert np.asarray(shown(row.source))[0, 0].tolist() == [255, 0, 0]


def shown(source: Source) -> Image.Image:
    import base64
    import io

    return Image.open(io.BytesIO(base64.b64decode(source.uri.partition(",")[2])))


def test_a_source_that_is_gone_is_said_and_the_page_is_made(run: RunDirectory) -> None:
    put(run, [Prompt(0, 0, "x", {"source_image": "no/<such>.png"})])
    page = render(run)
    assert "no source picture: prompt 0 (&#39;x&#39;): no such file no/&lt;such&gt;.png" in page


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"source_image": 5}, "source_image: the path of a picture expected, not 5"),
        ({"source_image": ["a"]}, "source_image: the path of a picture expected, not [&#39;a"),
        ({"source_scene": 5}, "source_scene: a scene expected, not 5"),
        ({"source_scene": {"objects": 5}}, "5: not a scene&#39;s objects"),
        ({"source_image": "a.parquet/" + "9" * 5000}, "no such file a.parquet/999"),
    ],
)
def test_a_source_that_is_none_is_said(
    run: RunDirectory, metadata: dict[str, object], says: str
) -> None:
    put(run, [Prompt(0, 0, "x", metadata)])
    page = render(run)
    assert "no source picture: " in page
    assert says in page
