"""What is said while a server does not answer."""

import re
import subprocess
import sys

from atelier.config.sections.judge import JudgeConfig
from atelier.judge import JudgeClient, NumberForm, Question
from atelier.outage import Outage
from tests.support.reward_services import BATCH, NAME, client


def said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "atelier.outage"]


def test_an_outage_is_warned_of_now_and_then_with_its_times_and_a_count(monkeypatch, caplog):
    now = [100.0]
    outage = Outage("judges.far")
    with monkeypatch.context() as clock:
        clock.setattr("atelier.outage.time.monotonic", lambda: now[0])
        for seconds in (0.0, 1.0, 50.0, 9.5, 1.0, 61.0):
            now[0] += seconds
            outage.failed("nobody there", now[0] + 5)
    clock_time = r"\d\d:\d\d:\d\d"
    rest = (
        f"; without an answer since ({clock_time}), asked again until {clock_time} at the latest: "
        r"is it started, and is that its address\?"
    )
    first, second, third = said(caplog)
    since = {
        re.fullmatch(f"judges.far: nobody there{count}{rest}", line)[1]
        for count, line in (
            ("", first),
            (r" \(2 more like it since\)", second),
            (r" \(1 more like it since\)", third),
        )
    }
    assert len(since) == 1


def test_an_answer_ends_an_outage(monkeypatch, caplog):
    monkeypatch.setattr("atelier.outage.SAY_EVERY_SECONDS", 0.0)
    outage = Outage("rewards.ocr")
    outage.failed("nobody there", 0.0)
    begun = outage._since
    outage.failed("nobody there", 0.0)
    assert outage._since is begun
    outage.answered()
    outage.failed("nobody there", 0.0)
    assert outage._since > begun
    assert len(said(caplog)) == 3


def test_a_judge_that_is_not_there_is_said_once_and_until_when(free_tcp_port, caplog, monkeypatch):
    monkeypatch.setattr("atelier.judge.client._FIRST_PAUSE", 0.02)
    config = JudgeConfig(
        placement="remote", urls=[f"http://127.0.0.1:{free_tcp_port}/v1"], model="m", retries=3
    )
    with JudgeClient(config, key="judges.far") as judge:
        answers = judge.ask([Question(f"number {n}", NumberForm("mark", 0, 10)) for n in range(8)])
    assert all(one.retryable for one in answers)
    (line,) = said(caplog)
    assert line.startswith(
        f"judges.far: http://127.0.0.1:{free_tcp_port}/v1/chat/completions: no conn"
    )
    assert "asked again until" in line


def test_a_reward_that_is_not_there_is_said_once_and_until_when(free_tcp_port, caplog):
    with client(f"http://127.0.0.1:{free_tcp_port}", deadline=2.0) as scorer:
        scorer.score(BATCH)
    (line,) = said(caplog)
    assert line.startswith(
        f"rewards.{NAME}: http://127.0.0.1:{free_tcp_port}: ClientConnectorError"
    )


def test_of_several_ranks_one_speaks():
    """All ask the same servers; which one it is: tests/unit/test_sides.py."""
    first = "from atelier.outage import Outage, leave_to_another_rank"
    last = "Outage('judges.far').failed('nobody there', 0.0)"

    def errors(*between):
        command = [sys.executable, "-c", "; ".join((first, *between, last))]
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr

    assert "judges.far: nobody there" in errors()
    assert "judges.far" not in errors("leave_to_another_rank()")
