"""Captioned pictures and texts that a run could not use are refused by plan and prepare, before the
baseline is measured."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier.config.resolve import resolve, write_stage_configs
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.errors import DataError, PlanError
from atelier.stages import prepare
from atelier.stages.prompts_here import prompts_here
from atelier.stages.readable import require_texts
from atelier.tracking.run_directory import RunDirectory
from tests.unit.test_captioned import write_lines

FEW = r"train\.sft\.pictures_per_update 16 exceeds the 4 captioned pictures of data\.sft\.files"


def configured(*overrides: str) -> RunConfig:
    own = ("data.train_prompts=20", "data.heldout_prompts=5", "train.sft.coefficient=1e-4")
    return resolve("tiny/flow-grpo-fast", [*own, *overrides], Path(os.devnull))


def of_files(file: Path) -> tuple[str, str]:
    return "data.sft.source=files", f"data.sft.files={{own: {{path: {file}}}}}"


def prepared(config: RunConfig, folder: Path) -> dict:
    run = RunDirectory(folder)
    write_stage_configs(config, run)
    return prepare.run(run)


def test_too_few_captioned_pictures_are_refused(tmp_path: Path) -> None:
    config = configured(*of_files(write_lines(tmp_path / "own.jsonl", 4)))
    for refused in (lambda: prompts_here(config), lambda: prepared(config, tmp_path / "run")):
        with pytest.raises(PlanError, match=FEW):
            refused()
    enough = configured(*of_files(write_lines(tmp_path / "more.jsonl", 16)))
    assert prompts_here(enough) is None, "scenes are generated"
    assert prepared(enough, tmp_path / "other")["sft"]["prompts"] == 16


def test_a_text_with_a_mark_of_its_reader_is_refused_with_its_row() -> None:
    marked = [Prompt(0, 0, "a dog", {}), Prompt(7, 0, "a <|im_end|> cat", {"dataset": "own"})]
    tables = {"captioned picture": marked}
    named = r"captioned picture 7 of data set own: 'a <\|im_end\|> cat' has <\|im_end\|>"
    config = configured()
    for family in ("deepgen", "qwen"):
        policy = config.policy.model_copy(update={"family": family})
        with pytest.raises(DataError, match=named):
            require_texts(config.model_copy(update={"policy": policy}), tables)
    require_texts(config, tables)  # SD3's encoders know no such marks


def test_marks_in_a_prompt_file_are_found_by_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("".join(f"a dog {n}\n" for n in range(60)) + "a cat <|vision_start|>\n")
    named = ("data.source=plain", f"data.path={file}", "data.train_prompts=100")
    config = configured(*named, "train.sft.coefficient=0")
    policy = config.policy.model_copy(update={"family": "qwen"})
    with pytest.raises(DataError, match=r"prompt 60: .* mark of the language model"):
        prompts_here(config.model_copy(update={"policy": policy}))
