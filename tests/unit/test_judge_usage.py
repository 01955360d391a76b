"""What judges are asked is counted, whatever happens to processes and disks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.servers import ServerConfig
from atelier.judge import NumberForm, Question
from atelier.judge.ledger import read_spent
from atelier.judge.usage import NAME, JudgeUsage, UsageLog, read_usage
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.service.served import build
from atelier.rewards.service.settings import ServiceSettings
from atelier.stages.servers.specs import Place, reward_spec
from tests.support.forks import in_a_fork
from tests.support.judge_endpoint import error, judge_endpoint, said

KEY = "judges.j"
FORM = NumberForm("Score", 1, 5)


async def answer(call):
    """A price of 0.002, and no answer to what is too hard."""
    if call.prompt == "hard":
        return error(400)
    return said("Score: 3", usage=(200, 20, 50))


def config(url: str, folder: Path) -> JudgeConfig:
    return JudgeConfig.model_validate(
        {
            "placement": "remote",
            "urls": [url],
            "model": "m",
            "prices": {"input": 5.0, "output": 50.0, "cached": 5.0},
            "ledger": str(folder / "ledger.jsonl"),
            "cache": {"folder": str(folder / "answers")},
        }
    )


def judge(url: str, folder: Path) -> SharedJudge:
    return SharedJudge(config(url, folder), KEY, usage=folder / NAME)


def sums(folder: Path) -> JudgeUsage:
    return read_usage([folder / NAME])[KEY]


def lines(folder: Path) -> int:
    return len((folder / NAME).read_text().splitlines())


def test_an_endpoint_is_counted_with_its_calls_and_what_the_cache_saved(tmp_path: Path) -> None:
    questions = [Question(text, FORM) for text in ("a", "b", "hard")]
    paid = {"calls": 2, "input": 400, "output": 40, "cached": 100}
    with judge_endpoint() as endpoint:
        endpoint.acts(answer)
        first = judge(endpoint.url, tmp_path)
        first.ask(questions)
        first.close()
        known = sums(tmp_path)
        assert known == JudgeUsage(questions=3, missing=1, money=known.money, **paid)
        assert known.money == pytest.approx(0.004)
        second = judge(endpoint.url, tmp_path)  # as of a run that is resumed
        second.ask(questions)
        second.close()
    both = sums(tmp_path)
    assert both == JudgeUsage(questions=6, missing=2, from_cache=2, money=both.money, **paid)
    assert both.money == pytest.approx(0.004)
    assert read_spent(tmp_path / "ledger.jsonl").calls == 2


def test_a_ledger_of_several_runs_counts_for_each_what_is_its_own(tmp_path: Path) -> None:
    with judge_endpoint() as endpoint:
        endpoint.acts(answer)
        for text in ("a", "b"):
            one = judge(endpoint.url, tmp_path)
            one._usage = UsageLog(tmp_path / text / NAME, KEY)
            one.ask([Question(text, FORM)])
            one.close()
    assert [sums(tmp_path / text).calls for text in ("a", "b")] == [1, 1]
    assert read_spent(tmp_path / "ledger.jsonl").calls == 2


def test_a_service_of_a_run_counts_beside_its_own_files(tmp_path: Path) -> None:
    place = Place("rewards.yes_no-0", tmp_path / "services/rewards-yes_no-0", tmp_path, None)
    with judge_endpoint() as endpoint:
        endpoint.acts(answer)
        settings = ServiceSettings.model_validate(
            {
                "rewards": {"unified_reward": {"judge": "j"}},
                "judges": {"j": config(endpoint.url, tmp_path)},
            }
        )
        command = list(reward_spec(place, lambda: settings, ServerConfig(), 60.0).command(8400))
        usage = Path(command[command.index("--judge-usage") + 1])
        assert usage == tmp_path / "services" / NAME
        (served,) = build(settings, usage).values()
        served.scorer.score(served.scorer.golden()[0])
        served.close()
    assert read_usage([usage])[KEY].questions > 0
    assert read_usage([usage])[KEY].calls == len(endpoint.calls)


def test_a_damaged_ledger_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "ledger.jsonl").write_text('{"id"\n')
    assert read_spent(tmp_path / "ledger.jsonl").calls == 0
    assert "ledger.jsonl: a damaged line" in caplog.text


def test_a_ledger_is_read_without_making_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_spent(tmp_path / "none.jsonl")
    assert list(tmp_path.iterdir()) == []


def test_lines_are_few_and_a_killed_process_leaves_those_that_were_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = UsageLog(tmp_path / NAME, KEY)
    for _ in range(5):
        log.add(JudgeUsage(questions=1))
    assert sums(tmp_path).questions == 1, "the first at once, the others later"
    monkeypatch.setattr("atelier.judge.usage.time.monotonic", lambda: 1e12)
    log.add(JudgeUsage(questions=1))
    assert sums(tmp_path).questions == 6
    assert lines(tmp_path) == 2
    log.add(JudgeUsage(missing=2))
    log.close()
    log.add(JudgeUsage(missing=1))  # of a question that was under way
    log.close()
    assert sums(tmp_path) == JudgeUsage(questions=6, missing=3)
    assert lines(tmp_path) == 4


def test_several_processes_add_to_one_file(tmp_path: Path) -> None:
    log = UsageLog(tmp_path / NAME, KEY)

    def other() -> None:
        child = UsageLog(tmp_path / NAME, KEY)
        child.add(JudgeUsage(questions=2, money=0.25))
        child.close()

    log.add(JudgeUsage(questions=1))
    in_a_fork(other)
    in_a_fork(other)
    UsageLog(tmp_path / NAME, "judges.k").add(JudgeUsage(questions=7))
    log.add(JudgeUsage(questions=1))
    log.close()
    found = read_usage([tmp_path / NAME, tmp_path / "none.jsonl", tmp_path / NAME])
    assert found == {
        KEY: JudgeUsage(questions=12, money=1.0),
        "judges.k": JudgeUsage(questions=14),
    }


def test_a_disk_that_cannot_be_written_costs_a_warning_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "stage").write_text("a file where the folder would be")
    log = UsageLog(tmp_path / "stage" / NAME, KEY)
    for _ in range(3):
        log.add(JudgeUsage(questions=1))
        log._due = 0.0
    assert len(caplog.records) == 1
    assert "not counted" in caplog.text
    (tmp_path / "stage").unlink()
    log.close()
    assert sums(tmp_path / "stage").questions == 3


def test_half_a_line_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    line = json.dumps({"judge": KEY, "usage": {"questions": 2}})
    (tmp_path / NAME).write_text(f"{line}\n{line[:20]}\n\n{line}\n")
    assert sums(tmp_path).questions == 4
    assert "damaged line" in caplog.text
