"""Preparation: sizes, splits without leakage, reproducible tables, errors that touch nothing."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from atelier.config.prompt_files import FOLDER_FILES
from atelier.config.sections.data import DataConfig
from atelier.data.prepare import input_files, prepare
from atelier.data.prompts import read_prompts
from atelier.data.scenes import from_dict, prompt, split_of
from atelier.errors import DataError


def _config(**changes):
    return DataConfig(**{"train_prompts": 60, "heldout_prompts": 20, **changes})


def _tables(folder):
    return read_prompts(folder / "train.parquet"), read_prompts(folder / "heldout.parquet")


def _ocr_file(folder, count=200, name="ocr.txt", first=0):
    path = folder / name
    path.write_text("".join(f'a sign that says "word {first + i}"\n' for i in range(count)))
    return str(path)


@pytest.mark.parametrize("kind", ["word", "shapes", "mixed"])
def test_scenes_give_exactly_the_prompts_asked_for(tmp_path, kind):
    summary = prepare(_config(scene_kind=kind), tmp_path)
    train, heldout = _tables(tmp_path)
    assert (len(train), len(heldout)) == (60, 20)
    assert len({one.text for one in (*train, *heldout)}) == 80
    for name, prompts in (("train", train), ("heldout", heldout)):
        assert summary[name]["digest"] == prompts.digest
        for one in prompts:
            scene = from_dict(one.metadata["scene"])
            assert split_of(scene) == name
            assert prompt(scene) == one.text
            assert one.metadata.get("target") == (scene.word.text if scene.word else None)
    assert json.loads((tmp_path / "summary.json").read_text()) == summary


def test_no_held_out_word_is_trained_on(tmp_path):
    prepare(_config(train_prompts=1500, heldout_prompts=250), tmp_path)
    train, heldout = ({one.metadata["target"] for one in table} for table in _tables(tmp_path))
    assert not train & heldout


def test_tables_follow_from_the_configuration(tmp_path):
    digests = [
        [prepare(_config(**change), tmp_path / str(index))[name]["digest"] for name in splits]
        for index, change in enumerate([{}, {}, {"seed": 1}])
        for splits in [("train", "heldout")]
    ]
    assert digests[0] == digests[1]
    assert not set(digests[0]) & set(digests[2])
    assert (tmp_path / "0/train.parquet").read_bytes() == (
        tmp_path / "1/train.parquet"
    ).read_bytes()


def test_a_larger_set_begins_with_the_smaller_one(tmp_path):
    for count in (30, 60):
        prepare(_config(train_prompts=count), tmp_path / str(count))
    small, large = (read_prompts(tmp_path / n / "train.parquet") for n in ("30", "60"))
    assert large[:30] == small[:]


def test_more_scenes_than_there_are_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("atelier.data.scene_tables.FRUITLESS_DRAWS", 8)  # sooner than in earnest
    config = _config(scene_kind="shapes", heldout_prompts=100_000)
    with pytest.raises(DataError, match=r"data\.heldout_prompts 100000: .*use --set"):
        prepare(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_is_split_by_content(tmp_path):
    config = _config(source="ocr_text", path=_ocr_file(tmp_path, 400), train_prompts=1000)
    summary = prepare(config, tmp_path / "out")
    train, heldout = _tables(tmp_path / "out")
    assert len(heldout) == 20
    assert 300 < len(train) < 380
    assert not {one.text for one in train} & {one.text for one in heldout}
    assert all(one.metadata["target"].startswith("word") for one in train)
    assert summary["train"]["prompts"] == len(train)
    # More lines in the file move no prompt from one split to the other.
    config = _config(source="ocr_text", path=_ocr_file(tmp_path, 600), train_prompts=1000)
    prepare(config, tmp_path / "more")
    assert {one.text for one in train} <= {one.text for one in _tables(tmp_path / "more")[0]}


def test_prompts_are_drawn_from_the_whole_file_in_its_order(tmp_path):
    prepare(_config(source="ocr_text", path=_ocr_file(tmp_path, 400)), tmp_path / "out")
    ids = [one.prompt_id for one in _tables(tmp_path / "out")[0]]
    assert len(ids) == 60
    assert ids == sorted(ids)
    assert ids[-1] > 300


def test_a_held_out_file_wins_over_the_training_file(tmp_path):
    config = _config(
        source="ocr_text",
        path=_ocr_file(tmp_path, 50),
        heldout_path=_ocr_file(tmp_path, 20, "heldout.txt", first=40),
    )
    summary = prepare(config, tmp_path / "out")
    train, heldout = _tables(tmp_path / "out")
    assert (len(train), len(heldout)) == (40, 20)
    assert summary["dropped_because_held_out"] == 10
    assert not {one.text for one in train} & {one.text for one in heldout}


def _folder(folder, source):
    """A folder as Flow-GRPO and MM-GRPO have it: two prompts to train on, one held out."""
    folder.mkdir()
    names = FOLDER_FILES[source]
    texts = {
        "train": ['a dog "ONE"', 'a cat "TWO"'],
        "heldout": ['a cow "THREE"'],
    }
    for split, lines in texts.items():
        if source == "geneval":
            clause = {"include": [{"class": "dog", "count": 1}], "tag": "single_object"}
            lines = [json.dumps({**clause, "prompt": text}) for text in lines]
        (folder / names[split]).write_text("".join(f"{line}\n" for line in lines))
    return str(folder)


def _data(source, **changes):
    """The fields `prepare` needs, without the schema."""
    config = {**dict(_config()), "source": source, "heldout_path": None, **changes}
    return SimpleNamespace(**config, parts=dict)


@pytest.mark.parametrize("source", sorted(FOLDER_FILES))
def test_a_folder_stands_for_its_two_files(tmp_path, source):
    path = _folder(tmp_path / "set", source)
    for changes in ({}, {"heldout_path": path}):
        config = _data(source, path=path, **changes)
        prepare(config, tmp_path / "out")
        train, heldout = _tables(tmp_path / "out")
        assert (len(train), len(heldout)) == (2, 1)
        named = {Path(path) / name for name in FOLDER_FILES[source].values()}
        assert set(input_files(config, tmp_path)) == named


def test_a_folder_without_a_held_out_file_is_split(tmp_path):
    folder = tmp_path / "set"
    folder.mkdir()
    _ocr_file(folder, 400, "train.txt")
    prepare(_config(source="ocr_text", path=str(folder)), tmp_path / "out")
    assert [len(table) for table in _tables(tmp_path / "out")] == [60, 20]


def test_a_held_out_file_of_a_folder_that_dvc_has_yet_to_bring_is_not_split_over(tmp_path):
    folder = Path(_folder(tmp_path / "set", "ocr_text"))
    (folder / "test.txt").rename(folder / "test.txt.dvc")
    with pytest.raises(DataError, match=r"test\.txt: no such file"):
        prepare(_config(source="ocr_text", path=str(folder)), tmp_path / "out")


def test_both_captions_of_a_pair_are_in_one_split(tmp_path):
    pairs = [
        {"category": "Color", "caption1": f"red dog {i}", "caption2": f"blue dog {i}"}
        for i in range(120)
    ]
    path = tmp_path / "pairs.json"
    path.write_text(json.dumps(pairs))
    prepare(_config(source="paircomp", path=str(path)), tmp_path / "out")
    train, heldout = ({one.metadata["pair"] for one in t} for t in _tables(tmp_path / "out"))
    assert train
    assert heldout
    assert not train & heldout


def test_a_deepgen_mixture_is_in_the_summary(tmp_path):
    _ocr_file(tmp_path, 100)
    path = tmp_path / "train.yaml"
    path.write_text(
        "datasets:\n- {name: a, path: ocr.txt, sample_weight: 2, rewards: [{ocr: 1}]}\n"
    )
    summary = prepare(_config(source="deepgen", path=str(path)), tmp_path / "out")
    assert summary["mixture"] == {
        "sampling_mode": "sample_proportional",
        "datasets": [
            {
                **{"dataset_id": 0, "name": "a", "sample_weight": 2.0, "rewards": {"ocr": 1.0}},
                **{"train": 60, "heldout": summary["heldout"]["prompts"], "drawn": 1.0},
                **{"without_target": 0},
            }
        ],
    }
    assert _tables(tmp_path / "out")[0][0].metadata["rewards"] == {"ocr": 1.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": None}, r"data\.path: source 'ocr_text' needs a prompt file"),
        ({"path": "none.txt"}, "none.txt: no such file"),
        ({"heldout_path": "none.txt"}, "none.txt: no such file"),
        ({"heldout_path": "SELF"}, "no training prompt is left"),
        ({"path": "ONE"}, r"no (training|held-out) prompt is left: .*data\.heldout_path"),
        ({"path": "BAD"}, "bad.txt: line 2"),
    ],
)
def test_errors_leave_earlier_tables_untouched(tmp_path, changes, message):
    path = _ocr_file(tmp_path)
    prepare(_config(source="ocr_text", path=path), tmp_path / "out")
    before = {file: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    Path(tmp_path / "bad.txt").write_text('a "b"\nbad\n')
    named = {
        "SELF": path,
        "ONE": _ocr_file(tmp_path, 1, "one.txt"),
        "BAD": str(tmp_path / "bad.txt"),
    }
    changes = {key: named.get(value, value) for key, value in changes.items()}
    with pytest.raises(DataError, match=message):
        prepare(_config(**{"source": "ocr_text", "path": path, **changes}), tmp_path / "out")
    assert {file: file.read_bytes() for file in (tmp_path / "out").iterdir()} == before
