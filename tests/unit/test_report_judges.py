"""The report says what judges were asked, and what it cost."""

from __future__ import annotations

import re
from pathlib import Path

from atelier.config.sections.judge import PricesConfig
from atelier.judge.cache import ReplyCache
from atelier.judge.ledger import Ledger, Usage
from atelier.judge.replies import Reply
from atelier.judge.usage import NAME, JudgeUsage, UsageLog
from atelier.report.page import render
from atelier.tracking.run_directory import RunDirectory
from tests.support import fake_run

ASKED = "rewards.yes_no={judge: strict, weight: 0.0, questions: {shows: 'Is it {prompt}?'}}"
ADDRESS = "placement: remote, urls: [http://127.0.0.1:9/v1], model: big"
HERE = "judges.here={placement: in_process, model: assets/tiny-judge}"
SUITE = ("evaluation.suite=yes_no", "evaluation.yes_no.judge=here")


def finished(folder: Path, *overrides: str) -> RunDirectory:
    run = fake_run.open_fake_run(folder / "run", "sqlite:///unused.db", *overrides)
    fake_run.finish(run)
    return run


def count(folder: Path, judge: str, **numbers: float) -> None:
    log = UsageLog(folder / NAME, f"judges.{judge}")
    log.add(JudgeUsage.model_validate(numbers))
    log.close()


def rows(page: str) -> list[list[str]]:
    """The cells of the section's table."""
    section = page.split("<h2>Judges</h2>")[1].split("<h2>")[0]
    found = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in section.split("<tr>")]
    return [row for row in found if row]


def test_a_run_without_judges_has_no_such_section(tmp_path: Path) -> None:
    assert "<h2>Judges" not in render(finished(tmp_path))


def test_each_judge_is_shown_by_what_it_was_asked_for(tmp_path: Path) -> None:
    strict = f"judges.strict={{{ADDRESS}, prices: {{input: 5.0, output: 50.0}}}}"
    run = finished(tmp_path, ASKED, strict, HERE, *SUITE)
    paid = {"calls": 4, "input": 1400, "output": 40, "cached": 100, "money": 0.009}
    count(run.train, "strict", questions=1500, missing=2, from_cache=7, **paid)
    count(run.train / "services", "strict", questions=1)
    count(run.train / "evaluation", "here", questions=6)
    count(run.evaluate, "here", questions=8, missing=1)
    cells = ["1,501", "2", "7", "4", "1,400 (100 cached)", "40", "0.0090"]
    assert rows(render(run)) == [
        ["strict", "big", "rewards", *cells],
        ["here", "assets/tiny-judge", "baseline", "not counted"],
        ["here", "assets/tiny-judge", "evaluation during training", "6", "0", "in this process"],
        ["here", "assets/tiny-judge", "evaluation", "8", "1", "in this process"],
    ]
    assert "Not counted: asked before there was counting" in render(run)


def test_money_without_prices_is_none(tmp_path: Path) -> None:
    run = finished(tmp_path, ASKED, f"judges.strict={{{ADDRESS}}}")
    count(run.train, "strict", questions=3, calls=3, input=30, output=3)
    ((*_, money),) = rows(render(run))
    assert money == "no prices"


def test_uses_that_have_not_begun_are_not_shown(tmp_path: Path) -> None:
    own = (ASKED, f"judges.strict={{{ADDRESS}}}", HERE, *SUITE)
    run = fake_run.open_fake_run(tmp_path / "run", "sqlite:///unused.db", *own)
    assert "<h2>Judges" not in render(run)
    count(run.baseline, "here", questions=1)
    assert [row[:3] for row in rows(render(run))] == [["here", "assets/tiny-judge", "baseline"]]


def test_ledger_and_cache_are_shown_with_what_is_in_them(tmp_path: Path) -> None:
    ledger, answers = tmp_path / "ledger.jsonl", tmp_path / "answers"
    stores = f"ledger: {ledger}, cache: {{folder: {answers}, max_mb: 5}}"
    bounds = "prices: {input: 5.0}, budget: {money: 50.0, calls: 100000}"
    run = finished(tmp_path, ASKED, f"judges.strict={{{ADDRESS}, {stores}, {bounds}}}")
    page = render(run)
    assert f"Ledger of strict: <code>{ledger}</code>, nothing is spent yet." in page
    assert f"Cache of strict: <code>{answers}</code>, 0.0 MB of at most 5." in page
    assert not ledger.exists(), "a report that is read makes none"

    spent = Ledger(ledger, {"big": PricesConfig(input=5.0)})
    spent.settle(spent.reserve("big"), Usage(input=50_000, output=3))
    ReplyCache(answers, 5_000_000).put("a" * 64, Reply("x" * 250_000))
    page = render(run)
    assert "1 of 100,000 calls and 0.2500 of 50 in money are spent, by every run" in page
    assert "0.3 MB of at most 5." in page


def test_a_ledger_without_budget_or_prices_has_its_calls(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    run = finished(tmp_path, ASKED, f"judges.strict={{{ADDRESS}, ledger: {ledger}}}")
    spent = Ledger(ledger, {})
    spent.reserve("big")
    assert "1 calls are spent, by every run that names it." in render(run)
