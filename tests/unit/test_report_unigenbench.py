"""What becomes of scores of test points behind the suite: page, comparison of runs, MLflow."""

from __future__ import annotations

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
from atelier.report.metric_names import is_part
from atelier.report.page import render as page_of
from atelier.report.runs_comparison import compare_runs
from atelier.stages.run_file import read_run
from atelier.tracking import mlflow_mirror
from atelier.tracking.run_directory import RunDirectory, write_json
from tests.support.fake_run import open_fake_run, write_record, write_steps

# Of two to six points: a mean of the prompts' shares would be another than that of all points.
PROMPTS = tuple(scene_table(DataConfig(scene_kind="shapes", heldout_prompts=12), "heldout"))
CONFIG = EvaluationConfig(suite="unigenbench", bootstrap_samples=200)


def score(folder: Path, wrong: int) -> None:
    """Every `wrong`-th image is that of another prompt, so that some of its points are shown."""
    requests = image_requests(PROMPTS, CONFIG)
    shown = np.stack([np.asarray(render(from_dict(r.prompt.metadata["scene"]))) for r in requests])
    shown[::wrong] = np.roll(shown, 4, axis=0)[::wrong]
    write_images(folder, [one.file for one in requests], shown)
    score_folder(folder, PROMPTS, CONFIG)


def finished(root: Path, *overrides: str, wrong: int = 7) -> RunDirectory:
    uri = f"sqlite:///{root.parent}/mlflow.db"
    settings = ("data.scene_kind=shapes", "evaluation.suite=unigenbench", *overrides)
    run = open_fake_run(root, uri, *settings)
    write_prompts(run.data / "heldout.parquet", PROMPTS)
    score(run.baseline, 2)
    score(run.evaluate, wrong)
    score(run.periodic_evaluation("unigenbench", 0), 2)
    score(run.periodic_evaluation("unigenbench", 2), wrong)
    write_record(run, "train")
    write_steps(run, range(1, 4))
    rows = compare(read_evaluation(run.baseline), read_evaluation(run.evaluate), 200)
    write_json(run.evaluate / "comparison.json", [asdict(one) for one in rows])
    means = read_evaluation(run.evaluate)
    identity = {"digest": read_run(run)["digests"]["evaluate"], "inputs": {}}
    summary = {name: means.mean(name) for name in means.summary["metrics"]}
    write_record(run, "evaluate", identity=identity, summary=summary)
    return run


@pytest.fixture(name="run", scope="module")
def _run(tmp_path_factory) -> RunDirectory:
    return finished(tmp_path_factory.mktemp("points") / "run")


def test_the_page_tells_the_share_of_points_and_every_dimension(run: RunDirectory) -> None:
    page = page_of(run)
    assert "Held-out UniGenBench by gold rose from 0." in page
    assert "UniGenBench by gold, mean of the primary dimensions" in page
    assert "UniGenBench by gold, attribute color" in page
    assert "the test points that are not shown" in page
    assert "bootstrap over prompts" in page


def test_runs_are_compared_by_their_pooled_shares(run: RunDirectory, tmp_path: Path) -> None:
    better = finished(tmp_path / "better", "algorithm.beta=0.01", wrong=47)
    by_name = {one.metric: one for one in compare_runs([run, better]).metrics}
    assert not any(is_part(name) for name in by_name)
    for metric in ("gold_unigenbench", "gold_macro"):
        found = by_name[metric]
        expected = [read_evaluation(one.evaluate).mean(metric) for one in (run, better)]
        assert list(found.means) == pytest.approx(expected)
        (pair,) = found.pairs
        assert pair.difference.mean == pytest.approx(expected[1] - expected[0])
        assert found.prompts == 12


def test_trends_of_every_dimension_reach_mlflow(run: RunDirectory) -> None:
    from mlflow import MlflowClient

    assert mlflow_mirror.sync(run)
    client = MlflowClient(f"sqlite:///{run.root.parent}/mlflow.db")
    run_id = read_run(run)["mlflow_run_id"]
    for name in ("gold_unigenbench", "gold_macro", "gold_unigenbench/attribute_color"):
        history = client.get_metric_history(run_id, f"evaluation/unigenbench/{name}")
        found = {one.step: one.value for one in history}
        assert found.keys() == {0, 2}
        for step, value in found.items():
            folder = run.periodic_evaluation("unigenbench", step)
            assert value == pytest.approx(read_evaluation(folder).mean(name))
    assert "final/gold_unigenbench/attribute_color" in client.get_run(run_id).data.metrics
