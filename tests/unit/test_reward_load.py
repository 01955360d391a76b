"""More clients than a reward service takes at once: the queue stays short, and nothing is lost."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from atelier.rewards.service.app import Limits
from atelier.rewards.service.gate import Bounds
from atelier.rewards.service.pictures import to_items
from atelier.rewards.service.protocol import QUEUE_HEADER
from tests.support.reward_services import NAME, Scripted, batch_of, client, service

CLIENTS, QUEUE = 64, 8
LIMITS = Limits(Bounds(queue=QUEUE))
BATCHES = [batch_of([n + 1, n + 90], side=12) for n in range(CLIENTS)]
RIGHT = [list(Scripted().score(batch).values) for batch in BATCHES]


class Slow(Scripted):
    """As many batches as workers at once, each 20 ms."""

    def score(self, batch):
        time.sleep(0.02)
        return super().score(batch)


def test_64_clients_at_once_are_scored_or_told_to_come_back():
    start = threading.Barrier(CLIENTS)

    def ask(index):
        body = {"items": [item.model_dump() for item in to_items(BATCHES[index])]}
        with httpx.Client(trust_env=False, timeout=30) as asking:
            start.wait(20)
            return asking.post(f"{url}/score", json=body)

    with service(Slow(), workers=2, limits=LIMITS) as url, ThreadPoolExecutor(CLIENTS) as pool:
        answers = list(pool.map(ask, range(CLIENTS)))
        page = httpx.get(f"{url}/metrics", trust_env=False).text
    shed = [answer for answer in answers if answer.status_code == 503]
    assert 0 < len(shed) <= CLIENTS - QUEUE
    for answer in shed:
        assert answer.json()["error"]["type"] == "queue_full"
        assert answer.headers["Retry-After"] == "1"
    for answer, right in zip(answers, RIGHT, strict=True):
        assert int(answer.headers[QUEUE_HEADER]) <= QUEUE
        if answer.status_code != 503:
            results = answer.json()["rewards"][NAME]["results"]
            assert [one["score"] for one in results] == right
    assert re.search(rf"requests_shed_total {len(shed)}\.0$", page, re.MULTILINE)
    assert "atelier_reward_queue_length 0.0" in page


def test_64_clients_that_come_back_all_have_their_scores():
    with (
        service(Slow(), workers=2, limits=LIMITS) as url,
        client(url, deadline=60.0, timeout=30.0, concurrency=CLIENTS) as scorer,
        ThreadPoolExecutor(CLIENTS) as pool,
    ):
        found = list(pool.map(scorer.score, BATCHES))
        page = httpx.get(f"{url}/metrics", trust_env=False).text
    assert "requests_shed_total 0.0" not in page
    assert [list(scores.values) for scores in found] == RIGHT
