"""The readers on excerpts of the real, published prompt files, where a checkout has them."""

import shutil
from collections import Counter
from pathlib import Path

import pytest

from atelier.config.prompt_files import FOLDER_FILES
from atelier.config.sections.data import DataConfig
from atelier.data.point_rows import points_of
from atelier.data.prepare import prepare
from atelier.data.readers import read_prompts_file
from atelier.errors import DataError
from atelier.rewards.scorers.geneval import Detection, GenevalScore, score
from atelier.unigenbench.request import request_text
from atelier.unigenbench.taxonomy import DIMENSIONS

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason="the published prompt files are not beside this checkout"
)

PLACES = {
    None: (50, 50),
    "left of": (0, 50),
    "right of": (90, 50),
    "above": (50, 0),
    "below": (50, 90),
}


def test_ocr_prompts():
    prompts = read_prompts_file("ocr_text", DATA / "ocr" / "sample_300.txt")
    assert len(prompts) == 300
    assert prompts[0].metadata["target"] == "Spring Collection 2024"


def test_geneval():
    prompts = read_prompts_file("geneval", DATA / "geneval" / "sample_300.jsonl")
    assert len(prompts) == 300
    assert sum(bool(one.metadata["exclude"]) for one in prompts) == 50


def test_an_image_that_shows_what_geneval_asks_for_has_the_full_score():
    for prompt in read_prompts_file("geneval", DATA / "geneval" / "sample_300.jsonl"):
        shown = []
        for clause in prompt.metadata["include"]:
            x, y = PLACES[clause.get("position", [None])[0]]
            shown += [
                Detection(clause["class"], (x, y, x + 9, y + 9), 0.95, clause.get("color"))
            ] * (clause["count"])
        assert score(shown, prompt.metadata) == GenevalScore(1.0, True, True)
        assert score(shown[1:], prompt.metadata).soft < 1
        assert not score(shown[1:], prompt.metadata).official


@pytest.mark.parametrize(
    ("source", "sample"),
    [("ocr_text", "ocr/sample_300.txt"), ("geneval", "geneval/sample_300.jsonl")],
)
def test_a_folder_laid_out_as_published(tmp_path, source, sample):
    names = FOLDER_FILES[source]
    lines = (DATA / sample).read_text(encoding="utf-8").splitlines(keepends=True)
    (tmp_path / names["train"]).write_text("".join(lines[:250]), encoding="utf-8")
    (tmp_path / names["heldout"]).write_text("".join(lines[250:]), encoding="utf-8")
    summary = prepare(DataConfig(source=source, path=str(tmp_path)), tmp_path / "out")
    heldout = read_prompts_file(source, tmp_path / names["heldout"])
    assert len({one.text for one in heldout}) == summary["heldout"]["different_texts"]
    assert summary["train"]["prompts"] + summary["dropped_because_held_out"] == 250


def test_plain_prompts():
    assert len(read_prompts_file("plain", DATA / "deepgen" / "corebench.txt")) == 200


def test_unigenbench():
    prompts = read_prompts_file("unigenbench", DATA / "unigenbench" / "test_prompts_en.csv")
    assert [one.prompt_id for one in prompts] == list(range(600))
    assert {len(points_of(one)) for one in prompts} == {1, 2, 3, 4, 5}
    points = Counter(point.dimension for one in prompts for point in points_of(one))
    assert sum(points.values()) == 1813
    assert set(points) == set(DIMENSIONS)
    primaries: Counter[str] = Counter()
    for dimension, count in points.items():
        primaries[dimension.primary] += count
    assert primaries == {
        **{"Style": 250, "World Knowledge": 158, "Logical Reasoning": 109, "Text Generation": 87},
        **{"Attribute": 234, "Action": 263, "Relationship": 197, "Compound": 194},
        **{"Grammar": 187, "Entity Layout": 134},
    }
    assert {one.en: count for one, count in points.items() if one.primary == "Attribute"} == {
        **{"Attribute - Color": 30, "Attribute - Expression": 39, "Attribute - Material": 53},
        **{"Attribute - Quantity": 36, "Attribute - Shape": 40, "Attribute - Size": 36},
    }
    for one in prompts:
        text = request_text(one.text, points_of(one))
        assert all(point.dimension.meaning in text for point in points_of(one))


def test_unigenbench_with_the_columns_that_deepgen_renamed(tmp_path):
    text = (DATA / "unigenbench" / "test_prompts_en.csv").read_text(encoding="utf-8")
    header = "index,prompt_en,sub_dims_en"
    assert text.startswith(header)
    renamed = tmp_path / "renamed.csv"
    renamed.write_text(text.replace(header, "index,prompt,sub_dims", 1), encoding="utf-8")
    assert read_prompts_file("unigenbench", renamed) == read_prompts_file(
        "unigenbench", DATA / "unigenbench" / "test_prompts_en.csv"
    )


def test_paircomp():
    prompts = read_prompts_file("paircomp", DATA / "paircomp" / "PairComp.json")
    assert len(prompts) == 2 * 550
    pairs = Counter(one.metadata["category"] for one in prompts if one.metadata["caption"] == 1)
    assert pairs == {
        "Overall appearance difference": 250,
        "Style & Tone difference": 100,
        "Color difference": 50,
        "Counting difference": 50,
        "Position difference": 50,
        "Text difference": 50,
    }


def test_deepgen_names_the_files_that_are_missing():
    with pytest.raises(DataError) as error:
        read_prompts_file("deepgen", DATA / "deepgen" / "deepgen_train.yaml")
    for name in ("qwenimage_textrender", "text_render_less", "blip3o_60k", "share_4o_img"):
        assert f"{name}.txt" in str(error.value)


def test_deepgen_with_all_its_files(tmp_path):
    for file in (DATA / "deepgen").iterdir():
        shutil.copyfile(file, tmp_path / file.name)
    for name in ("qwenimage_textrender", "text_render_less"):
        shutil.copyfile(DATA / "ocr" / "sample_300.txt", tmp_path / f"{name}.txt")
    for name in ("blip3o_60k", "share_4o_img"):
        shutil.copyfile(tmp_path / "corebench.txt", tmp_path / f"{name}.txt")
    prompts = read_prompts_file("deepgen", tmp_path / "deepgen_train.yaml")
    assert len(prompts) == 200 + 300 + 300 + 4 * 200
    assert {one.dataset_id for one in prompts} == set(range(7))
    with_target = [one for one in prompts if "target" in one.metadata]
    assert len(with_target) == 800
    assert with_target[0].metadata["rewards"] == {
        **{"clip_sim": 0.1, "ocr": 0.7},
        "unifiedreward_think": 0.2,
    }


def test_an_evaluation_yaml_is_told_apart():
    with pytest.raises(DataError, match="belongs to an evaluation YAML"):
        read_prompts_file("deepgen", DATA / "deepgen" / "eval.yaml")
