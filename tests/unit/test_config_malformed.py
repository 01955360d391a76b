"""Malformed configurations through the command line: what is said, the exit code, no damage."""

import os
import sys
from pathlib import Path

import pytest

from atelier.cli import main

NOWHERE = "policy.path=organisation/model"  # a hub id: these tests need no model

# name: (recipe file, params.yaml, --set arguments, what the message must say); None: leave out.
CONFIG = {
    "unknown key, with a suggestion": (
        "rollout:\n  gruop_size: 8\n", "", [],
        ["recipe.yaml:2: rollout.gruop_size: unknown key", "did you mean rollout.group_size?"],
    ),
    "section of another section": (
        None, "", ["lora.rank=4"], ["--set lora.rank", "did you mean policy.lora.rank?"],
    ),
    "key in the wrong section": (
        "train:\n\n  group_size: 8\n", "", [],
        ["recipe.yaml:3: train.group_size", "did you mean rollout.group_size?"],
    ),
    "dotted key in a file": (
        "rollout.group_size: 8\n", "", [], ["recipe.yaml:1:", "nested sections"],
    ),
    "wrong type": (
        "train:\n  steps: many\n", "", [], ['recipe.yaml:2: train.steps: "many"', "whole number"],
    ),
    "number as text": (
        "train: {steps: '60'}\n", "", [], ['recipe.yaml:1: train.steps: "60"', "whole number"],
    ),
    "value that is not one of the allowed": (
        "rollout:\n  dynamics: sde\n", "", [],
        ["recipe.yaml:2: rollout.dynamics", "'cps' or 'ode'"],
    ),
    "value out of range": (
        "train: {learning_rate: -1e-4}\n", "", [], ["learning_rate: -0.0001", "greater than 0"],
    ),
    "not a number": (
        "algorithm: {beta: .nan}\n", "", [], ["algorithm.beta: NaN", "finite"],
    ),
    "section that is a value": (
        "rollout: 3\n", "", [], ["recipe.yaml:1: rollout: 3 must be a section"],
    ),
    "section that is empty": (
        "rollout:\n", "", [], ["recipe.yaml:1: rollout: null must be a section", "{} when empty"],
    ),
    "key that stands twice": (
        "train:\n  seed: 1\n  seed: 2\n", "", [], ["recipe.yaml:3: seed stands twice", ":2"],
    ),
    "file that is a list": (
        "- rollout\n", "", [], ["recipe.yaml:1: expected sections", "a list"],
    ),
    "broken YAML": (
        "rollout: {group_size: 3\ntrain: {}\n", "", [], ["recipe.yaml:2: "],
    ),
    "tab": (
        "rollout:\n\tgroup_size: 3\n", "", [], ["recipe.yaml:2: a tab; indent with spaces"],
    ),
    "not UTF-8": (
        b"# fine\ntracking: {experiment: caf\xe9}\n", "", [], ["recipe.yaml:2: not UTF-8"],
    ),
    "half a character": (
        'tracking: {experiment: "\\ud800"}\n', "", [], ["recipe.yaml:1:", "cannot be read as str"],
    ),
    "number of 5000 digits": (
        f"train: {{seed: {'9' * 5000}}}\n", "", [], ["recipe.yaml:1:", "cannot be read as int"],
    ),
    "control character": (
        "train: {}\ndata: {path: \x07}\n", "", [], ["recipe.yaml:2: special characters"],
    ),
    "anchor": (
        "train: &a {}\ndata: *a\n", "", [], ["recipe.yaml:1: anchors and aliases"],
    ),
    "tag": (
        "data: {path: !!python/name:os.system x}\n", "", [], ["recipe.yaml:1:", "tag"],
    ),
    "key that is no word": ("3: x\n", "", [], ["recipe.yaml:1: a key must be a word, not 3"]),
    "two documents": ("train: {}\n---\ntrain: {}\n", "", [], ["recipe.yaml:2:", "document"]),
    "empty recipe": ("# nothing\n", "", [], ["recipe.yaml: the recipe is empty"]),
    "recipe that inherits itself": (
        "inherits: recipe.yaml\n", "", [], ["recipe.yaml:1: recipes inherit in a circle"],
    ),
    "recipe that inherits an unknown one": (
        "inherits: tiny/flow-grpo-fst\n", "", [],
        ["recipe.yaml:1: there is no recipe", "did you mean tiny/flow-grpo-fast?"],
    ),
    "recipe that inherits two": (
        "inherits: [tiny/base, tiny/h100]\n", "", [], ["recipe.yaml:1: inherits: expected"],
    ),
    "recipe in a recipe": ("recipe: tiny/base\n", "", [], ["recipe.yaml:1: recipe:", "inherits"]),
    "unknown recipe in params": (
        None, "recipe: tiny/h10\n", [], ["params.yaml:1: there is no recipe", "tiny/h100?"],
    ),
    "inherits in params": (None, "inherits: tiny/base\n", [], ["params.yaml:1: inherits", "--rec"]),
    "override without a value": (None, "", ["train.steps"], ["--set train.steps: expected dotted"]),
    "override of nothing": (None, "", ["train.steps="], ["--set train.steps: no value"]),
    "override that is no YAML": (
        None, "", ["train.steps=[1"], ["--set train.steps: the value is no YAML", "quote text"],
    ),
    "override of an unknown key": (
        None, "", ["rolout.group_size=3"], ["--set rolout.group_size: rolout", "mean rollout?"],
    ),
    "misspelt choice": (
        "algorithm: {name: grop}\n", "", [], ["algorithm.name", "did you mean grpo?"],
    ),
    "misspelt choice among many": (
        None, "", ["data.source=focusdif"], ["data.source", "did you mean focusdiff?"],
    ),
    "misspelt suite": (
        None, "", ["evaluation.suite=pair_comp"], ["evaluation.suite", "did you mean paircomp?"],
    ),
    "a recipe like no other": (
        None, "recipe: qqq\n", [], ["no recipe 'qqq' (", "known, of deepgen, janus-pro-1b, "],
    ),
    "fields that exclude each other": (
        "export:\n  formats: [adapter]\n", "", ["data.source=geneval"],
        ["recipe.yaml:2: export.formats: adapter needs", "--set data.source: data.path"],
    ),
}  # fmt: skip

PLAN = {
    "group of one": (["rollout.group_size=1"], "rollout.group_size"),
    "micro-batch that does not divide": (["rollout.micro_batch_size=7"], "7 does not divide"),
    "window past the last step": (["rollout.window.range=[0,8]"], "rollout.window.range"),
    "no reward": (["rewards.ocr=null"], "rewards: none is set"),
    "missing prompt file": (["data.source=ocr_text", "data.path=no.txt"], "no file no.txt"),
}  # fmt: skip


def cli(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Run the command line in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["atelier", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


@pytest.mark.parametrize("case", CONFIG)
def test_malformed_configuration(
    case: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    recipe, params, overrides, expected = CONFIG[case]
    arguments = ["--params", str(tmp_path / "params.yaml")]
    (tmp_path / "params.yaml").write_text(params)
    if recipe is not None:
        content = recipe if isinstance(recipe, bytes) else recipe.encode()
        (tmp_path / "recipe.yaml").write_bytes(content)
        arguments += ["--recipe", str(tmp_path / "recipe.yaml")]
    for override in overrides:
        arguments += ["--set", override]

    code = cli("validate", *arguments, monkeypatch=monkeypatch)

    message = capsys.readouterr().err
    assert code == 2
    assert all(part in message for part in expected), message
    assert "Traceback" not in message


@pytest.mark.parametrize("case", PLAN)
def test_impossible_plan(
    case: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides, expected = PLAN[case]
    arguments = ["--recipe", "tiny/flow-grpo-fast", "--params", os.devnull, "--set", NOWHERE]
    for override in overrides:
        arguments += ["--set", override]

    code = cli("plan", *arguments, monkeypatch=monkeypatch)

    assert code == 3
    assert expected in capsys.readouterr().err


def test_a_refused_configuration_leaves_earlier_files_untouched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    common = ["stage", "resolve", "--run", str(tmp_path), "--params", os.devnull, "--set", NOWHERE]
    common += ["--recipe", "tiny/base"]
    assert cli(*common, monkeypatch=monkeypatch) == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert len(before) == 6

    for bad, code in [("train.stps=3", 2), ("rewards.ocr=null", 3)]:
        assert cli(*common, "--set", bad, monkeypatch=monkeypatch) == code

    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before
