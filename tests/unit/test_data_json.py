"""JSON that Python's parser accepts or dies of, and names no file system takes."""

import json
from pathlib import Path

import pytest

from atelier.data.readers import READERS, read_prompts_file
from atelier.data.readers.problems import NotJson, parse_json
from atelier.errors import DataError

HOSTILE = {
    "[" * 100_000: "nested too deeply",
    "9" * 6000: "too many digits",
    "9" * 400: "too many digits",
    '{"x": -1e999}': "'-1e999' is too large a number",
    '{"x": NaN}': "NaN is no JSON number",
    '"\\ud800"': "half a character",
    '{"a": {"x": 1, "x": true}}': "key 'x' stands twice in an object, with two values",
}


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE.values())
def test_parse_json(text: str) -> None:
    with pytest.raises(NotJson, match=HOSTILE[text]):
        parse_json(text)


@pytest.mark.parametrize("text", HOSTILE, ids=HOSTILE.values())
@pytest.mark.parametrize("format", ["geneval", "paircomp"])
def test_json_readers(tmp_path: Path, format: str, text: str) -> None:
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(DataError, match=rf"file\.json: .*{HOSTILE[text]}"):
        read_prompts_file(format, tmp_path / "file.json")


def test_a_key_that_says_the_same_twice_loses_nothing() -> None:
    assert parse_json('{"x": [1], "y": 2, "x": [1]}') == {"x": [1], "y": 2}


def test_unigenbench_cell(tmp_path: Path) -> None:
    (tmp_path / "u.csv").write_text(f"index,prompt,sub_dims\n0,p,{'[' * 100_000}\n")
    with pytest.raises(DataError, match=r"line 2 .*nested too deeply"):
        read_prompts_file("unigenbench", tmp_path / "u.csv")


@pytest.mark.parametrize("text", ["9" * 6000, json.dumps({"prompt": "\ud800"})])
def test_deepgen_lines(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.jsonl").write_text(text + "\n")
    mixture = "datasets:\n  - {name: a, path: p.jsonl, rewards: [{x: 1}]}\n"
    (tmp_path / "m.yaml").write_text(mixture)
    with pytest.raises(DataError, match=r"p\.jsonl: line 1: not JSON"):
        read_prompts_file("deepgen", tmp_path / "m.yaml")


@pytest.mark.parametrize("value", ["x" * 300, '"\\ud800"', "[" * 3000])
def test_deepgen_yaml(tmp_path: Path, value: str) -> None:
    (tmp_path / "m.yaml").write_text(f"datasets:\n  - path: {value}\n")
    with pytest.raises(DataError, match=r"m\.yaml"):
        read_prompts_file("deepgen", tmp_path / "m.yaml")


@pytest.mark.parametrize("format", READERS)
@pytest.mark.parametrize("name", ["x" * 300, "a\0b"])
def test_names_of_no_file(tmp_path: Path, format: str, name: str) -> None:
    with pytest.raises(DataError):
        read_prompts_file(format, tmp_path / name)


LONG = "x" * 100_000
OF_ONE_SAMPLE = {
    "geneval": [{"prompt": [LONG]}, {"prompt": "p", LONG: 1}, {"prompt": "p", "tag": LONG}],
    "mmmg": [
        {"key": LONG + "/"},
        {"prompt": [LONG]},
        {"Education": LONG},
        {"Knowledge_Graph": LONG},
        {"Knowledge_Graph": {"elements": ["a"], "dependencies": [f"Causes({LONG}"]}},
    ],
    "paircomp": [LONG, {LONG: 1}, [LONG]],
    "focusdiff": [LONG, {LONG: 1}, [LONG]],
    "janus_sft": [{"prompt": [LONG]}, {LONG: 1}, {"data": LONG}, {"data": [LONG]}],
    "janus_edit": [{"prompt": [LONG]}, {LONG: "\x1b[2J\n"}],
}


@pytest.mark.parametrize("format", OF_ONE_SAMPLE)
def test_no_message_is_as_long_as_a_file_or_not_printable(tmp_path: Path, format: str) -> None:
    for sample in OF_ONE_SAMPLE[format]:
        lines = format not in ("paircomp",)
        path = tmp_path / ("file.jsonl" if lines else "file.json")
        path.write_text(json.dumps(sample if lines else [sample]) + "\n")
        with pytest.raises(DataError) as raised:
            read_prompts_file(format, path)
        told = str(raised.value).split("\n")
        assert all(len(line) < 1500 and line.isprintable() for line in told)
