"""Prompt files are read before a run starts, where they are here."""

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.errors import DataError, PlanError
from atelier.stages.prompts_here import prompt_warnings, prompts_here
from atelier.stages.run_file import check_opening


@pytest.fixture
def signs(tmp_path: Path) -> Path:
    file = tmp_path / "signs.txt"
    file.write_text("".join(f'a sign that says "WORD {n}"\n' for n in range(200)))
    return file


def overrides(file: Path) -> list[str]:
    return ["data.source=ocr_text", f"data.path={file}"]


def configured(file: Path, *more: str) -> RunConfig:
    return resolve("tiny/flow-grpo-fast", [*overrides(file), *more], Path(os.devnull))


def planned(file: Path, *more: str) -> tuple[int, str]:
    settings = [part for one in (*overrides(file), *more) for part in ("--set", one)]
    arguments = ["plan", "--recipe", "tiny/flow-grpo-fast", "--params", os.devnull, *settings]
    result = CliRunner().invoke(application, arguments)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_a_plan_counts_what_is_there(signs: Path) -> None:
    code, said = planned(signs)
    assert code == 0
    rows = {line.split("  ")[0]: line for line in said.splitlines()}
    assert rows["training prompts"].endswith("all there are; asked for: 2,048")
    assert "evaluation.prompts: 256, but only" in said


def test_enough_prompts_are_no_remark(signs: Path) -> None:
    config = configured(
        signs,
        "data.train_prompts=100",
        "data.heldout_prompts=10",
        "evaluation.prompts=10",
        "evaluation.periodic_prompts=10",
    )
    found = prompts_here(config)
    assert found is not None
    assert (found.train, found.heldout) == (100, 10)
    assert not list(prompt_warnings(config, found))


def test_a_line_without_a_target_is_refused_by_plan_and_run_alike(signs: Path) -> None:
    signs.write_text(signs.read_text() + "a sign without quotes\n")
    for refused in (
        lambda: planned(signs),
        lambda: check_opening("tiny/flow-grpo-fast", overrides(signs), None, None),
    ):
        with pytest.raises(DataError, match=r"signs\.txt: line 201: no text in straight") as caught:
            refused()
        assert caught.value.exit_code == 2


def test_fewer_prompts_than_a_step_takes_are_a_refused_plan(signs: Path) -> None:
    signs.write_text("".join(signs.read_text().splitlines(keepends=True)[:10]))
    with pytest.raises(PlanError, match=r"train\.prompts_per_step: 12 is more than the"):
        prompts_here(configured(signs))


def test_scenes_have_no_file() -> None:
    assert prompts_here(resolve("tiny/flow-grpo-fast", (), Path(os.devnull))) is None
