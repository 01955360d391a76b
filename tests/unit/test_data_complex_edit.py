"""Complex-Edit's files: read in every layout, cut into levels, and split by picture."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from atelier.config.paths import from_root
from atelier.config.plan import plan
from atelier.config.prompt_files import named_files, shards_of
from atelier.config.resolve import resolve
from atelier.config.sections.data import DataConfig
from atelier.data.ground_truth import picture_problem, source_image
from atelier.data.parquet_pictures import picture_bytes
from atelier.data.prepare import input_files, prepare
from atelier.data.prompts import Prompt, PromptSet, read_prompts
from atelier.data.readers.complex_edit import read
from atelier.errors import DataError, PlanError
from atelier.stages.prompts_here import prompts_here
from tests.support.complex_edit import edit_of, picture, png, write_json, write_parquet

LEVELS = range(1, 9)


def number_of(one: Prompt) -> int:
    return int(one.text.partition(":")[0])


def written(folder: Path, layout: str) -> Path:
    if layout == "jsonl":
        return write_json(folder / "test_real.jsonl", range(7))
    if layout == "json":
        return write_json(folder / "test_real.json", range(7))
    if layout == "shards":
        write_parquet(folder / "test_real-00001-of-00002.parquet", range(4, 7))
        return write_parquet(folder / "test_real-00000-of-00002.parquet", range(4))
    return write_parquet(folder / "test_real.parquet", range(7), as_text=layout == "text")


LAYOUTS = ("jsonl", "json", "parquet", "text", "shards")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_a_prompt_a_picture_and_level(tmp_path: Path, layout: str) -> None:
    found = read(written(tmp_path, layout))
    assert [one.prompt_id for one in found] == list(range(7 * 8))
    for index, one in enumerate(found):
        number, level = divmod(index, 8)
        level += 1
        assert one.text == f"{number}: compound {level}"
        assert one.metadata["level"] == level
        assert one.metadata["category"] == f"C{level}"
        assert one.metadata["origin"] == "real"
        assert one.metadata["sequence"] == [f"{number}: step {k}" for k in range(1, level + 1)]
        assert len(one.metadata["operations"]) == level
        shown = source_image(one)
        assert shown is not None
        assert (shown.size, shown.tobytes()) == (picture(number).size, picture(number).tobytes())
    assert len({one.metadata["picture_digest"] for one in found}) == 7


def test_the_first_level_may_be_the_first_step_and_sequences_may_be_texts(tmp_path: Path) -> None:
    edit = edit_of(0) | {"sequence": [f"step {k}" for k in LEVELS], "original_sequence": None}
    edit["compound"][0] = {"reasoning": "none", "compound_instruction": ""}
    path = tmp_path / "mine.json"
    (tmp_path / "0.png").write_bytes(png(0))
    path.write_text(json.dumps([{"image": "0.png", "edit": json.dumps(edit), "split": "test_syn"}]))
    first, second, *_ = read(path)
    assert (first.text, second.text) == ("step 1", "0: compound 2")
    assert first.metadata["origin"] == "syn"
    assert second.metadata["sequence"] == ["step 1", "step 2"]
    assert "operations" not in first.metadata


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([], "an object with image and edit"),
        ({"edit": edit_of(0)}, "key 'image'"),
        ({"image": "none.png", "edit": edit_of(0)}, "no such file"),
        ({"image": "bad.png", "edit": edit_of(0)}, "is not an image"),
        ({"image": "0.png"}, "key 'edit'"),
        ({"image": "0.png", "edit": "{"}, "not JSON"),
        ({"image": "0.png", "edit": {"compound": []}}, "compound"),
        ({"image": "0.png", "edit": {"compound": [{}]}}, "compound 1: no compound_instruction"),
        ({"image": "0.png", "edit": {"compound": ["x"] * 9}}, "of 1 to 8"),
        ({"image": "0.png", "edit": edit_of(0) | {"sequence": 5}}, "sequence: a list, not 5"),
        ({"image": "0.png", "edit": edit_of(0) | {"sequence": "add a hat"}}, "a list, not 'add"),
        ({"image": "0.png", "edit": edit_of(0) | {"original_sequence": {}}}, "original_seq.*list"),
        ({"image": "0.png", "edit": edit_of(0), "split": "fake"}, "real or syn"),
    ],
)
def test_what_is_wrong_is_named_with_its_row(tmp_path: Path, row: Any, message: str) -> None:
    path = write_json(tmp_path / "mine.json", [0])
    (tmp_path / "bad.png").write_bytes(b"no picture")
    path.write_text(json.dumps([*json.loads(path.read_text()), row]))
    with pytest.raises(DataError, match=rf"row 1: .*{message}"):
        read(path)


def test_wrong_parquet_files_are_named(tmp_path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "mine.parquet"
    path.write_bytes(b"PAR1 no")
    with pytest.raises(DataError, match="not a Parquet file"):
        read(path)
    parquet.write_table(pyarrow.table({"image": [b"x"]}), path)
    with pytest.raises(DataError, match="no column edit"):
        read(path)
    table = {"image": [{"bytes": b"no picture", "path": "x"}, None], "edit": [edit_of(0)] * 2}
    parquet.write_table(pyarrow.table(table), path)
    with pytest.raises(DataError, match=r"(?s)row 0: .*not an image.*row 1: .*the bytes"):
        read(path)
    whole = write_parquet(path, [0], as_text=True).read_bytes()
    path.write_bytes(whole.replace(b"reasoning", b"\xff" * 9))
    with pytest.raises(DataError, match="a damaged one"):
        read(path)
    with pytest.raises(DataError, match="shard-00001-of-00002"):
        read(write_parquet(tmp_path / "shard-00000-of-00002.parquet", range(2)))


def test_a_picture_inside_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "mine.parquet", range(5))
    assert picture_bytes(path / "4") == png(4)
    assert picture_problem(path / "4") is None
    with pytest.raises(OSError, match="5 rows"):
        picture_bytes(path / "5")
    one = read(path)[0]
    path.unlink()
    with pytest.raises(DataError, match="no such file"):
        source_image(one)


def test_shards_are_files_of_one(tmp_path: Path) -> None:
    first = written(tmp_path, "shards")
    assert [one.name for one in shards_of(first)] == [
        "test_real-00000-of-00002.parquet",
        "test_real-00001-of-00002.parquet",
    ]
    data = DataConfig(source="complex_edit", path=str(first))
    assert [one.part for one in named_files(data)] == ["train", "train"]
    assert input_files(data, from_root(".")) == shards_of(first)
    assert shards_of(tmp_path / "mine.jsonl") == [tmp_path / "mine.jsonl"]


# Levels and splits -------------------------------------------------------------------------------


def tables(folder: Path, file: Path, **settings: Any) -> dict[str, PromptSet]:
    sizes = {"train_prompts": 10_000, "heldout_prompts": 10_000}
    data = {"source": "complex_edit", "path": str(file), **sizes, **settings}
    prepare(DataConfig.model_validate(data), folder)
    return {name: read_prompts(folder / f"{name}.parquet") for name in ("train", "heldout")}


@pytest.mark.parametrize(
    ("settings", "levels"),
    [
        ({}, (1, 2, 3, 4, 5, 6, 7, 8)),
        ({"edit_levels": "8"}, (8,)),
        ({"edit_levels": 3}, (3,)),
        ({"edit_levels": "1,3,5"}, (1, 3, 5)),
    ],
)
def test_a_picture_has_a_row_a_level(tmp_path: Path, settings: Any, levels: Any) -> None:
    path = write_json(tmp_path / "test_syn.jsonl", range(40))
    made = tables(tmp_path / "out", path, **settings)
    rows = [*made["train"], *made["heldout"]]
    assert len(rows) == 40 * len(levels)
    for number in range(40):
        own = [one for one in rows if number_of(one) == number]
        assert tuple(one.metadata["level"] for one in own) == levels


@pytest.mark.parametrize("seed", range(4))
def test_no_picture_is_on_both_sides(tmp_path: Path, seed: int) -> None:
    path = write_parquet(tmp_path / "test_real.parquet", range(40))
    made = tables(tmp_path / "out", path, seed=seed, edit_levels="1-8")
    train, heldout = ({number_of(one) for one in table} for table in made.values())
    assert train
    assert heldout
    assert not train & heldout
    assert train | heldout == set(range(40))


def test_a_picture_under_two_names_is_one(tmp_path: Path) -> None:
    """Rows 0 to 19 twice, as other files: whole on one side."""
    path = write_json(tmp_path / "test_real.json", range(20))
    rows = json.loads(path.read_text())
    for row in json.loads(path.read_text()):
        copy = f"copy-{row['image']}"
        (tmp_path / copy).write_bytes((tmp_path / row["image"]).read_bytes())
        rows.append({**row, "image": copy})
    path.write_text(json.dumps(rows))
    made = tables(tmp_path / "out", path, edit_levels="8")
    digests = [{one.metadata["picture_digest"] for one in table} for table in made.values()]
    assert not digests[0] & digests[1]
    assert sum(map(len, made.values())) == 40


def test_a_held_out_file_takes_its_pictures_out_of_training(tmp_path: Path) -> None:
    """Whatever is asked of them, in another file, under another name."""
    path = write_json(tmp_path / "test_real.json", range(12))
    (tmp_path / "held").mkdir()
    held = write_json(tmp_path / "held" / "mine.json", range(5))
    rows = [
        {**row, "edit": edit_of(100 + number)}
        for number, row in enumerate(json.loads(held.read_text()))
    ]
    held.write_text(json.dumps(rows))
    made = tables(tmp_path / "out", path, heldout_path=str(held), edit_levels="2,4")
    assert {number_of(one) for one in made["train"]} == set(range(5, 12))
    assert {number_of(one) for one in made["heldout"]} == set(range(100, 105))


def test_a_file_is_held_out_beside_scenes(tmp_path: Path) -> None:
    path = write_json(tmp_path / "test_real.json", range(12))
    edits = {"source": "scenes", "scene_kind": "shapes", "scene_task": "edit", "train_prompts": 40}
    file = {"heldout_source": "complex_edit", "heldout_path": str(path)}
    made = tables(tmp_path / "out", path, **edits, **file, path=None, heldout_prompts=16)
    alone = tables(tmp_path / "alone", path, **edits, path=None, heldout_prompts=16)
    assert made["train"].digest == alone["train"].digest
    assert len(made["heldout"]) == 16
    assert {one.text.partition(" ")[2] for one in made["heldout"]} == {
        f"compound {level}" for level in LEVELS
    }
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["left_out"] == {"train": 0, "heldout": 12 * 8 - 16}


def test_a_scene_that_stands_in_the_held_out_file_is_not_trained_on(tmp_path: Path) -> None:
    scenes = {"source": "scenes", "scene_kind": "shapes", "train_prompts": 40}
    words = tables(tmp_path / "alone", tmp_path, **scenes, heldout_prompts=4)["train"]
    held = tmp_path / "mine.txt"
    held.write_text("\n".join(one.text for one in words[:3]))
    file = {"heldout_source": "plain", "heldout_path": str(held)}
    made = tables(tmp_path / "out", tmp_path, **scenes, **file)
    assert {one.text for one in made["heldout"]} == {one.text for one in words[:3]}
    assert [one.text for one in made["train"]] == [one.text for one in words[3:]]
    held.write_text("\n".join(one.text for one in words))
    with pytest.raises(DataError, match="every scene stands in"):
        tables(tmp_path / "none", tmp_path, **scenes, **file)


def test_scenes_are_no_format_of_a_file(tmp_path: Path) -> None:
    path = write_json(tmp_path / "mine.json", range(12))
    with pytest.raises(PlanError, match=r"data\.heldout_source: is required"):
        plan(resolve("tiny/flow-grpo-fast", (f"data.heldout_path={path}",), Path(os.devnull)))
    told = plan(resolve("tiny/flow-grpo-fast", (f"data.path={path}",), Path(os.devnull))).warnings
    assert any(one.startswith("data.path: does nothing here") for one in told)


def test_a_plan_counts_what_a_held_out_file_has_beside_scenes(tmp_path: Path) -> None:
    path = write_json(tmp_path / "mine.json", range(12))
    named = ("data.heldout_source=complex_edit", f"data.heldout_path={path}")
    found = prompts_here(resolve("tiny-janus/edit", named, Path(os.devnull)))
    assert found is not None
    assert (found.train, found.heldout) == (found.train_asked, 12 * 8)


def test_a_level_that_no_row_has_is_named(tmp_path: Path) -> None:
    path = write_json(tmp_path / "mine.json", range(3))
    rows = [{**row, "edit": edit_of(0, levels=4)} for row in json.loads(path.read_text())]
    path.write_text(json.dumps(rows))
    with pytest.raises(DataError, match=r"level 8 \(data.edit_levels\)"):
        tables(tmp_path / "out", path, edit_levels="8")


def test_levels_of_other_files_are_theirs(tmp_path: Path) -> None:
    """A key of that name in somebody's prompts is metadata and no more."""
    path = tmp_path / "mine.jsonl"
    lines = [{"prompt": f"a dog {n}", "level": "easy", "picture": "x"} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    made = tables(tmp_path / "out", path, source="plain")
    assert sum(map(len, made.values())) == 40


# Licence -----------------------------------------------------------------------------------------

EDITS = ("data.source=complex_edit", "evaluation.suite=editing", "rewards.ocr=null")
JUDGE = "judges.o={model: organisation/o, placement: remote, urls: [http://h:1/v1]}"
ASKED = ("rewards.complex_edit={judge: o}", "evaluation.complex_edit.judge=o")


def planned(path: Path, *overrides: str):
    named = (f"data.path={path}", "evaluation.suite=complex_edit", JUDGE, *ASKED)
    config = resolve("janus-pro-7b/edit", (*EDITS, *named, *overrides), Path(os.devnull))
    return plan(config)


def test_a_run_is_refused_until_the_licence_is_accepted(tmp_path: Path) -> None:
    path = write_json(tmp_path / "test_real.jsonl", range(3))
    with pytest.raises(PlanError, match=r"data.accept_licence: .*CC-BY-NC-4.0.*no commercial use"):
        planned(path, "rewards.edit_yes_no=null")
    accepted = planned(path, "rewards.edit_yes_no=null", "data.accept_licence=cc-by-nc-4.0")
    assert any("is a test set" in one for one in accepted.warnings)


def test_a_held_out_file_needs_the_licence_and_no_warning_of_training(tmp_path: Path) -> None:
    path = write_json(tmp_path / "test_real.jsonl", range(3))
    overrides = (
        *("rewards.edit_yes_no=null", "data.source=scenes", "data.path=null"),
        *("data.scene_task=edit", "data.scene_kind=shapes"),
        *(f"data.heldout_path={path}", "data.heldout_source=complex_edit"),
    )
    with pytest.raises(PlanError, match=r"data.heldout_source complex_edit is published under"):
        planned(path, *overrides)
    accepted = planned(path, *overrides, "data.accept_licence=cc-by-nc-4.0")
    assert not any("is a test set" in one for one in accepted.warnings)


def test_a_licence_that_nothing_asks_for_does_nothing() -> None:
    found = plan(
        resolve("tiny/flow-grpo-fast", ("data.accept_licence=cc-by-nc-4.0",), Path(os.devnull))
    )
    assert any("data.accept_licence" in one for one in found.warnings)
