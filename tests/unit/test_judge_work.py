"""What a plan says judges will be asked, and what that may cost."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from atelier.cli.judge_rows import judge_rows
from atelier.config.plan import Plan, plan
from atelier.config.resolve import resolve
from atelier.errors import ConfigError

HUB = "policy.path=organisation/model"
JUDGE = "judges.j={model: m, placement: remote, urls: ['http://host/v1']}"
SHAPES = ("data.scene_kind=shapes", "rewards={ocr: null, jpeg_compressibility: {weight: 1}}")
EDITS = (
    *("policy.family=qwen", "policy.path=assets/tiny-qwen-image-edit", "policy.resolution=64"),
    *(*SHAPES, "data.scene_task=edit", "rollout.kind=edit", "algorithm.kl=k3"),
    *("rollout.old_log_prob=recompute", "rollout.completion.max_tokens=8"),
    "rollout.environment={condition_side: 64, reference_side: 64}",
)
GRAPHS = (*SHAPES, "data.scene_task=graph")
PAIRS = (*SHAPES, "data.scene_pairs=1")
YES_NO = ("evaluation.suite=yes_no", "evaluation.yes_no={judge: j}")
DEAR = ("judges.j.prices={input: 1.0e+9, output: 1.0e+9}",)


def planned(*overrides: str) -> Plan:
    return plan(resolve("tiny/flow-grpo-fast", [HUB, JUDGE, *overrides], Path(os.devnull)))


@pytest.mark.parametrize(
    ("suite", "data", "section", "questions"),
    [
        ("yes_no", (), "{judge: j}", 1),
        ("paircomp", PAIRS, "{judge: j}", 1),
        ("editing", EDITS, "{judge: j}", 2),
        ("editing", EDITS, "{judge: j, about: facts}", 4),
        ("complex_edit", EDITS, "{judge: j}", 2),
        ("mmmg", GRAPHS, "{judge: j}", 1),
        ("mmmg", GRAPHS, "{judge: j, ask: each}", 10),
        ("unigenbench", (), "{judge: j}", 1),
        ("unigenbench", (), "{judge: j, ask: each}", 3),
    ],
)
def test_every_evaluation_asks_the_suites_judge(
    suite: str, data: tuple[str, ...], section: str, questions: int
) -> None:
    own = (f"evaluation.suite={suite}", f"evaluation.{suite}={section}")
    found = planned(*data, *own)
    assert found.evaluations
    assert found.evaluation_judge_calls == questions * found.evaluation_images
    assert found.judge_calls == 0
    (asked,) = found.judged
    assert (asked.asker, asked.judge) == (f"evaluation.{suite}", "j")
    thrice = planned(*data, *own, "judges.j.measurements=3", "judges.j.choices=2")
    assert thrice.evaluation_judge_calls == 2 * found.evaluation_judge_calls
    unasked = (f"evaluation.{suite}.judge=null",) if suite != "yes_no" else ()
    if unasked:
        assert planned(*data, *own, *unasked).judged == ()


def test_rewards_and_evaluations_are_told_apart() -> None:
    found = planned(
        "rewards.yes_no={judge: j}", "evaluation.suite=yes_no", "evaluation.yes_no.judge=j"
    )
    assert found.judge_calls == found.images
    assert found.evaluation_judge_calls == found.evaluation_images
    rows = {name: (number, remark) for name, number, remark in judge_rows(found)}
    assert rows["judge calls"][0] == rows["  rewards.yes_no"][0] == f"{found.images:,}"
    assert rows["judge calls, evaluation"][0] == f"{found.evaluation_images:,}"
    assert rows["  evaluation.yes_no"][1] == "judges.j, 1 question an image"
    assert rows["money, j"] == ("unknown", "what a token costs is not set (judges.j.prices)")


def test_questions_that_only_the_data_count_are_about_so_many() -> None:
    each = ("evaluation.suite=mmmg", "evaluation.mmmg={judge: j, ask: each}")
    (_, _, remark) = judge_rows(planned(*GRAPHS, *each))[1]
    assert remark == "judges.j, about 10 questions an image"


PRICED = "judges.j.prices={input: 2, output: 8}"
MARKED = (*EDITS, "evaluation.suite=complex_edit", "evaluation.complex_edit.judge=j")


def test_money_is_tokens_that_are_assumed_times_their_price() -> None:
    """Two questions an image, about one and about two pictures: 1500 and 2500 tokens in."""
    found = planned(*MARKED, PRICED)
    ((name, cost),) = found.judge_costs
    assert name == "j"
    assert (cost.input, cost.output) == (2000, 500)
    expected = found.evaluation_judge_calls * (2000 * 2 + 500 * 8) / 1e6
    assert cost.money == pytest.approx(expected)
    assert (cost.most, cost.limit) == (None, None)
    (*_, (_, number, remark)) = judge_rows(found)
    assert number == f"~{expected:,.2f}"
    assert "2,000 tokens in and 500 out a call, which is assumed" in remark


@pytest.mark.parametrize(("limit", "usual"), [(4000, 500), (100, 100)])
def test_the_longest_answers_cost_what_they_may(limit: int, usual: int) -> None:
    found = planned(*MARKED, PRICED, f"judges.j.parameters={{max_completion_tokens: {limit}}}")
    ((_, cost),) = found.judge_costs
    calls = found.evaluation_judge_calls
    assert cost.output == usual
    assert cost.most == pytest.approx(calls * (2000 * 2 + limit * 8) / 1e6)
    (*_, (_, number, remark)) = judge_rows(found)
    assert cost.money is not None
    if limit > usual:
        assert number == f"{cost.money:,.2f} to {cost.most:,.2f}"
        assert "500 out a call, which is assumed, to the 4,000 that an answer may take" in remark
    else:
        assert number == f"~{cost.money:,.2f}"


def test_thinking_without_a_bound_costs_so_much_or_more() -> None:
    found = planned(*MARKED, PRICED, "judges.j.parameters={reasoning_effort: high}")
    (*_, (_, number, remark)) = judge_rows(found)
    assert number == f"{found.judge_costs[0][1].money:,.2f} or more"
    assert "judges.j.parameters.max_completion_tokens" in remark


def test_a_yes_is_one_token_and_choices_are_paid_for_once_in_pictures() -> None:
    asked = ("evaluation.suite=yes_no", "evaluation.yes_no.judge=j", PRICED)
    found = planned(*asked, "judges.j={measurements: 6, choices: 3, image_detail: low}")
    ((_, cost),) = found.judge_costs
    assert found.evaluation_judge_calls == 2 * found.evaluation_images
    assert (cost.input, cost.output) == (500 + 85, 3)


def test_what_a_run_serves_itself_has_a_price_only_where_it_is_given() -> None:
    own = ("judges.j={placement: managed, urls: []}", *MARKED)
    assert planned(*own).judge_costs == ()
    assert len(planned(*own, PRICED).judge_costs) == 1
    assert planned(PRICED).judge_costs == ()  # nobody asks it


def said(found: Plan) -> Iterator[str]:
    return (one for one in found.warnings if one.startswith("judges.j.budget"))


def test_a_budget_that_the_run_would_pass_is_warned_of(tmp_path: Path) -> None:
    kept = (*MARKED, PRICED, f"judges.j.ledger={tmp_path / 'ledger.jsonl'}")
    free = planned(*kept)
    calls, money = free.evaluation_judge_calls, free.judge_costs[0][1].money
    assert money is not None
    assert not [*said(planned(*kept, f"judges.j.budget={{calls: {calls}, money: {money + 1}}}"))]
    few = f"judges.j.budget={{calls: {calls - 1}, exceeded: missing}}"
    (warning,) = said(planned(*kept, few))
    assert warning == (
        f"judges.j.budget.calls: {calls - 1:,}, and this run makes about {calls:,}: the rest would "
        "have no answer"
    )
    (warning,) = said(planned(*kept, "judges.j.budget.money=1"))
    assert warning.startswith(f"judges.j.budget.money: 1, and this run costs about {money:,.2f}")
    assert warning.endswith("it would stop before its end")


def test_a_budget_that_long_answers_may_pass_is_warned_of(tmp_path: Path) -> None:
    long = "judges.j.parameters={reasoning_effort: high, max_completion_tokens: 16384}"
    kept = (*MARKED, PRICED, long, f"judges.j.ledger={tmp_path / 'ledger.jsonl'}")
    cost = planned(*kept).judge_costs[0][1]
    assert cost.money is not None
    assert cost.most is not None
    assert not [*said(planned(*kept, f"judges.j.budget.money={cost.most + 1}"))]
    (warning,) = said(planned(*kept, f"judges.j.budget.money={cost.money + 1}"))
    assert f"this run may pass it: it costs about {cost.money:,.2f}, and" in warning
    assert f"{cost.most:,.2f} with the longest answers" in warning


def test_what_a_remote_reward_asks_is_its_services_business(tmp_path: Path) -> None:
    """That one has a budget of its own, and nothing is taken out of this run's."""
    priced = (PRICED, "judges.j.budget.calls=1", f"judges.j.ledger={tmp_path / 'ledger.jsonl'}")
    here = (*priced, "rewards.yes_no={judge: j}")
    assert [*said(planned(*here))]
    assert asked_of_scenes(*here)
    away = planned(*here, "rewards.yes_no={placement: remote, urls: ['http://host']}")
    assert away.reward_calls == planned(*here).reward_calls
    assert away.judged == away.judge_costs == ()
    assert [one for one in away.warnings if "judges.j" in one] == []


def asked_of_scenes(*overrides: str) -> list[str]:
    return [one for one in planned(*overrides).warnings if one.startswith("data.source: scenes")]


@pytest.mark.parametrize("asked", ["rewards.yes_no={judge: j}", "evaluation.yes_no.judge=j"])
@pytest.mark.parametrize("costs", [PRICED, "judges.j.token_env=JUDGE_KEY"])
def test_a_judge_that_costs_is_not_for_the_embedded_world(
    asked: str, costs: str, tmp_path: Path
) -> None:
    suite = ("evaluation.suite=yes_no",) if asked.startswith("evaluation") else ()
    (warning,) = asked_of_scenes(*suite, asked, costs)
    assert "judges.j, which may cost money, would be asked about coloured shapes" in warning
    assert "data.source and data.path" in warning
    assert asked_of_scenes(*suite, asked) == []
    assert asked_of_scenes(costs) == []  # nobody asks it
    own = tmp_path / "prompts.txt"
    own.write_text("".join(f'a sign that says "word {index}"\n' for index in range(2000)))
    plain = ("data.source=ocr_text", f"data.path={own}")
    assert asked_of_scenes(*suite, asked, costs, *plain) == []


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("limit", ["true", "0", "-1", "1.5", "a lot", "[1]", "1" + "0" * 400])
def test_a_limit_of_tokens_that_is_none_is_refused(name: str, limit: str) -> None:
    with pytest.raises(
        ConfigError, match=rf"judges\.j\.parameters\.{name}: .* no whole number of t"
    ):
        planned(f"judges.j.parameters={{{name}: {limit}}}")


def test_prices_whose_sums_are_no_numbers_are_refused() -> None:
    for key in ("input", "output", "cached"):
        with pytest.raises(ConfigError, match=rf"judges\.j\.prices\.{key}: "):
            planned(f"judges.j.prices={{{key}: 1.0e+308}}")
    (found,) = planned("judges.j.parameters={max_tokens: null}", *YES_NO, *DEAR).judge_costs
    assert found[1].limit is None
    assert found[1].money is not None
    assert found[1].money < 1e30
