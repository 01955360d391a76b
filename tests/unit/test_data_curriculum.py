"""A curriculum by measured difficulty: ranked cells, the levels of steps, and what is drawn."""

import json
import os
from collections import Counter
from pathlib import Path

import pytest

from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.sections.curriculum import CurriculumConfig
from atelier.config.sections.data import DataConfig
from atelier.data.curriculum import curriculum_indices, first_step_of, level_of, mix
from atelier.data.difficulty import read_scores, split, with_curriculum
from atelier.data.prepare import input_files, prepare
from atelier.data.prompts import Prompt, PromptSet, read_prompts
from atelier.errors import ConfigError, DataError, PlanError
from atelier.evaluation.suites.mmmg import as_json, table_of
from atelier.mmmg.benchmark import CELLS
from atelier.stages.prompts_here import prompts_here
from atelier.training.batches import drawn_mix, step_samples

KEYS = ["tier", "discipline"]


def mmmg_file(folder: Path, scores: dict[tuple[str, str], float]) -> Path:
    """As the suite mmmg writes it, of two images a cell."""
    rows = [
        {"tier": tier, "discipline": field, "judge_mmmg": score + shift}
        for (tier, field), score in scores.items()
        for shift in (-0.01, 0.01)
    ]
    file = folder / "mmmg.json"
    file.write_text(json.dumps({"judge_mmmg": as_json(table_of(rows, "judge_mmmg"))}))
    return file


def table(cells: dict[tuple[str, str], int]) -> PromptSet:
    prompts: list[Prompt] = []
    for (tier, field), count in cells.items():
        for _ in range(count):
            metadata = {"tier": tier, "discipline": field}
            prompts.append(Prompt(len(prompts), 0, f"prompt {len(prompts)}", metadata))
    return PromptSet(tuple(prompts), "train")


def settings(file: Path, **more) -> CurriculumConfig:
    return CurriculumConfig.model_validate({"scores": str(file), **more})


def binned(counts: list[int]) -> list[Prompt]:
    """Prompts of bins 1, 2, ..., so many of each, all of one cell a bin."""
    return [
        Prompt(100 * number + at, 0, f"{number} {at}", {"curriculum": {"bin": number, "cell": "C"}})
        for number, count in enumerate(counts, start=1)
        for at in range(count)
    ]


def bins_of(prompts, places) -> list[int]:
    return [prompts[at].metadata["curriculum"]["bin"] for at in places]


# Bins ------------------------------------------------------------------------------------------


def test_the_59_cells_of_mmmg_make_the_published_bins(tmp_path: Path) -> None:
    """12, 12, 12, 12 and 11 cells, the easiest first."""
    cells = sorted(CELLS)
    assert len(cells) == 59
    scores = {cell: 0.9 - 0.01 * rank for rank, cell in enumerate(cells)}
    file = mmmg_file(tmp_path, scores)
    prompts, bins = with_curriculum(table(dict.fromkeys(cells, 2)), settings(file))
    assert [len(one["cells"]) for one in bins] == [12, 12, 12, 12, 11]
    assert [one["prompts"] for one in bins] == [24, 24, 24, 24, 22]
    names = [name for one in bins for name in one["cells"]]
    assert names == [" ".join(cell) for cell in cells]
    assert [v for one in bins for v in one["cells"].values()] == pytest.approx(
        list(scores.values())
    )
    assert prompts[0].metadata["curriculum"] == {"bin": 1, "cell": " ".join(cells[0])}
    assert prompts[-1].metadata["curriculum"]["bin"] == 5


def test_equal_scores_are_ranked_by_name_and_unknown_cells_of_the_file_are_left_out(
    tmp_path: Path,
) -> None:
    scores = {("PhD", field): 0.5 for field in ("Math", "Biology", "History", "Sociology")}
    there = {("PhD", "Math"): 1, ("PhD", "History"): 1, ("PhD", "Biology"): 1}
    _, bins = with_curriculum(table(there), settings(mmmg_file(tmp_path, scores), levels=2))
    assert [list(one["cells"]) for one in bins] == [["PhD Biology", "PhD History"], ["PhD Math"]]


@pytest.mark.parametrize("other", [("phd", "Math"), ("PhD", "Math."), ("PhD Math", "-")])
def test_cells_whose_share_would_be_one_metric_are_refused(tmp_path: Path, other) -> None:
    scores = {("PhD", "Math"): 0.5, other: 0.25}
    with pytest.raises(DataError, match=r"data\.curriculum\.cells: .* would be one metric"):
        with_curriculum(table(dict.fromkeys(scores, 1)), settings(_by_hand(tmp_path, scores)))


def _by_hand(folder: Path, scores: dict[tuple[str, str], float]) -> Path:
    cells: dict[str, dict[str, float]] = {}
    for (tier, field), score in scores.items():
        cells.setdefault(tier, {})[field] = score
    file = folder / "own.json"
    file.write_text(json.dumps({"judge_mmmg": {"cells": cells}}))
    return file


@pytest.mark.parametrize(("count", "sizes"), [(5, [1, 1, 1, 1, 1]), (2, [3, 2]), (4, [2, 1, 1, 1])])
def test_what_is_left_over_goes_to_the_first_bins(count: int, sizes: list[int]) -> None:
    assert [len(one) for one in split([(str(at),) for at in range(5)], count)] == sizes


def test_without_scores_nothing_is_changed() -> None:
    prompts = table({("PhD", "Math"): 3})
    assert with_curriculum(prompts, CurriculumConfig()) == (prompts, None)


# Score files -----------------------------------------------------------------------------------


def test_rows_of_an_evaluation_are_averaged_by_any_columns(tmp_path: Path) -> None:
    file = tmp_path / "scores.jsonl"
    rows = [("add", 1.0), ("add", 0.0), ("move", 0.25), ("move", None), ("drop", None)]
    file.write_text("".join(json.dumps({"category": c, "gold": s}) + "\n" for c, s in rows))
    assert read_scores(file, ["category"], "gold") == {("add",): 0.5, ("move",): 0.25}


def test_an_evaluation_without_a_judge_is_ranked_by_what_it_has(tmp_path: Path) -> None:
    """It writes the judge's score of every image as null; a judge that failed once did not."""
    gold = {"tier": "PhD", "judge_mmmg": None, "gold_mmmg": 0.5}
    for judged, score in ((None, 0.5), (0.25, 0.25)):
        file = tmp_path / "scores.jsonl"
        file.write_text(
            "".join(json.dumps({**gold, "judge_mmmg": j}) + "\n" for j in (None, judged))
        )
        assert read_scores(file, ["tier"], None) == {("PhD",): score}


def test_a_table_may_be_written_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "own.json"
    file.write_text(json.dumps({"easy": {"cells": {"1": {"a": 0.5, "b": {"mean": None}}}}}))
    assert read_scores(file, ["n", "x"], "easy") == {("1", "a"): 0.5}


@pytest.mark.parametrize(
    ("name", "text", "keys", "score", "says"),
    [
        ("a.jsonl", '{"tier": 1, "gold": 1}\n', ["kind"], "gold", "line 1: no kind .*has gold, ti"),
        ("a.jsonl", '{"tier": 1, "gold": "x"}\n', ["tier"], "gold", "line 1: gold: a number"),
        ("a.jsonl", '{"tier": 1, "gold": 1}\n', ["tier"], None, "no judge_mmmg or gold_mmmg.*has"),
        ("a.jsonl", '{"tier": 1, "judge_mmmg": null}\n', ["tier"], None, "none that is not null"),
        ("a.jsonl", "[1]\n", ["tier"], "gold", "an object expected"),
        (
            "a.jsonl",
            '{"tier": 1, "gold": 50}\n',
            ["tier"],
            "gold",
            "line 1: gold: a number from 0 to",
        ),
        (
            "a.json",
            '{"s": {"cells": {"a": {"b": -1}}}}',
            KEYS,
            "s",
            "a number from 0 to 1 expected",
        ),
        ("a.json", '{"s": {"cells": {"a": 1}}}', KEYS, "s", "cells: a: not nested by tier, disc"),
        ("a.json", '{"s": {"cells": {"a": {"b": 1}}}}', ["tier"], "s", "a: nested deeper than ti"),
        ("a.json", '{"s": {"cells": {"a": {"b": "x"}}}}', KEYS, "s", "cells: a: b: a number"),
        ("a.json", '{"s": {"tiers": {}}}', KEYS, "s", "an object with 'cells'"),
        ("a.json", "[]", KEYS, "s", "an object of scores expected"),
    ],
)
def test_a_file_that_says_no_scores_is_refused(tmp_path, name, text, keys, score, says) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(DataError, match=says):
        read_scores(file, keys, score)


def test_cells_that_were_not_measured_are_named_with_what_to_do(tmp_path: Path) -> None:
    file = mmmg_file(tmp_path, {("PhD", "Math"): 0.5})
    cells = {("PhD", field): 1 for field in ("Math", "Biology", "History")}
    says = r"no score of PhD Biology, PhD History.*evaluation\.prompts.*data\.curriculum\.cells"
    with pytest.raises(DataError, match=says):
        with_curriculum(table(cells), settings(file))
    with pytest.raises(DataError, match=r"levels 5: .* 1 cells.*no more levels than cells"):
        with_curriculum(table({("PhD", "Math"): 1}), settings(file))
    with pytest.raises(DataError, match=r"prompt 0 has no colour in its metadata; it has disc"):
        with_curriculum(table({("PhD", "Math"): 1}), settings(file, cells=["colour", "discipline"]))


# Levels and draws ------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "levels"), [(500, 5), (7, 5), (60, 2), (5, 5), (13, 4)])
def test_a_level_is_that_of_the_published_formula(steps: int, levels: int) -> None:
    """min(floor(done / steps x L), L - 1), with `done` steps done before this one."""
    for step in range(1, steps + 1):
        published = min(int((step - 1) * levels / steps + 1e-12), levels - 1)
        assert level_of(step, steps, levels) == published + 1
        first = first_step_of(published + 1, steps, levels)
        assert first <= step
        assert level_of(first, steps, levels) == published + 1
        assert first == 1 or level_of(first - 1, steps, levels) <= published


def test_a_level_draws_evenly_from_its_own_bin_and_all_easier_ones() -> None:
    prompts = binned([12, 12, 12])
    drawn: dict[int, Counter[int]] = {1: Counter(), 2: Counter(), 3: Counter()}
    for step in range(1, 181):
        drawn[level_of(step, 180, 3)].update(curriculum_indices(prompts, step, 180, 3, 6, 0))
    for level, counts in drawn.items():
        # 60 steps of 6 prompts are as many as whole epochs have; the first and the last are cut.
        assert set(counts) == set(range(12 * level))
        assert max(counts.values()) - min(counts.values()) <= 2
        assert sum(counts.values()) == 360


def test_a_new_level_begins_an_epoch_and_no_prompt_stands_twice_in_one() -> None:
    prompts = binned([8, 8])
    first = first_step_of(2, 16, 2)
    # row_indices counts steps from 1, so an epoch's first position is its last step's.
    met = [
        at
        for step in range(first, first + 3)
        for at in curriculum_indices(prompts, step, 16, 2, 4, 0)
    ]
    assert len(set(met)) == 12


def test_a_step_is_the_same_for_whoever_asks_and_whenever() -> None:
    prompts = binned([9, 7, 8])
    once = [curriculum_indices(prompts, step, 30, 3, 4, 5) for step in range(1, 31)]
    again = [curriculum_indices(prompts, step, 30, 3, 4, 5) for step in reversed(range(1, 31))]
    assert once == again[::-1]
    assert once != [curriculum_indices(prompts, step, 30, 3, 4, 6) for step in range(1, 31)]


def test_other_rounds_are_of_the_same_level_and_new_to_the_step() -> None:
    prompts = binned([12, 12])
    for step in (1, 9, 10, 20):
        level = level_of(step, 20, 2)
        met = [
            at
            for round in (0, 1, 2)
            for at in curriculum_indices(prompts, step, 20, 2, 4, 0, round)
        ]
        assert len(set(met)) == 12
        assert max(bins_of(prompts, met)) <= level


def test_a_pair_stays_whole_and_is_of_its_harder_bin() -> None:
    prompts = [
        Prompt(
            2 * pair + caption,
            0,
            f"{pair} {caption}",
            {"pair": pair, "curriculum": {"bin": 1 + (pair >= 6 and caption), "cell": "C"}},
        )
        for pair in range(12)
        for caption in (0, 1)
    ]
    for step in range(1, 21):
        places = curriculum_indices(prompts, step, 20, 2, 4, 3)
        assert all(
            b == a + 1 and a % 2 == 0 for a, b in zip(places[::2], places[1::2], strict=True)
        )
        if step <= 10:
            assert max(places) < 12


def test_a_level_with_too_few_prompts_is_refused() -> None:
    says = r"levels 2: level 1 has 3 prompts, and a step takes 4 \(train\.prompts_per_step\)"
    with pytest.raises(PlanError, match=says):
        curriculum_indices(binned([3, 20]), 1, 10, 2, 4, 0)


def test_the_mix_is_what_was_drawn() -> None:
    prompts = [
        Prompt(at, 0, "x", {"curriculum": {"bin": number, "cell": cell}})
        for at, (number, cell) in enumerate([(1, "PhD Math"), (1, "PhD Math"), (3, "a/B c")] * 2)
    ]
    assert mix(prompts, 9, 9, 3) == pytest.approx(
        {
            "curriculum/level": 3,
            "curriculum/bin_1": 2 / 3,
            "curriculum/bin_2": 0,
            "curriculum/bin_3": 1 / 3,
            "curriculum/cell/a_b_c": 1 / 3,
            "curriculum/cell/phd_math": 2 / 3,
        }
    )


def test_cells_of_any_script_are_told_apart_and_can_be_tracked() -> None:
    from mlflow.utils.validation import _validate_metric_name

    cells = ["PhD 数学", "数学", "物理", "+"]
    prompts = [Prompt(0, 0, "x", {"curriculum": {"bin": 1, "cell": one}}) for one in cells]
    told = [name for name in mix(prompts, 1, 2, 2) if "/cell/" in name]
    assert told == [f"curriculum/cell/{one}" for one in ("_", "phd_数学", "数学", "物理")]
    for name in told:
        _validate_metric_name(name)


# A run -----------------------------------------------------------------------------------------

GRAPHS = (
    *("data.scene_kind=shapes", "data.scene_task=graph", "data.scene_tiers=3"),
    *("data.train_prompts=48", "data.heldout_prompts=12", "evaluation.suite=mmmg"),
    *("rewards={ocr: null, scene_graph: {}}", "train.prompts_per_step=4", "train.steps=6"),
    *(
        "rollout.group_size=8",
        "launch.processes=1",
        "rollout.micro_batch_size=8",
        "data.curriculum.levels=3",
        "data.curriculum.cells=[tier]",
    ),
    "data.curriculum.score=gold_mmmg",
)


def configured(file: Path, *more: str) -> RunConfig:
    overrides = [*GRAPHS, f"data.curriculum.scores={file}", *more]
    return resolve("tiny/flow-grpo-fast", overrides, Path(os.devnull))


def scene_scores(folder: Path, *tiers: str) -> Path:
    """Preschool is the hardest."""
    file = folder / "scores.jsonl"
    rows = [{"tier": tier, "gold_mmmg": 0.1 + 0.2 * rank} for rank, tier in enumerate(tiers)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


TIERS = ("preschool", "primaryschool", "secondaryschool")


def test_a_run_draws_what_was_measured_to_be_easy_first(tmp_path: Path) -> None:
    config = configured(scene_scores(tmp_path, *TIERS))
    assert not [one for one in plan(config).warnings if one.startswith("data.curriculum")]
    assert prompts_here(config) is None
    summary = prepare(config.data, tmp_path / "data")
    assert [list(one["cells"]) for one in summary["curriculum"]] == [
        ["secondaryschool"],
        ["primaryschool"],
        ["preschool"],
    ]
    prompts = read_prompts(tmp_path / "data" / "train.parquet")
    for step in range(1, 7):
        samples = step_samples(prompts, step, config)
        tiers = {one.prompt.metadata["tier"] for one in samples}
        assert tiers <= set(TIERS[2 - (step - 1) // 2 :])
        told = drawn_mix(samples, step, config)
        assert told["curriculum/level"] == 1 + (step - 1) // 2
        assert sum(value for name, value in told.items() if "/bin_" in name) == pytest.approx(1)
    heldout = read_prompts(tmp_path / "data" / "heldout.parquet")
    assert "curriculum" not in heldout[0].metadata


def test_a_plan_refuses_what_training_would(tmp_path: Path) -> None:
    file = scene_scores(tmp_path, *TIERS[:2])
    with pytest.raises(PlanError, match=r"no score of secondaryschool"):
        prompts_here(configured(file))
    scene_scores(tmp_path, *TIERS)
    with pytest.raises(PlanError, match=r"level 1 has 16 prompts, and a step takes 24"):
        prompts_here(configured(file, "train.prompts_per_step=24"))
    with pytest.raises(PlanError, match=r"data\.curriculum\.levels: 3 levels in train\.steps 2"):
        plan(configured(file, "train.steps=2"))
    with pytest.raises(PlanError, match=r"data\.curriculum\.scores: there is no file .*gone"):
        plan(configured(tmp_path / "gone.json"))


def test_settings_without_scores_are_told_to_do_nothing() -> None:
    config = resolve("tiny/flow-grpo-fast", ["data.curriculum.levels=3"], Path(os.devnull))
    (told,) = [one for one in plan(config).warnings if one.startswith("data.curriculum")]
    assert "data.curriculum.levels: does nothing here" in told
    with pytest.raises(ConfigError, match=r"data\.curriculum\.cells: names a key twice"):
        resolve("tiny/flow-grpo-fast", ["data.curriculum.cells=[a, a]"], Path(os.devnull))


def test_a_changed_score_file_prepares_again(tmp_path: Path) -> None:
    config = configured(scene_scores(tmp_path, *TIERS))
    assert tmp_path / "scores.jsonl" in input_files(config.data, tmp_path)
    assert DataConfig().curriculum.scores is None
