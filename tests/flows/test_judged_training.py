"""A real trainer whose reward asks a judge: its words are where people look for them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atelier.judge.usage import NAME, read_usage
from atelier.report.samples import read_samples, samples_page
from atelier.tracking.events import read_json_lines
from atelier.tracking.run_directory import RunDirectory
from tests.support.judge_endpoint import judge_endpoint, said
from tests.support.runs import make_run, metrics, train

REWARD = "jpeg_compressibility"


async def answer(call):
    """Yes to a word in the first half of the alphabet, and as the golden sample wants it."""
    is_so = call.prompt.split('"')[1:2] < ["M"] and "blue square" not in call.prompt
    yes, no = (-0.1, -3.0) if is_so else (-3.0, -0.1)
    return said("Yes", first_token=[("Yes", yes), ("No", no)])


def judged_run(folder: Path, url: str, share: float) -> RunDirectory:
    own = [
        "rewards.yes_no.judge=strict",
        "rewards.yes_no.questions={shows: 'Is it {prompt}?'}",
        "rewards.yes_no.weight=0.0",
        "judges.strict.placement=remote",
        f"judges.strict.urls=[{url}]",
        "judges.strict.model=m",
        f"tracking.judge_traces={share}",
        f"tracking.mlflow_uri=sqlite:///{folder}/mlflow.db",
        "launch.threads=1",
    ]
    return make_run(folder, own)


def test_what_a_judge_says_is_kept_and_changes_no_number(tmp_path: Path) -> None:
    with judge_endpoint() as endpoint:
        endpoint.acts(answer)
        shown = judged_run(tmp_path / "shown", endpoint.url, 1.0)
        silent = judged_run(tmp_path / "silent", endpoint.url, 0.0)
        for run in (shown, silent):
            train(run)
    assert metrics(shown) == metrics(silent)
    for run in (shown, silent):
        counted = read_usage([run.train / NAME])["judges.strict"]
        assert counted.questions == counted.calls == len(endpoint.calls) / 2
        assert counted.questions >= 3 * 32
    assert not silent.judge_traces.exists()
    lines = [record for _, record in read_json_lines(shown.judge_traces)]
    asked = [one for one in lines if 'Is it the word "' in one["prompt"]]
    assert len(asked) == 3 * 32  # the others are of the golden sample
    assert all(one["judge"] == "judges.strict" and one["images"] for one in asked)
    for row in metrics(shown):
        assert row["reward/yes_no/advantage_share"] == 0  # it only logs
        assert 0 < row["reward/yes_no/mean"] < 1
    content = json.loads((shown.step_samples(3) / "samples.json").read_text())
    for one in content["samples"]:
        assert one["weights"] == {"yes_no": 0.0, REWARD: 1.0}
        seen = one["details"]["yes_no"]
        assert seen["shows"] == pytest.approx(one["scores"]["yes_no"])
        assert len(seen["judge"]) == 1
    page = samples_page("judged", read_samples(shown.step_samples(3)))
    assert "yes_no 0." in page
    assert page.count("<img") == 16
