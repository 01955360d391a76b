"""Captioned pictures: read in both formats, made into a table, drawn by weight; or refused."""

from __future__ import annotations

import io
import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from atelier.config.sections.data import DataConfig
from atelier.data.captioned import captioned_table, count_pictures, picture_indices
from atelier.data.ground_truth import ground_truth_image
from atelier.data.parquet_pictures import picture_bytes
from atelier.data.prepare import input_files, prepare
from atelier.data.prompts import PromptSet, read_prompts
from atelier.data.readers.captioned import read
from atelier.data.samplers import prompt_indices
from atelier.errors import DataError, PlanError
from tests.support.complex_edit import picture, png


def write_lines(path: Path, count: int, first: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(first, first + count):
        (path.parent / f"{number}.png").write_bytes(png(number))
        lines.append(json.dumps({"caption": f"picture {number}", "image": f"{number}.png"}))
    path.write_text("\n".join(lines))
    return path


def write_table(path: Path, count: int, bare: bool = False, **changes: Any) -> Path:
    rows = {
        "caption": [f"picture {number}" for number in range(count)],
        "image": [
            png(number) if bare else {"bytes": png(number), "path": None} for number in range(count)
        ],
        "unused": [0] * count,
        **changes,
    }
    parquet.write_table(pyarrow.table(rows), path)
    return path


def configured(**sft: Any) -> DataConfig:
    return DataConfig.model_validate({"train_prompts": 20, "heldout_prompts": 5, "sft": sft})


@pytest.mark.parametrize("form", ["jsonl", "parquet", "bare", "shards"])
def test_every_format_gives_captions_and_their_pictures(tmp_path: Path, form: str) -> None:
    if form == "jsonl":
        path = write_lines(tmp_path / "own.jsonl", 4)
    elif form == "shards":
        write_table(tmp_path / "own-00001-of-00002.parquet", 4)
        path = write_table(tmp_path / "own-00000-of-00002.parquet", 4)
    else:
        path = write_table(tmp_path / "own.parquet", 4, bare=form == "bare")
    found = read(path)
    numbers = [0, 1, 2, 3] * (2 if form == "shards" else 1)
    assert [one.text for one in found] == [f"picture {number}" for number in numbers]
    assert [one.prompt_id for one in found] == list(range(len(numbers)))
    for number, one in zip(numbers, found, strict=True):
        shown = ground_truth_image(one)
        assert shown is not None
        assert np.array_equal(np.asarray(shown), np.asarray(picture(number)))


def test_a_file_is_opened_once_for_all_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_table(tmp_path / "own.parquet", 4)
    found, opened = read(path), []
    real = parquet.ParquetFile

    def opening(file: Path, **how: Any) -> parquet.ParquetFile:
        opened.append(file)
        return real(file, **how)

    monkeypatch.setattr(parquet, "ParquetFile", opening)
    for number, one in enumerate(found):
        shown = ground_truth_image(one)
        assert shown is not None
        assert np.array_equal(np.asarray(shown), np.asarray(picture(number)))
    assert opened == [path]
    write_table(path, 6)
    os.utime(path, ns=(1, 1))  # another file of that name
    with pytest.raises(OSError, match="has 6 rows"):
        picture_bytes(path / "6")
    assert opened == [path, path]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"caption": "a", "image": "none.png"}', "line 2: key 'image': no such file"),
        ('{"caption": "a", "image": "broken.png"}', "broken.png is not an image"),
        ('{"caption": " ", "image": "0.png"}', "line 2: key 'caption': a non-empty text"),
        ('{"caption": 7, "image": "0.png"}', "line 2: key 'caption': a non-empty text"),
        ('{"caption": "a"}', "line 2: key 'image'"),
        ('{"caption": "a", "imgae": "0.png"}', "line 2: unknown key 'imgae'; did you mean image?"),
        ('["a", "0.png"]', "line 2: an object with caption, image expected"),
        ('{"caption": "a", ', "line 2: not JSON"),
        ('{"caption": "a", "image": "' + "x" * 5000 + '"}', "line 2: key 'image': no such file"),
    ],
)
def test_wrong_lines_are_named(tmp_path: Path, line: str, says: str) -> None:
    path = write_lines(tmp_path / "own.jsonl", 1)
    (tmp_path / "broken.png").write_bytes(b"no picture")
    path.write_text(f"{path.read_text()}\n{line}\n")
    with pytest.raises(DataError) as caught:
        read(path)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"caption": ["a", ""]}, "row 1: key 'caption': a non-empty text"),
        ({"caption": [None, "b"]}, "row 0: key 'caption': a non-empty text"),
        ({"image": [{"bytes": b"none"}, {"bytes": b"x"}]}, "row 0: key 'image': .* not an image"),
        ({"image": ["a.png", "b.png"]}, "row 0: key 'image': the bytes of a picture"),
    ],
)
def test_wrong_rows_are_named(tmp_path: Path, changes: dict, says: str) -> None:
    with pytest.raises(DataError, match=says):
        read(write_table(tmp_path / "own.parquet", 2, **changes))


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.jsonl: no such file"):
        read(tmp_path / "none.jsonl")
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 but not really")
    with pytest.raises(DataError, match=r"broken\.parquet: not a Parquet file"):
        read(tmp_path / "broken.parquet")
    parquet.write_table(pyarrow.table({"text": ["a"]}), tmp_path / "other.parquet")
    with pytest.raises(DataError, match="no column caption, image"):
        read(tmp_path / "other.parquet")
    parquet.write_table(
        pyarrow.table(
            {"caption": pyarrow.array([], "string"), "image": pyarrow.array([], "binary")}
        ),
        tmp_path / "empty.parquet",
    )
    files = {"empty": {"path": str(tmp_path / "empty.parquet")}}
    with pytest.raises(DataError, match="needs at least one"):
        prepare(configured(source="files", files=files), tmp_path / "out")


def test_a_table_of_files_knows_where_pictures_come_from(tmp_path: Path) -> None:
    first = write_lines(tmp_path / "z" / "own.jsonl", 3)
    second = write_table(tmp_path / "own.parquet", 2)
    files = {"late": {"path": str(first)}, "early": {"path": str(second), "weight": 2}}
    config = configured(source="files", files=files)
    summary = prepare(config, tmp_path / "out")
    table = read_prompts(tmp_path / "out" / "sft.parquet")
    assert summary["sft"] == {**summary["sft"], "prompts": 5, "datasets": 2, "digest": table.digest}
    named = [(one.dataset_id, one.prompt_id, one.metadata["dataset"]) for one in table]
    assert named == [
        *((0, number, "early") for number in range(2)),
        *((1, number, "late") for number in range(3)),
    ]
    assert {first, second} <= set(input_files(config, tmp_path))
    assert prepare(configured(), tmp_path / "none")["sft"] is None
    assert not (tmp_path / "none" / "sft.parquet").exists()


def test_scenes_are_rendered_and_never_held_out(tmp_path: Path) -> None:
    config = configured(source="scenes", scenes=40)
    table = captioned_table(config)
    assert table is not None
    assert len(table) == len({one.text for one in table}) == 40
    prepare(config, tmp_path)
    heldout = read_prompts(tmp_path / "heldout.parquet")
    assert {one.text for one in table}.isdisjoint(one.text for one in heldout)
    for one in table[:3]:
        drawn = ground_truth_image(one, 64)
        assert drawn is not None
        assert np.asarray(drawn).min() < 128, "nothing is drawn"


def test_a_world_without_so_many_scenes_says_how_many_it_has() -> None:
    few = DataConfig.model_validate(
        {"scene_kind": "shapes", "sft": {"source": "scenes", "scenes": 1_000_000}}
    )
    with pytest.raises(DataError, match=r"data\.sft\.scenes 1000000: .* holds \d+ different"):
        captioned_table(few)


def drawn_by_name(tmp_path: Path, mode: str, updates: int = 300) -> Counter:
    files = {
        "few": {"path": str(write_lines(tmp_path / "a" / "own.jsonl", 5)), "weight": 3},
        "many": {"path": str(write_lines(tmp_path / "b" / "own.jsonl", 20))},
    }
    config = configured(source="files", files=files, sampling_mode=mode)
    table = captioned_table(config)
    assert table is not None
    places = [picture_indices(table, config.sft, update, 2, 7) for update in range(updates)]
    assert places == [picture_indices(table, config.sft, one, 2, 7) for one in range(updates)]
    assert all(len(set(one)) == 2 for one in places)
    return Counter(table[place].metadata["dataset"] for one in places for place in one)


def test_weights_say_how_often_files_are_met(tmp_path: Path) -> None:
    """Three times as often each picture: 15 to 20; or three times as often all of them: 3 to 1,
    a little less where two of five are drawn without replacement."""
    each = drawn_by_name(tmp_path, "sample_proportional")
    assert each["few"] / each.total() == pytest.approx(15 / 35, abs=0.06)
    together = drawn_by_name(tmp_path, "weight_only")
    assert together["few"] / together.total() == pytest.approx(0.72, abs=0.06)


def test_a_table_without_weights_is_not_drawn_from_evenly_in_silence(tmp_path: Path) -> None:
    """As earlier versions prepared it, and a resumed run still has it."""
    files = {"own": {"path": str(write_lines(tmp_path / "own.jsonl", 5)), "weight": 3}}
    config = configured(source="files", files=files)
    table = captioned_table(config)
    assert table is not None
    older = tuple(
        replace(one, metadata={key: one.metadata[key] for key in ("image", "dataset")})
        for one in table
    )
    with pytest.raises(DataError, match=r"data/sft\.parquet: an earlier version prepared it"):
        picture_indices(PromptSet(older, table.name), config.sft, 0, 2, 7)


def test_every_picture_is_met_once_before_any_is_met_again() -> None:
    config = configured(source="scenes", scenes=12)
    table = captioned_table(config)
    assert table is not None
    for epoch in range(3):
        met = [
            place
            for update in range(4 * epoch, 4 * epoch + 4)
            for place in picture_indices(table, config.sft, update, 3, 1)
        ]
        assert sorted(met) == list(range(12))
    named = (
        r"train\.sft\.pictures_per_update 13 exceeds the 12 captioned pictures of data\.sft\.scenes"
    )
    with pytest.raises(PlanError, match=named):
        picture_indices(table, config.sft, 0, 13, 1)


def test_pictures_are_not_drawn_in_the_order_of_prompts() -> None:
    config = configured(source="scenes", scenes=12)
    table = captioned_table(config)
    assert table is not None
    drawn = [picture_indices(table, config.sft, update, 12, 1) for update in range(3)]
    assert drawn != [prompt_indices(12, step, 12, 1) for step in range(3)]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_truncated_picture_is_refused_when_the_table_is_made(tmp_path: Path, form: str) -> None:
    """Its header is sound. Named with its row and file."""
    if form == "jsonl":
        path = write_lines(tmp_path / "own.jsonl", 4)
        (tmp_path / "2.png").write_bytes(png(2)[:-30])
    else:
        pictures = [png(number)[: -30 if number == 2 else None] for number in range(4)]
        path = write_table(tmp_path / "own.parquet", 4, image=pictures)
    data = configured(source="files", files={"own": {"path": str(path)}})
    place = r"2\.png" if form == "jsonl" else r"own\.parquet/2"
    with pytest.raises(DataError, match=rf"(?s)prompt 2 \('picture 2'\): .*{place} is damaged"):
        prepare(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_truncated_jpeg_is_refused_too(tmp_path: Path) -> None:
    """It is decoded smaller than it is, but read to its end."""
    path = write_lines(tmp_path / "own.jsonl", 1)
    noise = np.random.default_rng(0).integers(0, 256, (256, 256, 3), dtype=np.uint8)
    content = io.BytesIO()
    Image.fromarray(noise).save(content, "JPEG")
    (tmp_path / "0.png").write_bytes(content.getvalue())
    data = configured(source="files", files={"own": {"path": str(path)}})
    assert prepare(data, tmp_path / "out")["sft"]["prompts"] == 1
    (tmp_path / "0.png").write_bytes(content.getvalue()[:-2000])
    with pytest.raises(DataError, match="is damaged: image file is truncated"):
        prepare(data, tmp_path / "again")


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_pictures_are_counted_without_being_read(tmp_path: Path, form: str) -> None:
    write = write_lines if form == "jsonl" else write_table
    path = write(tmp_path / f"own.{form}", 4)
    sft = configured(source="files", files={"own": {"path": str(path)}}).sft
    assert count_pictures(sft) == 4
