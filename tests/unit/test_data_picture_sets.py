"""Files that list files of captioned pictures: MMEngine's Python as literals, and YAML."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atelier.config.sections.data import DataConfig
from atelier.data.captioned import captioned_table, count_pictures, picture_indices
from atelier.data.ground_truth import ground_truth_image
from atelier.data.prepare import input_files, prepare
from atelier.data.readers.picture_sets import PictureSet, read_sets
from atelier.errors import DataError
from tests.support.complex_edit import picture, png

PYTHON = """\
'''Pictures.'''
import os
from mmengine.config import read_base
from ours import BLIP3oDataset, ConcatDataset

with read_base():
    from .processors import *

root = os.getenv('DATA_ROOT', '/somewhere')
shared = dict(type=BLIP3oDataset, image_size=512, image_process='fix_pixels', ceph_folder=None)
posters = dict(**shared, data_path=f'{root}/posters.json', sample_weight=3.0, transform=made())
not_listed = dict(data_path=root + '/none.json')
talk = dict(shared, data_path='unused')
train_dataloader = dict(batch_size=2, dataset=dict(type=ConcatDataset, datasets=[
    posters,
    {'data_path': os.path.join(root, 'lists', 'talk' + '.json'), 'image_folder': root + '/images'},
]))
"""
YAML = """\
datasets:
  - {data_path: posters.json, sample_weight: 3}
  - data_path: lists/talk.json
    image_folder: images
"""


def write_list(path: Path, pictures: Path, numbers: range, prefix: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pictures.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        (pictures / f"{number}.png").write_bytes(png(number))
    rows = [{"image_path": f"{prefix}{one}.png", "txt": f"picture {one}"} for one in numbers]
    path.write_text(json.dumps(rows))


def written(folder: Path) -> None:
    write_list(folder / "posters.json", folder, range(3))
    write_list(folder / "lists" / "talk.json", folder / "images", range(3, 9))


def configured(path: Path, **entries: Any) -> DataConfig:
    files = {"sftaux": {"path": str(path), **entries}}
    sft = {"source": "files", "files": files}
    return DataConfig.model_validate({"train_prompts": 20, "heldout_prompts": 5, "sft": sft})


@pytest.mark.parametrize("form", ["py", "yaml"])
def test_both_forms_name_the_same_sets(tmp_path: Path, form: str) -> None:
    written(tmp_path)
    path = tmp_path / f"t2i.{form}"
    path.write_text(PYTHON if form == "py" else YAML)
    assert read_sets(path, str(tmp_path)) == [
        PictureSet(tmp_path / "posters.json", tmp_path, 3.0),
        PictureSet(tmp_path / "lists" / "talk.json", tmp_path / "images", 1.0),
    ]


@pytest.mark.parametrize("form", ["py", "yaml"])
def test_their_pictures_are_a_table_drawn_by_weight(tmp_path: Path, form: str) -> None:
    written(tmp_path)
    path = tmp_path / f"t2i.{form}"
    path.write_text(PYTHON if form == "py" else YAML)
    config = configured(path, data_root=str(tmp_path), **({} if form == "py" else {"weight": 2}))
    table = captioned_table(config)
    assert table is not None
    assert count_pictures(config.sft) == len(table) == 9
    assert [one.text for one in table] == [f"picture {number}" for number in range(9)]
    names = Counter(one.metadata["dataset"] for one in table)
    assert names == {"sftaux/posters": 3, "sftaux/talk": 6}
    shown = ground_truth_image(table[5])
    assert shown is not None
    assert np.array_equal(np.asarray(shown), np.asarray(picture(5)))
    drawn = [picture_indices(table, config.sft, update, 1, 7)[0] for update in range(300)]
    assert sum(index < 3 for index in drawn) / 300 == pytest.approx(9 / 15, abs=0.06)


def test_a_changed_list_prepares_again(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "t2i.yaml"
    path.write_text(YAML)
    found = set(input_files(configured(path), tmp_path))
    assert {path, tmp_path / "posters.json", tmp_path / "lists" / "talk.json"} <= found


def refused(tmp_path: Path, text: str, root: str | None = "") -> str:
    written(tmp_path)
    path = tmp_path / "t2i.py"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_sets(path, str(tmp_path) if root == "" else root)
    return str(caught.value)


def loader(*sets: str, before: str = "") -> str:
    return f"{before}train_dataloader = dict(dataset=[{', '.join(sets)}])\n"


POSTERS = "dict(data_path='posters.json')"
SET = "dict(data_path='posters.json', sample_weight={})"
DOUBLED = "x = [1]\n" + "x = [x, x]\n" * 40


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("this is no python", "not Python"),
        ("x = 1\n", "has no train_dataloader"),
        ("train_dataloader = dict(batch_size=2)\n", "names no data set"),
        ("train_dataloader = load()\n", "line 1: `load()` is known only when the file is run"),
        (loader(POSTERS, "more()"), "line 1: `more()` is known only when the file is run"),
        (loader("dict(data_path=where)"), "line 1: data_path: `where` is known only when"),
        (loader("dict(data_path=f'{a:>9}.json')"), "data_path: `f'{a:>9}.json'` is known only"),
        (loader("dict(data_path='posters.json', sample_weight=n())"), "sample_weight: `n()` is kn"),
        (loader("dict(data_path='posters.json', image_folder=n)"), "image_folder: `n` is known"),
        (loader("dict(data_path='posters.json', ceph_folder='s3')"), "from files alone"),
        (loader("dict(data_path='posters.json', sample_weight=0)"), "sample_weight 0: a number fr"),
        (loader("dict(data_path='posters.json', sample_weight=1e308)"), "sample_weight 1e+308: a "),
        (
            loader("dict(data_path='posters.json', sample_weight=1e-320)"),
            "sample_weight 1e-320: a ",
        ),
        (loader("dict(data_path='posters.json', sample_weight=True)"), "sample_weight True: a num"),
        (loader("dict(data_path=['posters.json'])"), "data_path: a text expected"),
        (loader("dict(data_path='none.json')"), "data_path: no such file"),
        (loader("dict(data_path='posters.parquet')"), "a JSON list of {image_path, txt}"),
        (
            loader(POSTERS) + "train_dataloader.update(x)\n",
            "line 2: `train_dataloader.update(x)` w",
        ),
        (loader(POSTERS) + "for x in y:\n  pass\n", "line 2: `for x in y:` would have to be run"),
        (
            loader(POSTERS) + "train_dataloader['dataset'] = x\n",
            "line 2: `train_dataloader['datase",
        ),
        (loader("x", "x", before=f"x = {POSTERS}\n"), "line 1: stands twice among the data sets"),
        (loader("x", before="x = [{}, {}]\n" + "x = [x, x]\n" * 60), "stands twice"),
        (loader("dict(data_path=x)", before="x = 'a'\n" + "x = x + x\n" * 60), "is known only"),
        ("x = " + "'a' + " * 20_000 + "'a'", "not Python"),
        (loader("dict(data_path=x)", before=DOUBLED), "line 42: data_path: a text expected, not"),
        (loader(SET.format("x"), before=DOUBLED), "line 42: sample_weight [[["),
        (
            loader("dict(data_path=x)", before="x = {}\n" + "x = dict(a=x, b=x)\n" * 40),
            "line 42: data_path: a text expected, not <mapping of line 41>",
        ),
        (loader("dict(data_path=x)", before="x = []\n" + "x = [x]\n" * 3000), "a text expected"),
        (loader(SET.format("9" * 400)), "line 1: sample_weight 999"),
        (
            loader(SET.format("0x" + "f" * 9000)),
            "line 1: sample_weight <int>: a number from 1e-06 to 1e+06",
        ),
        (loader("dict(data_path=0x" + "f" * 9000 + ")"), "line 1: data_path: a text expected"),
        (loader(f"dict(data_path='{'x' * 400}.json')"), "line 1: data_path: no such file"),
        (loader(f"dict(data_path={'not ' * 900}x)"), "line 1: data_path: `an expression that is"),
        ("y = 1\nx = " + "'a' + " * 985 + "'a'\n", "line 2: nested too deeply"),
        (
            loader(SET.format("w"), before="w = 1\nfrom base import w\n"),
            "line 2: sample_weight: `w` is",
        ),
        (loader(SET.format("w"), before="w = 1\nfrom base import *\n"), "sample_weight: `*` is k"),
        (loader(SET.format("w"), before="w = 1\nimport w.of\n"), "sample_weight: `w.of` is known"),
        (
            loader(SET.format("w"), before="w = 1\nwith read_base():\n  from .x import w\n"),
            "sample_weight: `w` is known only",
        ),
        (loader(SET.format("w"), before="w = 1\nclass w: pass\n"), "`class w:` is known only"),
        (loader(SET.format("w"), before="w = 1\nx = f(w := 2)\n"), "`(w := 2)` is known only"),
        (loader(POSTERS) + "def train_dataloader(): pass\n", "line 2: `def train_dataloader"),
        ("def dict(**all): pass\n" + loader(POSTERS), "line 2: `dict("),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, text: str, says: str) -> None:
    assert says in refused(tmp_path, text)


def test_sets_are_found_however_deep(tmp_path: Path) -> None:
    written(tmp_path)
    path = tmp_path / "t2i.py"
    path.write_text(f"x = {POSTERS}\n" + "x = [x]\n" * 3000 + "train_dataloader = x\n")
    assert [one.name for one in read_sets(path, None)] == ["posters"]


def test_a_file_is_never_run(tmp_path: Path) -> None:
    text = loader(POSTERS) + f"open({str(tmp_path / 'it-was-run')!r}, 'w')\n"
    assert "would have to be run" in refused(tmp_path, text)
    assert not (tmp_path / "it-was-run").exists()


def test_variables_of_a_path_are_named(tmp_path: Path) -> None:
    told = refused(tmp_path, PYTHON, None)
    assert told.count("$DATA_ROOT: name the folder, as data_root") == 3
    own = loader("dict(data_path=os.environ['HOME'] + '/a.json')")
    assert "$HOME/a.json: of variables, only $DATA_ROOT" in refused(tmp_path, own)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("datasets: [{data_pth: posters.json}]", "did you mean data_path"),
        ("datasets: [{sample_weight: 1}]", "line 1: has no data_path"),
        ("datasets: [{data_path: posters.json, sample_weight: much}]", "sample_weight: a number"),
        ("datasets: []", "datasets: a non-empty list"),
        ("datsets: []", "did you mean datasets"),
        (
            "datasets: [{? [&a0 [1], "
            + ", ".join(f"&a{n + 1} [*a{n}, *a{n}]" for n in range(40))
            + "] : 1}]\n",
            "unknown key 'a sequence'",
        ),
    ],
)
def test_a_wrong_yaml_is_refused(tmp_path: Path, text: str, says: str) -> None:
    written(tmp_path)
    path = tmp_path / "own.yaml"
    path.write_text(text)
    with pytest.raises(DataError) as caught:
        read_sets(path, None)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"image_path": "0.png"}], "item 0: key 'txt': a non-empty text"),
        ([{"image_path": "none.png", "txt": "a"}], "item 0: key 'image_path': no such file"),
        ([{"image": "0.png", "txt": "a"}], "did you mean image_path"),
        ([7], "item 0: an object with image_path, txt"),
        ({}, "a non-empty JSON list of pictures"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, rows: Any, says: str) -> None:
    written(tmp_path)
    (tmp_path / "posters.json").write_text(json.dumps(rows))
    path = tmp_path / "own.yaml"
    path.write_text(YAML)
    with pytest.raises(DataError) as caught:
        prepare(configured(path), tmp_path / "out")
    assert says in str(caught.value)
