"""Prompt tables: round trip, digest, atomic writing, and a clear error for what is not one."""

import pandas
import pytest

from atelier.data.prompts import Prompt, PromptSet, content_digest, read_prompts, write_prompts
from atelier.errors import DataError

PROMPTS = (
    Prompt(0, 0, 'the word "KEM" in red', {"target": "KEM", "scene": {"objects": [], "n": 1.5}}),
    Prompt(0, 1, "ein grüner Würfel — 一", {"include": [{"class": "dog", "count": 1}]}),
    Prompt(7, 0, "plain", {}),
)


def test_a_table_round_trips_with_its_digest(tmp_path):
    path = tmp_path / "new" / "train.parquet"
    write_prompts(path, PROMPTS)
    read = read_prompts(path)
    assert tuple(read) == PROMPTS
    assert read[0] == PROMPTS[0]
    assert read[1:] == PROMPTS[1:]
    assert read.name == "train"
    assert read.digest == content_digest(PROMPTS) == PromptSet(PROMPTS, "other").digest


def test_a_table_is_the_same_bytes_each_time(tmp_path):
    for name in ("a", "b"):
        write_prompts(tmp_path / name, PROMPTS)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize(
    "changed",
    [
        PROMPTS[:2],
        PROMPTS[::-1],
        (Prompt(1, 0, PROMPTS[0].text, PROMPTS[0].metadata), *PROMPTS[1:]),
        (Prompt(0, 0, PROMPTS[0].text, {"target": "KEN"}), *PROMPTS[1:]),
    ],
)
def test_the_digest_covers_all_content(changed):
    assert content_digest(changed) != content_digest(PROMPTS)


def test_metadata_order_does_not_count():
    one, other = {"a": 1, "b": 2}, {"b": 2, "a": 1}
    assert content_digest([Prompt(0, 0, "x", one)]) == content_digest([Prompt(0, 0, "x", other)])


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        ([], "at least one"),
        ([Prompt(0, 0, " ")], "row 0: the text is empty"),
        ([Prompt(0, 0, "a"), Prompt(0, 0, "b")], r"row 1: .*\(0, 0\) stands twice"),
        ([Prompt(0, 0, "a", {"x": object()})], "metadata of prompt 0"),
        ([Prompt(0, 0, "a", {"x": float("nan")})], "metadata of prompt 0"),
    ],
)
def test_what_is_no_prompt_set_is_not_written(tmp_path, prompts, message):
    path = tmp_path / "train.parquet"
    path.write_bytes(b"earlier")
    with pytest.raises(DataError, match=message):
        write_prompts(path, prompts)
    assert path.read_bytes() == b"earlier"
    assert list(tmp_path.iterdir()) == [path]


def _table(**columns):
    valid = {"prompt_id": [0, 1], "dataset_id": [0, 0], "text": ["a", "b"], "metadata": ["{}"] * 2}
    return pandas.DataFrame({**valid, **columns})


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (_table().drop(columns="text"), "no column text"),
        (pandas.DataFrame({"x": [1]}), "prompt_id, dataset_id, text, metadata"),
        (_table(metadata=["{}", "{"]), "row 1"),
        (_table(metadata=["[]", "{}"]), "row 0"),
        (_table(prompt_id=["a", "b"]), "row 0"),
        (_table(text=["a", ""]), "row 1: the text is empty"),
        (_table(prompt_id=[0, 0]), "stands twice"),
        (_table().head(0), "at least one prompt"),
    ],
)
def test_other_tables_are_refused(tmp_path, frame, message):
    path = tmp_path / "train.parquet"
    frame.to_parquet(path)
    with pytest.raises(DataError, match=message):
        read_prompts(path)


def test_missing_folders_and_damaged_files_are_refused(tmp_path):
    with pytest.raises(DataError, match="no such prompt table"):
        read_prompts(tmp_path / "train.parquet")
    with pytest.raises(DataError, match="is a folder"):
        read_prompts(tmp_path)
    path = tmp_path / "train.parquet"
    write_prompts(path, PROMPTS)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="not a Parquet file, or a damaged one"):
        read_prompts(path)
