"""What the stages do for a suite: its judge made reachable, its step zero cut from the baseline."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

from atelier.config.resolve import resolve
from atelier.data.prompts import write_prompts
from atelier.errors import ConfigError
from atelier.evaluation.evaluate import evaluate, score_folder
from atelier.evaluation.files import read_evaluation, write_images
from atelier.evaluation.requests import image_requests
from atelier.judge.usage import NAME, read_usage
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE
from atelier.stages.follower import EvaluationFollower, write_step_zero
from atelier.stages.suite_judges import judge_beside, judge_of_stage
from atelier.tracking.events import JsonLines
from atelier.tracking.run_directory import RunDirectory, read_json_object
from tests.support.judge_endpoint import judge_endpoint, said
from tests.unit.test_evaluation_suites import drawn, pairs

PAIRS = pairs(8, "shapes")
SETTINGS = (
    "data.scene_kind=shapes",
    "data.scene_pairs=1.0",
    "rewards.ocr=null",
    "rewards.jpeg_compressibility.weight=1.0",
    "evaluation.suite=paircomp",
    "evaluation.bootstrap_samples=100",
    "evaluation.prompts=16",
    "evaluation.periodic_prompts=6",
)
BLANK_BYTES = 400  # a blank picture is a shorter PNG


def configured(*overrides):
    return resolve("tiny/base", [*SETTINGS, *overrides])


def images(config):
    """Every second image is empty."""
    found = drawn(PAIRS, config)
    found[::2] = 255
    return found


async def yes_to_ink(call):
    """P(yes) is 0.9 where the picture shows something, else 0.1."""
    uri = call.body["messages"][-1]["content"][0]["image_url"]["url"]
    yes, no = (-0.105, -2.303) if len(uri) > BLANK_BYTES else (-2.303, -0.105)
    return said("Yes", first_token=[("Yes", yes), ("No", no)])


def judged(*settings):
    return configured(
        f"judges.j={{model: m, {', '.join(settings)}}}", "evaluation.paircomp.judge=j"
    )


def test_a_managed_judge_is_asked_with_its_token(tmp_path):
    with judge_endpoint() as endpoint:
        endpoint.acts(yes_to_ink)
        config = judged("placement: managed")
        servers = SimpleNamespace(
            urls={"judges.j": [endpoint.url.removesuffix("/v1")]},
            environment={MANAGED_TOKEN_VARIABLE: "secret"},
        )
        with judge_beside(config, servers, tmp_path) as judge:
            found = evaluate(images(config.evaluation), PAIRS, config.evaluation, judge)
        assert {call.headers["authorization"] for call in endpoint.calls} == {"Bearer secret"}
    assert MANAGED_TOKEN_VARIABLE not in os.environ
    assert found.mean("judge_arithmetic") == pytest.approx(0.5, abs=1e-3)
    assert found.mean("judge_geometric") == pytest.approx(0.3, abs=1e-3)


def test_a_managed_judge_that_nobody_started_is_refused(tmp_path):
    nothing = SimpleNamespace(urls={}, environment={})
    with (
        pytest.raises(ConfigError, match=r"judges\.j\.placement"),
        judge_beside(judged("placement: managed"), nothing, tmp_path),
    ):
        pass


def test_a_stage_without_servers_asks_a_judge_at_its_address(tmp_path):
    with judge_endpoint() as endpoint:
        endpoint.acts(yes_to_ink)
        config = judged("placement: remote", f"urls: [{endpoint.url}]")
        with judge_of_stage(RunDirectory(tmp_path), config, tmp_path / "baseline") as judge:
            found = evaluate(images(config.evaluation), PAIRS, config.evaluation, judge)
    assert found.summary["judge"] == "j"
    assert not found.summary["judge_is_reward"]
    assert [one.name for one in (tmp_path / "baseline").iterdir()] == [NAME], "no server's files"
    (counted,) = read_usage([tmp_path / "baseline" / NAME]).values()
    assert counted.questions == counted.calls == len(endpoint.calls)


def test_a_judge_keeps_its_answers_until_all_is_scored(tmp_path):
    """In the folder of the stage, or in its own, which stays."""
    own = tmp_path / "own"
    with judge_endpoint() as endpoint:
        endpoint.acts(yes_to_ink)
        address = ("placement: remote", f"urls: [{endpoint.url}]")
        for config in (judged(*address), judged(*address, f"cache: {{folder: {own}}}")):
            shown = images(config.evaluation)
            calls = []
            for is_whole in (False, True):
                with (
                    suppress(KeyboardInterrupt),  # as a stage that is ended
                    judge_of_stage(RunDirectory(tmp_path), config, tmp_path / "b") as judge,
                ):
                    evaluate(shown, PAIRS, config.evaluation, judge)
                    if not is_whole:
                        raise KeyboardInterrupt
                calls.append(len(endpoint.calls))
            assert calls[0] == calls[1] > 0
            assert [one.name for one in (tmp_path / "b").iterdir()] == [NAME]
            endpoint.acts(yes_to_ink)
    assert list(own.glob("??/*.json"))


SERVED = ("policy.family=qwen", "algorithm.kl=k3", "rollout.completion.backend=vllm")


@pytest.mark.parametrize("overrides", [(), SERVED])
def test_a_suite_without_a_judge_has_none(tmp_path, overrides):
    """Nor does evaluating start what draws the completions that are trained on."""
    with judge_of_stage(RunDirectory(tmp_path), configured(*overrides), tmp_path) as judge:
        assert judge is None
    assert list(tmp_path.iterdir()) == []


def test_step_zero_is_the_beginning_of_the_baseline_and_later_steps_are_scored(tmp_path, caplog):
    caplog.set_level("INFO", "atelier")
    run, config = RunDirectory(tmp_path), configured()
    write_prompts(run.data / "heldout.parquet", PAIRS)
    requests = image_requests(PAIRS, config.evaluation)
    write_images(run.baseline, [one.file for one in requests], images(config.evaluation))
    score_folder(run.baseline, PAIRS, config.evaluation)
    write_step_zero(run, config)
    first = read_evaluation(run.periodic_evaluation("paircomp", 0))
    assert first == evaluate(images(config.evaluation)[:12], PAIRS[:6], config.evaluation)
    assert first.mean("gold_arithmetic") == 0.5

    folder = run.periodic_evaluation("paircomp", 5)
    files = [one.file for one in requests[:12]]
    write_images(folder, files, drawn(PAIRS, config.evaluation)[:12])
    with EvaluationFollower(run, config) as follower:
        with closing(JsonLines(run.events)) as events:
            where = {"folder": str(folder.relative_to(run.train)), "prompts": 6}
            events.append({"event": "evaluation_images", "step": 5, **where})
        follower.finish()
    assert read_json_object(folder / "summary.json")["metrics"]["gold_arithmetic"]["mean"] == 1
    assert f"held-out at step 5 (first 6 of {len(PAIRS)} prompts): " in caplog.text
    assert (folder / "paircomp.json").is_file()
    assert (folder / "grid.png").is_file()


def test_step_zero_has_what_was_written_before_each_image(tmp_path):
    """Whole, as the folders of later steps have it: the page says that it is there."""
    run, config = RunDirectory(tmp_path), configured()
    write_prompts(run.data / "heldout.parquet", PAIRS)
    files = [one.file for one in image_requests(PAIRS, config.evaluation)]
    words = [f"a plan\nfor {file} " + "and more " * 2000 for file in files]
    write_images(run.baseline, files, images(config.evaluation), words)
    score_folder(run.baseline, PAIRS, config.evaluation)
    write_step_zero(run, config)
    folder = run.periodic_evaluation("paircomp", 0)
    kept = {path.name: path.read_text() for path in (folder / "images").glob("*.txt")}
    shown = {row["image"] for row in read_evaluation(folder).rows}
    assert len(shown) == 12
    assert kept == {
        Path(file).with_suffix(".txt").name: text
        for file, text in zip(files, words, strict=True)
        if file in shown
    }
