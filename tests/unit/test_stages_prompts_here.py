"""Prompt files are read before a run starts, where they are here."""

import csv
import json
import os
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from atelier.cli.application import application
from atelier.config.paths import repository_root
from atelier.config.plan import plan
from atelier.config.recipes import recipe_names, recipes_directory
from atelier.config.resolve import resolve, write_stage_configs
from atelier.config.schema import RunConfig
from atelier.config.sections.data import DataConfig
from atelier.data.scene_tables import scene_tables
from atelier.errors import DataError, PlanError
from atelier.stages import prepare as stages_prepare
from atelier.stages.prompts_here import planned as with_prompts
from atelier.stages.prompts_here import prompt_warnings, prompts_here
from atelier.stages.run_file import check_opening
from atelier.tracking.run_directory import RunDirectory


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


PAIRS = [{"prompt1": f"a red dog {i}", "prompt2": f"a blue dog {i}"} for i in range(40)]


def paired(folder: Path, *more: str) -> list[str]:
    """Forty pairs, of which three have a prompt in PairComp."""
    (folder / "pairs.json").write_text(json.dumps(PAIRS))
    held = [
        {"category": "c", "caption1": PAIRS[i]["prompt1"], "caption2": f"new {i}"} for i in range(3)
    ]
    (folder / "PairComp.json").write_text(json.dumps(held))
    paths = (f"data.path={folder / 'pairs.json'}", f"data.heldout_path={folder / 'PairComp.json'}")
    formats = ("data.source=focusdiff", "data.heldout_source=paircomp")
    rewards = ("rewards.ocr=null", "rewards.jpeg_compressibility={}", "evaluation.suite=paircomp")
    judge = ("judges.j={model: m, placement: in_process}", "evaluation.paircomp.judge=j")
    return [*paths, *formats, *rewards, *judge, *more]


@pytest.mark.parametrize(
    ("more", "row", "remark"),
    [
        ([], "not trained on", "6  they or their partner are held out"),
        (["data.train_prompts=60"], "training prompts", "60  14 more are left out (data.train_p"),
        (["data.heldout_prompts=4"], "held-out prompts", "4  2 more are left out (data.heldout_p"),
    ],
)
def test_what_is_not_used_of_a_file_is_said_by_plan_and_prepare(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, more: list[str], row: str, remark: str
) -> None:
    settings = paired(tmp_path, *more)
    typed = [part for one in settings for part in ("--set", one)]
    recipe = ("--recipe", "tiny/flow-grpo-fast", "--params", os.devnull)
    result = CliRunner().invoke(application, ["plan", *recipe, *typed])
    rows = {line.split("  ")[0]: " ".join(line.split()) for line in result.output.splitlines()}
    assert remark.replace("  ", " ") in rows[row]
    run = RunDirectory(tmp_path / "run")
    write_stage_configs(resolve("tiny/flow-grpo-fast", settings, Path(os.devnull)), run)
    with caplog.at_level("INFO"):
        stages_prepare.run(run)
    (said,) = [one for one in caplog.messages if "training prompts" in one]
    assert "6 not trained on, because they or their partner are held out too" in said
    for split, left_out in (("train", 14), ("heldout", 2)):
        mine = any(split in one for one in more)
        assert (f"{left_out} more than data.{split}_prompts left out" in said) == mine


def test_a_plan_says_how_many_prompts_have_a_picture(tmp_path: Path) -> None:
    settings = paired(tmp_path)
    pairs = [dict(one) for one in PAIRS]
    Image.new("RGB", (8, 8)).save(tmp_path / "dog.png")
    pairs[20] |= {"image1": "dog.png", "image2": "dog.png"}
    pairs[21] |= {"image1": "dog.png"}
    (tmp_path / "pairs.json").write_text(json.dumps(pairs))
    base = [*settings, "policy.family=janus", "policy.path=assets/tiny-janus"]
    learning = prompts_here(truthful(base))
    assert learning is not None
    assert learning.with_truth == 3
    unused = prompts_here(truthful(base, "algorithm.ground_truth.enabled=false"))
    assert unused is not None
    assert unused.with_truth is None
    (tmp_path / "pairs.json").write_text(json.dumps(PAIRS))
    with pytest.raises(PlanError, match=r"ground_truth\.enabled: none of the 74 training prompts"):
        prompts_here(truthful(base))


SUITE = ("evaluation.suite=unigenbench", "evaluation.unigenbench.judge=j")


def test_held_out_prompts_without_test_points_are_counted(tmp_path: Path) -> None:
    settings = [*of_two_kinds(tmp_path), *SUITE, "judges.j={model: m, placement: in_process}"]
    settings += ["evaluation.unigenbench.ask=each", "evaluation.periodic_prompts=2"]
    config = resolve("tiny/flow-grpo-fast", settings, Path(os.devnull))
    found = prompts_here(config)
    assert found is not None
    assert (found.heldout, found.unusable) == (5, 3)
    said = list(prompt_warnings(config, found))
    assert (
        "evaluation.prompts: 256, but only 2 prompts that unigenbench can use are held out" in said
    )
    assert not any("periodic_prompts" in one for one in said)


def test_no_more_images_are_evaluated_than_prompts_are_held_out(tmp_path: Path) -> None:
    """Of five prompts two can be used, with four images each; so are their questions counted."""
    settings = [*of_two_kinds(tmp_path), *SUITE, "judges.j={model: m, placement: in_process}"]
    settings += ["evaluation.unigenbench.ask=each"]
    made, found = with_prompts(resolve("tiny/flow-grpo-fast", settings, Path(os.devnull)))
    assert found is not None
    assert made.evaluations
    assert made.evaluation_images == 4 * 2 * (2 + made.evaluations)
    assert made.evaluation_judge_calls == 3 * made.evaluation_images
    code, said = planned(tmp_path / "train.txt", *settings)
    assert code == 0
    assert f"images evaluated {made.evaluation_images}" in " ".join(said.split())


def of_two_kinds(folder: Path) -> list[str]:
    """An evaluation set of three plain prompts and two with test points."""
    (folder / "train.txt").write_text("".join(f'the word "W{n}"\n' for n in range(40)))
    (folder / "plain.txt").write_text("".join(f"a dog {n}\n" for n in range(3)))
    points = json.dumps({"Testpoints": ["Style"], "Testpoint Description": ["ink"]})
    with (folder / "points.csv").open("w") as file:
        csv.writer(file).writerows(
            [["prompt", "sub_dims"], *[[f"a cat {n}", points] for n in "ab"]]
        )
    (folder / "evaluate.yaml").write_text(
        "datasets:\n- {name: plain, path: plain.txt}\n"
        "- {name: points, path: points.csv, scoring: unigenbench}\n"
    )
    return [
        *("data.source=ocr_text", f"data.path={folder / 'train.txt'}"),
        *("data.heldout_source=deepgen_eval", f"data.heldout_path={folder / 'evaluate.yaml'}"),
    ]


def truthful(settings: list[str], *more: str) -> RunConfig:
    """The recipe of pairs with what they ask for, which learns from pictures."""
    unset = ("rewards.yes_no=null",)
    return resolve("tiny-janus/pair-grpo", [*settings, *unset, *more], Path(os.devnull))


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


GRAPHS = ("data.scene_kind=shapes", "data.scene_task=graph", "data.scene_tiers=1")


def test_scenes_that_there_are_not_are_refused_by_plan_and_run_alike() -> None:
    """Both limits at once, and what is said to work does."""
    graphs = (*GRAPHS, *("rewards.ocr=null", "rewards.scene_graph={}", "evaluation.suite=mmmg"))
    refused = (
        lambda: prompts_here(resolve("tiny/flow-grpo-fast", graphs, Path(os.devnull))),
        lambda: check_opening("tiny/flow-grpo-fast", graphs, None, None),
    )
    for one in refused:
        with pytest.raises(PlanError) as caught:
            one()
    said = str(caught.value)
    assert "data.train_prompts 2048: scene_kind shapes, scene_task graph, scene_tiers 1" in said
    assert "data.heldout_prompts 256: " in said
    works = re.findall(r"--set (\S+)", said)
    assert len(works) == 2
    assert prompts_here(resolve("tiny/flow-grpo-fast", (*graphs, *works), Path(os.devnull))) is None


def test_fewer_pairs_of_scenes_are_as_many_as_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sooner than in earnest, and of the split that has fewer.
    monkeypatch.setattr("atelier.data.scene_tables.FRUITLESS_DRAWS", 40)
    few = {"train_prompts": 8, "heldout_prompts": 4000}
    pairs = {"scene_kind": "shapes", "scene_pairs": 0.5, **few}
    with pytest.raises(DataError, match=r"scene_pairs 0\.5 holds too few") as caught:
        scene_tables(DataConfig(**pairs))
    (works,) = re.findall(r"--set data.heldout_prompts=(\d+)", str(caught.value))
    _, heldout = scene_tables(DataConfig(**pairs | {"heldout_prompts": int(works)}))
    assert len(heldout) == int(works)


@pytest.mark.parametrize("name", recipe_names(recipes_directory()))
def test_every_recipe_of_scenes_has_as_many_as_it_asks_for(name: str) -> None:
    config = resolve(name, (), Path(os.devnull))
    assert config.data.source != "scenes" or prompts_here(config) is None


def test_the_command_of_the_page_about_graphs_is_a_plan_that_works() -> None:
    page = (repository_root() / "docs" / "mmmg.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"atelier run --recipe (.*?)\n```", page, re.DOTALL)
    recipe, *words = shlex.split(command.replace("\\\n", " "))
    config = resolve(recipe, words[1::2], Path(os.devnull))
    assert plan(config).updates
    assert prompts_here(config) is None


def test_scenes_have_no_file() -> None:
    assert prompts_here(resolve("tiny/flow-grpo-fast", (), Path(os.devnull))) is None
