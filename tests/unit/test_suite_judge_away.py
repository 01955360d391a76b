"""A suite's judge that cannot be reached: it is waited for, and then nothing is written for good.
A real endpoint."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from starlette.responses import Response

from atelier.config.schema import RunConfig
from atelier.data.prompts import write_prompts
from atelier.errors import Stopped
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.files import write_images
from atelier.evaluation.requests import image_requests
from atelier.stages.follower import EvaluationFollower
from atelier.stages.suite_judges import judge_of_stage
from atelier.tracking.events import JsonLines
from atelier.tracking.run_directory import RunDirectory
from tests.support.judge_endpoint import FakeJudge, Script, judge_endpoint, said
from tests.unit.test_stages_suites import PAIRS, images, judged, yes_to_ink


def asking(endpoint: FakeJudge, patience: float) -> RunConfig:
    config = judged("placement: remote", f"urls: [{endpoint.url}]", "retries: 0")
    own = config.evaluation.model_copy(update={"judge_deadline": patience})
    return config.model_copy(update={"evaluation": own})


def answers(times: int) -> Script:
    """A judge that loads its model again after so many answers, and is never back."""
    given: list[object] = []

    async def some(call: object) -> Response:
        if len(given) >= times:
            return Response("loading", status_code=503)
        given.append(call)
        return await yes_to_ink(call)

    return some


def test_a_judge_that_comes_back_is_asked_for_what_it_owes(tmp_path: Path) -> None:
    refused: list[object] = []

    async def away_at_first(call: object) -> Response:
        if len(refused) < 5:
            refused.append(call)
            return Response("loading", status_code=503)
        return await yes_to_ink(call)

    with judge_endpoint() as endpoint:
        endpoint.acts(away_at_first)
        config = asking(endpoint, patience=0.2)
        with judge_of_stage(RunDirectory(tmp_path), config, tmp_path / "b") as judge:
            found = evaluate(images(config.evaluation), PAIRS, config.evaluation, judge)
        assert len(endpoint.calls) == len(found.rows) + 5
    assert found.summary["missing"] == 0


def test_a_judge_that_stays_away_ends_the_stage_and_keeps_what_it_said(tmp_path: Path) -> None:
    with judge_endpoint() as endpoint:
        endpoint.acts(answers(7))
        config = asking(endpoint, patience=0.05)
        files = [one.file for one in image_requests(PAIRS, config.evaluation)]
        write_images(tmp_path / "b", files, images(config.evaluation))

        def score():
            with judge_of_stage(RunDirectory(tmp_path), config, tmp_path / "b") as judge:
                return score_folder(tmp_path / "b", PAIRS, config.evaluation, judge)

        with pytest.raises(Stopped, match=r"judges\.j cannot be reached, and 25 questions.*503"):
            score()
        assert not (tmp_path / "b" / "summary.json").exists()
        assert len(list((tmp_path / "b" / "answers").glob("??/*.json"))) == 7
        endpoint.acts(yes_to_ink)
        assert score().summary["missing"] == 0
        assert len(endpoint.calls) == len(files) - 7


def test_what_a_judge_said_and_nobody_can_read_is_missing(tmp_path: Path) -> None:
    async def once_unreadable(call: object) -> Response:
        if len(endpoint.calls) == 1:
            return said("Hmm", first_token=[("Hmm", -0.1)])
        return await yes_to_ink(call)

    with judge_endpoint() as endpoint:
        endpoint.acts(once_unreadable)
        config = asking(endpoint, patience=0.05)
        with judge_of_stage(RunDirectory(tmp_path), config, tmp_path / "b") as judge:
            found = evaluate(images(config.evaluation), PAIRS, config.evaluation, judge)
    assert found.summary["missing"] == 1


def test_a_periodic_evaluation_is_scored_when_its_judge_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the trainer it waits; at the end it is the stage's."""
    for name in ("POLL_SECONDS", "JUDGE_AWAY_SECONDS"):
        monkeypatch.setattr(f"atelier.stages.follower.{name}", 0.02)
    run = RunDirectory(tmp_path)
    with judge_endpoint() as endpoint:
        config = asking(endpoint, patience=0.05)
        write_prompts(run.data / "heldout.parquet", PAIRS)
        folder = run.periodic_evaluation("paircomp", 5)
        files = [one.file for one in image_requests(PAIRS[:6], config.evaluation)]
        write_images(folder, files, images(config.evaluation)[: len(files)])
        with closing(JsonLines(run.events)) as events:
            where = {"folder": str(folder.relative_to(run.train)), "prompts": 6}
            events.append({"event": "evaluation_images", "step": 5, **where})
        endpoint.acts(answers(3))
        with (
            judge_of_stage(run, config, run.train) as judge,
            EvaluationFollower(run, config, judge) as follower,
        ):
            wait_until(lambda: len(endpoint.calls) > 3 * len(files))  # it stopped once, at least
            assert not (folder / "summary.json").exists()
            endpoint.acts(yes_to_ink)
            wait_until((folder / "summary.json").exists)
            follower.finish()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
