"""The reader of MMMG on files of its shape: what it makes of them, and where they are wrong."""

from __future__ import annotations

import json
import logging
import re

import pytest
from PIL import Image

from atelier.config.sections.data import DataConfig
from atelier.data.prepare import prepare
from atelier.data.prompts import read_prompts
from atelier.data.readers.mmmg import read
from atelier.errors import DataError
from atelier.mmmg.benchmark import CELLS, SAMPLES_OF_DISCIPLINE, SAMPLES_OF_TIER
from atelier.mmmg.fidelity import MOST_PARTS

GRAPH = {"elements": ["Sun", "Rain"], "dependencies": ["Causes(Sun, Change(Rain))"]}
ROW = {
    "key": "Biology_12",
    "Education": "preschool",
    "Discipline": "Biology",
    "prompt": "Draw how the sun makes rain.",
    "Knowledge_Graph": json.dumps(GRAPH),
    "Annotation": "The sun warms the sea.",
    "reference_image": None,
}
SAMPLE = {
    "question": "Draw how the sun makes rain.",
    "key": "Biology_12",
    "Visual Components": GRAPH,
    "Key Knowledge": "The sun warms the sea.",
    "img_path": "pictures/sun.png",
}
EXPECTED = {
    "key": "Biology_12",
    "tier": "preschool",
    "discipline": "Biology",
    "knowledge_graph": GRAPH,
    "annotation": "The sun warms the sea.",
}


def written(folder, content, name="mmmg.json"):
    path = folder / name
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_rows_as_a_list_or_one_a_line(tmp_path):
    as_keys = {name: dict.fromkeys(texts, "") for name, texts in GRAPH.items()}
    other = {**ROW, "Education": "phd", "Knowledge_Graph": as_keys, "Annotation": ""}
    lines = "\n\n".join(map(json.dumps, (ROW, other)))
    for path in (written(tmp_path, [ROW, other]), written(tmp_path, lines, "mmmg.jsonl")):
        first, second = read(path)
        assert (first.prompt_id, first.text) == (0, "Draw how the sun makes rain.")
        assert first.metadata == EXPECTED
        assert second.metadata == {**EXPECTED, "tier": "PhD", "annotation": ""}


def test_the_training_file(tmp_path, caplog):
    (tmp_path / "pictures").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "pictures" / "sun.png")
    absent = {**SAMPLE, "img_path": "gone.png"}
    content = {
        "0_preschool": {"Biology": [SAMPLE]},
        "5_PhD": {"Math": [absent], "History": [{**SAMPLE, "key": "b", "img_path": None}]},
    }
    with caplog.at_level(logging.WARNING):
        first, second, third = read(written(tmp_path, content))
    assert first.metadata == {**EXPECTED, "image": str(tmp_path / "pictures" / "sun.png")}
    assert second.metadata == {**EXPECTED, "tier": "PhD", "discipline": "Math"}
    assert [one.prompt_id for one in (first, second, third)] == [0, 1, 2]
    assert (third.metadata["discipline"], third.metadata["key"]) == ("History", "b")
    assert [one.message for one in caplog.records] == [
        f"{tmp_path}/mmmg.json: 1 of 3 samples name a picture (img_path) that is not there; "
        "they are used without it"
    ], "the counts are of the test file"


def test_a_key_twice_in_a_level_of_the_training_file_is_told(tmp_path, caplog):
    """Its pictures have names of their own, so nothing is mistaken for another."""
    content = {"5_PhD": {"Math": [SAMPLE, SAMPLE], "History": [SAMPLE]}, "preschool": {}}
    content["preschool"]["Math"] = [SAMPLE]
    with caplog.at_level(logging.WARNING):
        assert len(read(written(tmp_path, content))) == 4
    assert "2 of 4 samples have the key of another one of their level" in caplog.text


def whole():
    """As many samples in each tier and discipline as published; the cells' own counts are free."""
    tiers = [tier for tier, count in SAMPLES_OF_TIER.items() for _ in range(count)]
    disciplines = [one for one, count in SAMPLES_OF_DISCIPLINE.items() for _ in range(count)]
    # 1009 shares no factor with 4456, so that every tier meets every discipline.
    dealt = [disciplines[1009 * index % len(tiers)] for index in range(len(tiers))]
    for index, cell in enumerate(zip(tiers, dealt, strict=True)):
        if cell == ("preschool", "Philosophy"):
            other = next(
                place
                for place in range(len(tiers))
                if tiers[place] != "preschool" and dealt[place] != "Philosophy"
            )
            dealt[index], dealt[other] = dealt[other], dealt[index]
    return [
        {**ROW, "Education": tier, "Discipline": one, "key": f"{one}_{index}"}
        for index, (tier, one) in enumerate(zip(tiers, dealt, strict=True))
    ]


def test_the_counts_of_the_benchmark_are_known(tmp_path, caplog):
    rows = whole()
    with caplog.at_level(logging.WARNING):
        prompts = read(written(tmp_path, rows))
    assert len(prompts) == 4456
    found = {(one.metadata["tier"], one.metadata["discipline"]) for one in prompts}
    assert found == {*CELLS}
    assert len(found) == 59
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        assert len(read(written(tmp_path, rows[:-1]))) == 4455, "a part is no error"
    assert "not all of MMMG: 4455 samples in 59 cells, published: 4456 in 59; PhD: 811 samples" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1: not JSON: .*; call a file of one sample a line .jsonl"),
        ("[]", "a list of samples, or an object of levels expected"),
        ("3", "a list of samples, or an object of levels expected"),
        ([ROW, 3], "sample 1: an object expected, found 3"),
        ([{**ROW, "key": None}], "sample 0: key 'key': a non-empty text, not None"),
        ([ROW, ROW], "sample 1: key 'key': sample 0 of this level has it too"),
        ('[{"key": "a", "key": "b"}]', "not JSON: key 'key' stands twice in an object"),
        ([{**ROW, "key": "a/b"}], "sample 0: key 'key': .* without slashes"),
        ([{**ROW, "key": ".."}], "sample 0: key 'key': .* so a name"),
        ([{**ROW, "key": "a\x01b"}], "sample 0: key 'key': .* so of printable characters"),
        ([{**ROW, "key": "\u202ea"}], "sample 0: key 'key': .* so of printable characters"),
        ([{**ROW, "key": "\u00e9" * 101}], "sample 0: key 'key': .* so of at most 200 bytes"),
        ({"PhD": {"Math": [{**SAMPLE, "key": ".."}]}}, "PhD: Math: sample 0: key 'key': .* a name"),
        ({"PhD": {"Math": [SAMPLE], "Biology": []}}, r"PhD: Biology: a list of samples, not \[\]"),
        ({"0_preschool": {}}, "0_preschool: an object of disciplines expected, not {}"),
        ([{**ROW, "Education": "PHDs"}], "sample 0: key 'Education': 'PHDs' is unknown; did"),
        ([{**ROW, "Discipline": "Art"}], "key 'Discipline': 'Art' is unknown; known: Biology"),
        ([{**ROW, "prompt": " "}], "sample 0: key 'prompt': a non-empty text"),
        ([{**ROW, "Annotation": 3}], "sample 0: key 'Annotation': a non-empty text, not 3"),
        ([{**ROW, "Knowledge_Graph": "{"}], "sample 0: key 'Knowledge_Graph': Expecting"),
        ([{**ROW, "Knowledge_Graph": None}], "'Knowledge_Graph': an object with elements"),
        ([{**ROW, "Knowledge_Graph": {"elements": []}}], "'Knowledge_Graph': elements is empty"),
        (
            [ROW, {**ROW, "Knowledge_Graph": {**GRAPH, "dependencies": ["Causes(Sun,Rain)"]}}],
            r"sample 1: key 'Knowledge_Graph': dependency 'Causes\(Sun,Rain\)': two arguments",
        ),
        ({"0_preschool": []}, r"0_preschool: an object of disciplines expected, not \[\]"),
        ({"0_preschool": {"Math": {}}}, "0_preschool: Math: a list of samples, not {}"),
        ({"PhD": {"Math": [SAMPLE, 3]}}, "PhD: Math: sample 1: an object expected, found 3"),
        ({"6_PhDs": {"Math": [SAMPLE]}}, "6_PhDs: Math: sample 0: key '6_PhDs': 'PhDs' is unk"),
        (
            {"PhD": {"Math": [{**SAMPLE, "Visual Components": []}]}},
            "PhD: Math: sample 0: key 'Visual Components': an object with elements",
        ),
        ({"PhD": {"Math": [{**SAMPLE, "question": None}]}}, "sample 0: key 'question'"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, content, message):
    path = written(tmp_path, content)
    with pytest.raises(DataError, match=f"{path}: (.*\n)*.*{message}"):
        read(path)


def test_wrong_lines_are_reported_together(tmp_path):
    lines = [json.dumps({**ROW, "key": ""}), "{", json.dumps({**ROW, "prompt": ""})]
    path = written(tmp_path, "\n".join(lines), "mmmg.jsonl")
    with pytest.raises(DataError, match="3 problems") as error:
        read(path)
    assert re.findall(r"line \d", str(error.value)) == ["line 1", "line 2", "line 3"]


def test_a_table_is_made_of_it(tmp_path):
    rows = [{**ROW, "key": f"k{index}", "prompt": f"Draw {index}."} for index in range(40)]
    path = written(tmp_path, rows)
    prepare(DataConfig(source="mmmg", path=str(path)), tmp_path / "x")
    made = read_prompts(tmp_path / "x" / "train.parquet")[0].metadata
    assert made == {**EXPECTED, "key": made["key"]}


def test_a_graph_too_large_for_the_official_fidelity_is_warned_of(tmp_path, caplog):
    graph = {"elements": [f"n{index}" for index in range(MOST_PARTS)], "dependencies": []}
    rows = [ROW, {**ROW, "key": "b", "Knowledge_Graph": graph}]
    read(written(tmp_path, rows))
    assert "official" not in caplog.text
    graph["elements"].append("more")
    read(written(tmp_path, rows))
    assert f"more than {MOST_PARTS} parts, whose official fidelity is left out: 1" in caplog.text
