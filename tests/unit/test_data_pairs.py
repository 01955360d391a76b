"""Pairs and edits as rows of prompt tables: of scenes, of files, and never torn."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from atelier.config.sections.data import DataConfig
from atelier.data import gold
from atelier.data.edit_check import check_edit
from atelier.data.edit_rows import edit_of
from atelier.data.ground_truth import (
    MOST_PIXELS,
    ground_truth_image,
    is_edit,
    picture_problem,
    source_image,
)
from atelier.data.keys import uniform
from atelier.data.prepare import input_files, prepare
from atelier.data.prompts import Prompt, read_prompts
from atelier.data.rows import rows_of, whole_pairs
from atelier.data.scene_pairs import CATEGORIES, difference
from atelier.data.scenes import from_dict, prompt, split_of
from atelier.errors import DataError


def _config(**changes):
    return DataConfig(**{"train_prompts": 60, "heldout_prompts": 20, **changes})


def _tables(folder):
    return [read_prompts(folder / f"{name}.parquet") for name in ("train", "heldout")]


# Scenes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["word", "shapes", "mixed"])
def test_scene_pairs_differ_in_one_thing_and_stay_in_one_split(tmp_path, kind):
    config = _config(scene_kind=kind, scene_pairs=0.5, train_prompts=201)
    summary = prepare(config, tmp_path)
    assert summary["train"]["pairs"] == 50
    assert summary["heldout"]["pairs"] == 5
    tables = _tables(tmp_path)
    assert [len(one) for one in tables] == [201, 20]
    assert len({one.text for table in tables for one in table}) == 221, "no text twice"
    for table in tables:
        lengths = [len(row) for row in rows_of(table)]
        assert lengths == sorted(lengths, reverse=True), "pairs come first"
        assert [one.prompt_id for one in table] == list(range(len(table)))
        for first, second in whole_pairs(table):
            scenes = [from_dict(one.metadata["scene"]) for one in (first, second)]
            assert [prompt(scene) for scene in scenes] == [first.text, second.text]
            assert {split_of(scene) for scene in scenes} == {table.name}
            assert [one.metadata["caption"] for one in (first, second)] == [1, 2]
            assert first.metadata["partner"] == second.text
            assert second.metadata["partner"] == first.text
            assert first.metadata["category"] == difference(*scenes)
            # A faultless picture of one is no picture of the other.
            pictures = [np.asarray(ground_truth_image(one)) for one in (first, second)]
            assert gold.check(pictures[0], scenes[0]).score == 1
            assert gold.check(pictures[1], scenes[0]).score < 1


@pytest.mark.parametrize(("wanted", "share", "pairs"), [(61, 1.0, 30), (1, 1.0, 0), (63, 0.5, 16)])
def test_odd_numbers_are_honoured(tmp_path, wanted, share, pairs):
    config = _config(scene_kind="shapes", scene_pairs=share, train_prompts=wanted)
    assert prepare(config, tmp_path)["train"] | {"digest": ""} == {
        **{"prompts": wanted, "pairs": pairs, "different_texts": wanted},
        **{"datasets": 1, "digest": ""},
    }


def test_held_out_pairs_differ_in_what_training_pairs_do(tmp_path):
    """Although a changed word mostly belongs to the other split, and a changed ink never."""
    config = _config(scene_kind="mixed", scene_pairs=1, train_prompts=600, heldout_prompts=600)
    prepare(config, tmp_path)
    counts = [Counter(one.metadata["category"] for one in table) for table in _tables(tmp_path)]
    assert set(counts[0]) == set(counts[1]) == set(CATEGORIES)
    for category in CATEGORIES:
        assert abs(counts[0][category] - counts[1][category]) < 100


def test_without_pairs_tables_are_what_they_were(tmp_path):
    prepare(_config(scene_kind="shapes"), tmp_path)
    train, _ = _tables(tmp_path)
    assert train.digest == "43fe3a5c9b1c558a00d1f3cafc1f3a9ceee522443cafe0e001e239ad38e66c30"
    assert not any("pair" in one.metadata for one in train)


def test_edits_of_scenes(tmp_path):
    prepare(_config(scene_kind="shapes", scene_task="edit", train_prompts=120), tmp_path)
    train, heldout = _tables(tmp_path)
    assert (len(train), len(heldout)) == (120, 20)
    assert len({one.metadata["category"] for one in train}) == 5
    asked = {(one.text, json.dumps(one.metadata["source_scene"])) for one in (*train, *heldout)}
    assert len(asked) == 140
    for table in (train, heldout):
        for one in table:
            made = edit_of(one)
            assert is_edit(one)
            assert made.instruction == one.text
            assert split_of(made.source) == table.name
            done = check_edit(ground_truth_image(one), made)
            assert (done.following, done.preserving) == (1, 1)
            copied = check_edit(source_image(one), made)
            assert copied.following == 0


# Files -------------------------------------------------------------------------------------------


def _pairs(count, first=0):
    return [
        {"prompt1": f"a red dog {i}", "prompt2": f"a blue dog {i}"}
        for i in range(first, first + count)
    ]


def _written(folder, name, value):
    path = folder / name
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return str(path)


@pytest.mark.parametrize(("train", "kept"), [(60, 60), (61, 60), (1, 0), (5000, None)])
def test_a_cut_never_tears_a_pair(tmp_path, train, kept):
    path = _written(tmp_path, "pairs.json", _pairs(120))
    config = _config(source="focusdiff", path=path, train_prompts=train)
    if kept == 0:
        with pytest.raises(DataError, match="needs at least one prompt"):
            prepare(config, tmp_path / "out")
        return
    summary = prepare(config, tmp_path / "out")
    table, heldout = _tables(tmp_path / "out")
    assert all(len(row) == 2 for row in rows_of(table))
    assert len(heldout) == 20
    assert kept is None or len(table) == summary["train"]["prompts"] == kept


def test_unpaired_prompts_are_added_behind_the_pairs(tmp_path):
    path = _written(tmp_path, "pairs.json", _pairs(60))
    plain = _written(tmp_path, "plain.txt", "".join(f"a cat {i}\n" for i in range(61)))
    config = _config(source="focusdiff", path=path, unpaired_path=plain, train_prompts=500)
    prepare(config, tmp_path / "out")
    assert set(input_files(config, tmp_path)) == {Path(path), Path(plain)}
    train, heldout = _tables(tmp_path / "out")
    for table in (train, heldout):
        lengths = [len(row) for row in rows_of(table)]
        assert set(lengths) == {1, 2}
        assert lengths == sorted(lengths, reverse=True)
    assert len({one.prompt_id for one in train}) == len(train)


def test_a_pair_of_which_one_text_is_held_out_is_not_trained_on(tmp_path):
    paths = {
        "path": _written(tmp_path, "train.json", [*_pairs(5), {"prompt1": "x", "prompt2": "y"}]),
        "heldout_path": _written(tmp_path, "heldout.json", [{"prompt1": "y", "prompt2": "z"}]),
    }
    summary = prepare(_config(source="focusdiff", **paths), tmp_path / "out")
    assert summary["dropped_because_held_out"] == 2
    train, heldout = _tables(tmp_path / "out")
    assert "x" not in {one.text for one in train}
    assert len(rows_of(train)) == 5
    assert [one.text for one in heldout] == ["y", "z"]


def test_a_text_of_two_pairs_is_in_one_split_only(tmp_path):
    """Split by both texts, pairs that share one may be parted; then the training one goes."""
    pairs = [{"prompt1": "a dog", "prompt2": f"a dog with hat {i}"} for i in range(80)]
    path = _written(tmp_path, "pairs.json", [*pairs, *_pairs(40)])
    summary = prepare(_config(source="focusdiff", path=path, train_prompts=500), tmp_path / "out")
    train, heldout = ({one.text for one in table} for table in _tables(tmp_path / "out"))
    assert not train & heldout
    assert summary["dropped_because_held_out"] > 0


def test_held_out_prompts_may_be_in_another_format(tmp_path):
    """Training on FocusDiff's pairs, evaluation on PairComp."""
    captions = {"category": "Color difference", "caption1": "a red car", "caption2": "a blue car"}
    config = _config(
        source="focusdiff",
        path=_written(tmp_path, "pairs.json", _pairs(10)),
        heldout_source="paircomp",
        heldout_path=_written(tmp_path, "PairComp.json", [captions]),
    )
    prepare(config, tmp_path / "out")
    train, heldout = _tables(tmp_path / "out")
    assert len(train) == 20
    assert [one.metadata["category"] for one in heldout] == ["Color difference"] * 2


@pytest.mark.parametrize("source", ["janus_edit", "janus_sft_edit"])
@pytest.mark.parametrize(
    ("pictures", "words"),
    [(1, "60 prompts change the same picture: edits of one"), (2, "60 prompts change 2 pictures")],
)
def test_edits_of_few_pictures_cannot_be_split_and_why_is_said(tmp_path, source, pictures, words):
    for index in range(pictures):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{index}.png")
    rows = []
    for number in range(60):
        picture, text = f"{number % pictures}.png", f"make it {number}"
        edit = {"image1": picture, "text": text}
        sft = {"sample_id": number, "text": text, "input": picture, "output": picture}
        rows.append(json.dumps(edit if source == "janus_edit" else sft))
    path = _written(tmp_path, "edits.jsonl", "\n".join(rows))
    # A seed that puts all of them on one side.
    seed = next(
        seed
        for seed in range(100)
        if len({uniform("prompt split", seed, f"{one}.png") < 0.15 for one in range(pictures)}) == 1
    )
    config = _config(source=source, path=path, seed=seed)
    with pytest.raises(DataError, match=f"{words}.*name a data.heldout_path"):
        prepare(config, tmp_path / "out")


def test_few_pairs_are_counted_as_what_they_are(tmp_path):
    path = _written(tmp_path, "pairs.json", _pairs(1))
    with pytest.raises(DataError, match=r"its 2 prompts \(1 pairs or single prompts\) are too few"):
        prepare(_config(source="focusdiff", path=path), tmp_path / "out")


def test_edits_of_one_picture_are_in_one_split_wherever_the_files_lie(tmp_path):
    splits = []
    for place in ("here", "there"):
        folder = tmp_path / place
        folder.mkdir()
        rows = []
        for index in range(40):
            Image.new("RGB", (4, 4)).save(folder / f"{index}.png")
            for what in ("red", "blue"):
                rows.append({"image1": f"{index}.png", "text": f"make it {what}"})
        path = _written(folder, "edits.jsonl", "\n".join(json.dumps(row) for row in rows))
        config = _config(source="janus_edit", path=path, train_prompts=500)
        summary = prepare(config, folder / "out")
        assert summary["dropped_because_held_out"] == 0, "equal texts, other pictures"
        names = [
            {Path(one.metadata["source_image"]).name for one in table}
            for table in _tables(folder / "out")
        ]
        assert not names[0] & names[1]
        splits.append(names)
    assert splits[0] == splits[1]


# Pictures ----------------------------------------------------------------------------------------


def test_a_picture_is_upright_and_on_white(tmp_path):
    clear = Image.new("RGBA", (4, 2), (255, 0, 0, 0))
    clear.save(tmp_path / "clear.png")
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter
    Image.new("RGB", (40, 20), "blue").save(tmp_path / "turned.jpg", exif=exif)
    one = Prompt(0, 0, "x", {"image": str(tmp_path / "clear.png")})
    assert np.asarray(ground_truth_image(one)).min() == 255
    two = Prompt(0, 0, "x", {"image": str(tmp_path / "turned.jpg")})
    assert ground_truth_image(two).size == (20, 40)


def test_pictures_that_cannot_be_used_are_named(tmp_path, monkeypatch):
    good = tmp_path / "good.png"
    Image.effect_noise((64, 64), 50).save(good)
    assert picture_problem(good) is None
    assert "no such file" in picture_problem(tmp_path / "none.png")
    assert "no such file" in picture_problem(tmp_path)
    assert "no such file" in picture_problem(Path("\0"))
    monkeypatch.setattr("atelier.data.ground_truth.MOST_PIXELS", 1000)
    assert "too many pixels (64 x 64, at most 1000)" in picture_problem(good)
    monkeypatch.setattr("atelier.data.ground_truth.MOST_PIXELS", MOST_PIXELS)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert "too many pixels" in picture_problem(good)
    monkeypatch.undo()
    Image.new("RGB", (1, 16)).save(tmp_path / "strip.png")
    assert picture_problem(tmp_path / "strip.png") is None
    Image.new("RGB", (17, 1)).save(tmp_path / "strip.png")
    problem = "strip.png is too long (17 x 1, at most 16 times as long as wide)"
    assert problem in picture_problem(tmp_path / "strip.png")
    asked = Prompt(3, 0, "a dog", {"image": str(good)})
    good.write_bytes(good.read_bytes()[:500])
    with pytest.raises(DataError, match=r"prompt 3 \('a dog'\): .*good\.png is damaged"):
        ground_truth_image(asked)
    good.unlink()
    with pytest.raises(DataError, match=r"prompt 3 .*no such file .*good\.png"):
        ground_truth_image(asked)


def test_a_prompt_without_pictures_has_none():
    assert ground_truth_image(Prompt(0, 0, "x")) is None
    assert source_image(Prompt(0, 0, "x", {"image": "y"})) is None
    assert not is_edit(Prompt(0, 0, "x"))
