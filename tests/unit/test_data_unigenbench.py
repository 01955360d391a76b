"""UniGenBench's prompt files: short and long, English and Chinese, sound and malformed."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from atelier.cli.tables import plan_table
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.sections.data import DataConfig
from atelier.data.prepare import prepare
from atelier.data.prompts import read_prompts
from atelier.data.readers import read_prompts_file
from atelier.data.readers.unigenbench import read_sound
from atelier.errors import DataError
from atelier.stages.prompts_here import prompts_here

KEYS = {"en": ("Testpoints", "Testpoint Description"), "zh": ("考点", "考点对应描述")}
LONG = ["Style", "Attribute - Color", "Attribute - Color", "Grammar - Negation", "World Knowledge"]


def sub_dims(names: list[str], language: str = "en") -> str:
    points, descriptions = KEYS[language]
    values = {points: names, descriptions: [f"about {name}" for name in names]}
    return json.dumps(values, ensure_ascii=False)


def table(folder: Path, rows: list[list[Any]], ending: str = "_en") -> Path:
    path = folder / f"prompts{ending}.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["index", f"prompt{ending}", f"sub_dims{ending}"])
        writer.writerows(rows)
    return path


def many(count: int = 40, **others: Any) -> list[list[Any]]:
    rows = [[n, f"prompt {n}", sub_dims(["Style"])] for n in range(count)]
    for number, cell in others.items():
        rows[int(number.removeprefix("n"))][2] = cell
    return rows


@pytest.mark.parametrize("ending", ["_en", "_zh", ""])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_either_naming_of_columns_has_either_language(
    tmp_path: Path, ending: str, language: str
) -> None:
    names = ["属性-颜色", "风格"] if language == "zh" else LONG
    path = table(tmp_path, [[3, "a prompt", sub_dims(names, language)]], ending)
    (prompt,) = read_prompts_file("unigenbench", path)
    assert prompt.prompt_id == 3
    assert prompt.metadata["testpoints"] == names
    assert prompt.metadata["descriptions"] == [f"about {name}" for name in names]
    assert prompt.metadata["language"] == language


def test_unknown_points_are_named_by_line_and_index(tmp_path: Path) -> None:
    rows = many(3, n1=sub_dims(["Style", "Colour"]), n2=sub_dims(["Atribute - Color"]))
    with pytest.raises(DataError) as error:
        read_prompts_file("unigenbench", table(tmp_path, rows))
    text = str(error.value)
    assert "line 3 (index 1): column sub_dims_en: no test point is called 'Colour'" in text
    assert "line 4 (index 2): " in text
    assert "did you mean Attribute - Color?" in text


BROKEN = sub_dims(LONG).replace('", "', '" "', 1)  # as row 509 of the published long file


def test_malformed_rows_are_refused_or_left_out_and_told(tmp_path: Path, caplog) -> None:
    path = table(tmp_path, many(40, n5=BROKEN, n9=sub_dims(["Colour"])))
    data = DataConfig(source="unigenbench", path=str(path))
    with pytest.raises(DataError, match=r"2 problems(?s:.*)line 7 \(index 5\)(?s:.*)\(index 9\)"):
        prepare(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    left = data.model_copy(update={"malformed_rows": "leave_out"})
    summary = prepare(left, tmp_path / "out")
    assert summary["malformed"]["left_out"] == 2
    first, second = summary["malformed"]["rows"]
    assert first.startswith(f"{path}: line 7 (index 5): column sub_dims_en: not JSON")
    assert second.startswith(f"{path}: line 11 (index 9): column sub_dims_en: no test point")
    kept = [
        one.prompt_id
        for name in ("train", "heldout")
        for one in read_prompts(tmp_path / "out" / f"{name}.parquet")
    ]
    assert sorted(kept) == [n for n in range(40) if n not in (5, 9)]
    assert "left out (data.malformed_rows)" in caplog.text


def test_a_row_of_another_width_and_a_second_index_are_left_out_too(tmp_path: Path) -> None:
    rows = [*many(3), [1, "again", sub_dims(["Style"])], [4, "short"]]
    prompts, wrong = read_sound(table(tmp_path, rows))
    assert [one.prompt_id for one in prompts] == [0, 1, 2]
    assert len(wrong) == 2
    with pytest.raises(DataError, match="no row below the header can be used; line 2"):
        read_sound(table(tmp_path, [[0, "x", BROKEN]]))


def test_a_plan_says_how_many_are_left_out(tmp_path: Path) -> None:
    path = table(tmp_path, many(60, n5=BROKEN))
    config = resolve(
        "tiny/flow-grpo-fast",
        (
            *("data.source=unigenbench", f"data.path={path}", "data.malformed_rows=leave_out"),
            *("rewards.ocr=null", "rewards.jpeg_compressibility.weight=1.0"),
            *("evaluation.suite=unigenbench", "evaluation.unigenbench.judge=j"),
            "judges.j={model: organisation/m, placement: remote, urls: [http://h:1/v1]}",
        ),
        Path("/dev/null"),
    )
    said = plan_table(plan(config), prompts_here(config))
    assert any(
        line.split()[:3] == ["malformed", "rows", "1"] and "data.malformed_rows" in line
        for line in said.splitlines()
    )
