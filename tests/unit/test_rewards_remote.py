"""The client of reward services: whatever a service does, scores are right or missing."""

import itertools
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atelier.config.digest import scorer_digest
from atelier.config.sections.rewards import JpegConfig, OcrRewardConfig, RewardsConfig
from atelier.errors import ConfigError, Stopped
from atelier.rewards import Missing, Reward, RewardSet, build
from atelier.rewards.service.app import Limits
from atelier.rewards.service.gate import Bounds
from tests.support.patience import PATIENCE, at_once
from tests.support.reward_services import (
    BATCH,
    DIGEST,
    NAME,
    RIGHT,
    Scripted,
    batch_of,
    client,
    faulty,
    reasons,
    service,
    wait_until,
)
from tests.support.wire_faults import FAULTS, status


@pytest.fixture(scope="module")
def url():
    with service(workers=4) as found:
        yield found


@pytest.fixture(scope="module")
def outcomes(url):
    """Fault -> scores, requests, whether it ended at once: of one that passes, and of one that
    stays. Side by side, because most of the time is waiting."""

    def outcome(fault, lasts, deadline):
        with (
            faulty(url, lambda n: fault if n <= lasts else None) as (bad, asked),
            client(bad, deadline=deadline, timeout=3.0) as scorer,
        ):
            begun = time.monotonic()
            return scorer.score(BATCH), len(asked), time.monotonic() - begun < PATIENCE

    with ThreadPoolExecutor(12) as pool:
        passing = {name: pool.submit(outcome, one, 2, 60.0) for name, one in FAULTS.items()}
        staying = {name: pool.submit(outcome, one, 999, 4.0) for name, one in FAULTS.items()}
    return {name: (passing[name].result(), staying[name].result()) for name in FAULTS}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_passes_leaves_no_trace(outcomes, fault):
    scores, asked, _ = outcomes[fault][0]
    assert list(scores.values) == RIGHT
    assert asked >= 3


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_that_stays_is_missing_before_the_deadline(outcomes, fault):
    scores, asked, in_time = outcomes[fault][1]
    if fault == "retryable":
        assert isinstance(scores.values[1], Missing)
        for score, right in zip(scores.values, RIGHT, strict=True):
            assert isinstance(score, Missing) or score == right
    else:
        assert len(set(reasons(scores))) == 1
        assert reasons(scores)[0]
    assert asked >= 1
    assert in_time


@pytest.mark.parametrize("code", [400, 413, 422, 302])
def test_what_the_service_refuses_for_good_is_not_asked_again(url, code):
    with (
        faulty(url, lambda n: status(code)) as (bad, asked),
        client(bad, deadline=20.0) as scorer,
    ):
        assert str(code) in reasons(scorer.score(BATCH))[0]
    assert len(asked) == 1


def test_a_missing_target_is_not_asked_again():
    scripted = Scripted(lambda batch: [Missing("no target")] * len(batch))
    with service(scripted) as url, client(url, deadline=20.0) as scorer:
        assert reasons(scorer.score(BATCH)) == ["no_score: no target"] * 4
    assert len(scripted.batches) == 1


def test_a_score_that_is_there_stays_while_the_rest_is_asked_again():
    """A scorer that fails on another image each time: in the end all are there, none twice."""
    calls = iter(range(10))

    def flaky(batch):
        call = next(calls)
        return [
            Missing("busy", retryable=True) if call < 2 and i % 2 == call else float(10 * call + i)
            for i in range(len(batch))
        ]

    with service(Scripted(flaky)) as url, client(url) as scorer:
        assert list(scorer.score(BATCH).values) == [10.0, 1.0, 12.0, 3.0]


def test_retry_after_is_kept(url):
    with (
        faulty(url, lambda n: status(503, Retry_After="1") if n == 1 else None) as (bad, asked),
        client(bad) as scorer,
    ):
        scorer.score(BATCH)
    assert 1.0 <= asked[1] - asked[0] < 2.0


def test_pauses_grow_and_differ(url):
    with (
        faulty(url, lambda n: status(500)) as (bad, asked),
        client(bad, deadline=4.0) as scorer,
    ):
        scorer.score(BATCH)
    pauses = [after - before for before, after in itertools.pairwise(asked)]
    assert 3 < len(asked) < 30  # without growth it would be some 40
    assert len({round(pause, 3) for pause in pauses}) > 1


def test_scores_come_back_in_order_whatever_their_latency(url):
    """Eight batches at once, the earlier ones slower."""
    batches = [batch_of([i, 200 - i], side=24) for i in range(1, 9)]

    def slow(number):
        def fault(handler, body):
            time.sleep(0.4 / number)
            handler._pass_on(body)

        return fault

    with faulty(url, slow) as (bad, _), client(bad) as scorer:
        rewards = RewardSet([Reward(scorer, workers=4)], 20.0)
        table = rewards.collect([rewards.submit(batch) for batch in batches])
        rewards.close()
    expected = [value for batch in batches for value in Scripted().score(batch).values]
    assert table.values[NAME].tolist() == pytest.approx(expected, rel=1e-6)


# Several services -------------------------------------------------------------------------------


def test_batches_go_where_the_fewest_are():
    """One service is slow: the other one does most of the work, and none of it is lost."""
    slow, fast = (
        Scripted(lambda b: time.sleep(0.5) or [1.0] * len(b)),
        Scripted(lambda b: [1.0] * len(b)),
    )
    with (
        service(slow, workers=2) as first,
        service(fast, workers=2) as second,
        client(first, second) as scorer,
        ThreadPoolExecutor(4) as pool,
    ):
        list(pool.map(lambda _: score_some(scorer, 5), range(4)))
    assert len(slow.batches) + len(fast.batches) == 20
    assert 1 <= len(slow.batches) < len(fast.batches)


def test_a_service_that_is_busy_with_another_client_is_asked_less(monkeypatch):
    """One batch at a time, so that this client's own requests tell nothing."""
    monkeypatch.setattr("atelier.rewards.client.endpoints._REPORT_SECONDS", 0.5)

    def slow(batch):
        time.sleep(0.02)
        return [1.0] * len(batch)

    first, second = Scripted(slow), Scripted(slow)
    ours = batch_of([1], side=8)
    with (
        service(first, limits=Limits(Bounds(queue=64))) as busy,
        service(second) as idle,
        client(busy) as other,
        client(busy, idle) as scorer,
        ThreadPoolExecutor(6) as pool,
    ):
        others = [pool.submit(score_some, other, 15) for _ in range(6)]
        wait_until(lambda: len(first.batches) > 3)
        counts = []
        while not all(one.done() for one in others):
            scorer.score(ours)
            counts.append(mine(second))
        told = mine(first)
        for _ in range(30):  # nobody else is there any more
            time.sleep(0.02)
            scorer.score(ours)
    assert told <= 1 + len(counts) // 4, "asked again only when what it said was old"
    assert counts[-1] > len(counts) / 2
    assert mine(first) > told, "and asked as ever once it is idle"


def mine(scripted):
    """How many of the batches were of one image."""
    return sum(len(batch) == 1 for batch in scripted.batches)


def score_some(scorer, count):
    for _ in range(count):
        assert list(scorer.score(BATCH).values) == [1.0] * 4


def test_a_dead_service_costs_no_score_and_is_asked_again_when_it_is_back(free_port):
    scripted = Scripted()
    with service() as living, client(f"http://127.0.0.1:{free_port}", living) as scorer:
        assert list(scorer.score(BATCH).values) == RIGHT
        assert scorer.version == "1"
        with service(scripted, port=free_port):
            counted(scripted)
            deadline = time.monotonic() + PATIENCE
            while not scripted.batches and time.monotonic() < deadline:
                assert list(scorer.score(BATCH).values) == RIGHT
        assert scripted.batches
        assert list(scorer.score(BATCH).values) == RIGHT


def counted(scripted):
    """From now on batches are counted, scored as ever."""
    scripted._given = lambda batch: [Scripted().score(batch).values[i] for i in range(len(batch))]


@pytest.fixture
def free_port():
    import socket

    with socket.create_server(("127.0.0.1", 0)) as found:
        return found.getsockname()[1]


def test_nobody_there_is_missing_with_the_address(free_port):
    with client(f"http://127.0.0.1:{free_port}", deadline=1.0) as scorer:
        assert f":{free_port}: ClientConnectorError: [Errno 111]" in reasons(scorer.score(BATCH))[0]


def test_an_empty_batch_asks_nobody(free_port):
    with client(f"http://127.0.0.1:{free_port}", deadline=1.0) as scorer:
        assert list(scorer.score(batch_of([])).values) == []


# Before training --------------------------------------------------------------------------------


def preflight(*urls, deadline=5.0, token=None):
    with (
        client(*urls, deadline=deadline, token=token) as scorer,
        RewardSet([Reward(scorer)], deadline) as rewards,
    ):
        return rewards.preflight()[NAME]


def test_preflight_scores_the_golden_sample(url):
    assert preflight(url)["version"] == "1"


def test_another_configuration_is_named_with_ours(url):
    other = scorer_digest(NAME, JpegConfig(quality=10))
    with service(digest=other) as wrong:
        with pytest.raises(
            ConfigError, match=f"rewards.{NAME}: {wrong}.*{other[:12]}.*{DIGEST[:12]}"
        ):
            preflight(wrong)
        with pytest.raises(ConfigError, match=other[:12]):
            preflight(url, wrong)


class Newer(Scripted):
    version = "2"


def test_services_that_differ_are_a_config_error(url):
    with service(Newer()) as newer, pytest.raises(ConfigError, match=r"version='2'.*version='1'"):
        preflight(url, newer)


def test_a_wrong_token_is_a_config_error():
    with service(token="right") as url:
        assert preflight(url, token="right")
        with pytest.raises(ConfigError, match="401 unauthorized"):
            preflight(url, token="wrong")


def test_no_service_is_an_outage_and_no_config_error(free_port):
    with pytest.raises(Stopped, match=r"ClientConnectorError.*Resume once"), at_once():
        preflight(f"http://127.0.0.1:{free_port}", deadline=1.0)


# From the configuration -------------------------------------------------------------------------


def test_placement_chooses_the_scorer_and_the_weight_is_the_trainers(url, monkeypatch):
    monkeypatch.setenv("ATELIER_MANAGED_REWARD_TOKEN", "any")
    section = {"placement": "remote", "urls": [url], "weight": 3.0}
    config = RewardsConfig.model_validate({NAME: section, "deadline": 10.0})
    with build(config) as rewards:
        assert rewards.weights == {NAME: 3.0}
        assert rewards.preflight()[NAME]["scores"]
    managed = RewardsConfig.model_validate({NAME: {"placement": "managed"}})
    with build(managed, managed={NAME: [url]}) as rewards:
        assert rewards.preflight()[NAME]["scores"]
    with pytest.raises(ConfigError, match=r"placement.*train stage"):
        build(managed)
    monkeypatch.delenv("ATELIER_MANAGED_REWARD_TOKEN")
    with pytest.raises(ConfigError, match=r"placement.*train stage"):
        build(managed, managed={NAME: [url]})


def test_the_scorers_digest_is_of_what_it_scores_only():
    base = scorer_digest("ocr", OcrRewardConfig())
    for same in ({"weight": 2.0}, {"workers": 4}, {"placement": "managed", "replicas": 2}):
        assert scorer_digest("ocr", OcrRewardConfig.model_validate(same)) == base
    assert scorer_digest("ocr", OcrRewardConfig(detect=False)) != base
    assert scorer_digest("a", JpegConfig()) != scorer_digest("b", JpegConfig())


WITHOUT_MODELS = """
import sys
for name in ("rapidocr", "onnxruntime", "cv2", "torch"):
    sys.modules[name] = None
from atelier.config.sections.rewards import RewardsConfig
from atelier.rewards import build
section = {"placement": "remote", "urls": ["http://127.0.0.1:1"]}
rewards = build(RewardsConfig.model_validate({"ocr": section}))
scorer = rewards.rewards["ocr"].scorer
assert scorer.golden()[1] == [1.0, 0.5, 0.0] and scorer.direction == "higher_is_better"
rewards.close()
"""


def test_a_remote_reward_needs_none_of_its_packages_here():
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT_MODELS], capture_output=True, text=True, env=os.environ
    )
    assert result.returncode == 0, result.stderr
