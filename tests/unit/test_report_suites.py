"""The page, the small files and the comparison of runs whose suite is another than ocr."""

from __future__ import annotations

import csv
import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from atelier.config.sections.data import DataConfig
from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.prompts import write_prompts
from atelier.data.render import render
from atelier.data.scene_tables import scene_table
from atelier.data.scenes import from_dict
from atelier.evaluation.evaluate import score_folder
from atelier.evaluation.files import read_evaluation, write_images
from atelier.evaluation.requests import image_requests
from atelier.evaluation.results import compare
from atelier.report.grids import image_paths
from atelier.report.metric_names import direction_of, is_part, label_of, order_of
from atelier.report.page import render as page_of
from atelier.report.result_files import write_result_files
from atelier.report.runs_comparison import compare_runs
from atelier.report.warnings import judge_is_reward_words, warnings
from atelier.stages.baseline import describe
from atelier.stages.run_file import read_run
from atelier.tracking.run_directory import RunDirectory, read_json_object, write_json
from tests.support.fake_run import open_fake_run, write_record, write_steps
from tests.unit.test_evaluation_suites import scripted

PAIRS = tuple(
    scene_table(DataConfig(scene_kind="shapes", scene_pairs=1.0, heldout_prompts=24), "heldout")
)
CONFIG = EvaluationConfig(suite="paircomp", bootstrap_samples=200)
JUDGE = (
    "judges.scene={model: assets/tiny-judge, placement: in_process}",
    "evaluation.paircomp.judge=scene",
)
SETTINGS = (
    "data.scene_kind=shapes",
    "data.scene_pairs=1.0",
    "rewards.ocr=null",
    "rewards.yes_no={judge: scene}",
    "evaluation.suite=paircomp",
    *JUDGE,
)


def score(folder: Path, wrong: int, level: float = 0.5) -> None:
    """Pairs of which every `wrong`-th image is empty; the judge says `level` of all."""
    requests = image_requests(PAIRS, CONFIG)
    images = [np.asarray(render(from_dict(one.prompt.metadata["scene"]))) for one in requests]
    shown = np.stack(images)
    shown[::wrong] = 255
    write_images(folder, [one.file for one in requests], shown)
    score_folder(folder, PAIRS, CONFIG, scripted(lambda question: level))


def finished(root: Path, *overrides: str, wrong: int = 8) -> RunDirectory:
    run = open_fake_run(root, "sqlite:///unused.db", *SETTINGS, *overrides)
    write_prompts(run.data / "heldout.parquet", PAIRS)
    score(run.baseline, 2, 0.4)
    score(run.evaluate, wrong)
    score(run.periodic_evaluation("paircomp", 0), 2, 0.4)
    score(run.periodic_evaluation("paircomp", 2), wrong)
    write_steps(run, range(1, 4))
    rows = compare(read_evaluation(run.baseline), read_evaluation(run.evaluate), 200)
    write_json(run.evaluate / "comparison.json", [asdict(one) for one in rows])
    identity = {"digest": read_run(run)["digests"]["evaluate"], "inputs": {}}
    write_record(run, "evaluate", identity=identity)
    return run


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory) -> RunDirectory:
    return finished(tmp_path_factory.mktemp("suites") / "run")


def test_the_page_shows_pairs_categories_and_red_where_the_judge_is_the_reward(run):
    page = page_of(run)
    assert f'<p class="danger">{judge_is_reward_words([["gold"]])}</p>' in page
    assert "Held-out PairComp by the judge, arithmetic mean rose from 0.400 to 0.500" in page
    assert "<h2>By category</h2>" in page
    assert "PairComp by gold, arithmetic mean, count" in page
    assert "bootstrap over pairs" in page
    assert "<title>judge arithmetic at 2:" in page
    assert "its score against its own caption" in page
    assert "similarity" not in page.split("<h2>What it was made from</h2>")[0]
    main = page.split("<h2>By category</h2>")[0]
    assert "PairComp by gold, arithmetic mean, count" not in main


def test_another_judge_or_gold_is_not_red(tmp_path):
    other = "judges.other={model: other, placement: in_process}"
    run = finished(tmp_path / "run", other, "rewards.yes_no.judge=other")
    assert "danger" not in page_of(run).split("</style>")[1]


def test_the_small_files_hold_the_headline_under_one_name(run, tmp_path):
    write_result_files(run, tmp_path)
    with (tmp_path / "heldout.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["headline"]) for row in rows] == pytest.approx([0.4, 0.5])
    assert [row["prompts"] for row in rows] == [str(len(PAIRS))] * 2
    heldout = read_json_object(tmp_path / "metrics.json")["heldout"]
    assert heldout["judge_arithmetic"] == pytest.approx(0.5)
    assert not any(is_part(name) or name == "dark_share" for name in heldout)


def test_runs_are_compared_by_pair_and_by_the_mean_of_categories(run, tmp_path):
    better = finished(tmp_path / "better", "algorithm.beta=0.01", wrong=96)
    found = compare_runs([run, better])
    assert found.metrics[0].metric == "judge_arithmetic"
    by_name = {one.metric: one for one in found.metrics}
    gold = by_name["gold_arithmetic"]
    assert gold.prompts == 12
    assert "  pairs\n" in found.as_text()
    assert "intervals are for other pairs" in found.method
    assert "prompts\n" not in found.as_text()
    for group, own in zip(found.groups, gold.means, strict=True):
        expected = group.runs[0].after.mean("gold_arithmetic")
        assert own == pytest.approx(expected)
    assert abs(gold.means[1] - gold.means[0]) > 0.05
    assert not any(is_part(name) for name in by_name)
    summary = run.evaluate / "summary.json"
    value = json.loads(summary.read_text())
    try:
        write_json(summary, value | {"judge_is_reward": True})
        assert judge_is_reward_words([["gold"]]) in compare_runs([run, better]).warnings
    finally:
        write_json(summary, value)


def test_a_judge_that_rises_while_gold_falls_is_told():
    history = [
        {"judge_arithmetic": {"mean": proxy}, "gold": {"mean": gold}}
        for proxy, gold in ((0.5, 0.6), (0.8, 0.4))
    ]
    assert not warnings([], history, [])
    (found,) = warnings([], history, [], "judge_arithmetic")
    assert found.startswith("proxy_against_gold: since gold was best, judge_arithmetic changed by")


def test_images_of_pairs_are_in_the_order_of_their_numbers(tmp_path):
    names = ["10_0_0", "2_1_0", "2_0_1"]
    (tmp_path / "images").mkdir()
    for name in names:
        (tmp_path / "images" / f"{name}.png").touch()
    assert [path.stem for path in image_paths(tmp_path)] == ["2_0_1", "2_1_0", "10_0_0"]


def test_metrics_in_words():
    assert label_of("facts/ink") == "Confirmed facts, ink"
    assert label_of("gold_geometric/style_tone") == "PairComp by gold, geometric mean, style tone"
    assert label_of("unheard_of") == "unheard_of"
    assert direction_of("facts/ink") == direction_of("strict") == 1
    assert direction_of("edge_density") == direction_of("unheard_of") == 0
    names = ["gold", "facts/ink", "strict", "similarity", "what"]
    assert sorted(names, key=order_of) == [
        "similarity",
        "strict",
        "gold",
        "facts/ink",
        "what",
    ]
    assert describe({"gold": 0.5, "strict": 0.25, "facts/ink": 1, "exact": None}) == (
        "strict 0.250  gold 0.500"
    )
