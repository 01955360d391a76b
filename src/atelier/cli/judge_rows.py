"""What a plan says of judges: how often they are asked, and what that may cost."""

from __future__ import annotations

from collections.abc import Iterable

from atelier.config.judge_work import Cost, JudgeWork
from atelier.config.plan import Plan

Row = tuple[str, str, str]
"""Name, number and remark."""


def judge_rows(plan: Plan) -> list[Row]:
    """Calls for rewards and for evaluations, each with who asks whom, and money; none of those
    without a judge."""
    scoring = [one for one in plan.judged if not one.evaluates]
    evaluating = [one for one in plan.judged if one.evaluates]
    rows: list[Row] = []
    if scoring:
        remark = "for scores, without repairs and cache"
        rows.append(("judge calls", f"{plan.judge_calls:,}", remark))
        rows += _askers(scoring)
    if evaluating:
        remark = "of the images evaluated, likewise"
        rows.append(("judge calls, evaluation", f"{plan.evaluation_judge_calls:,}", remark))
        rows += _askers(evaluating)
    return [*rows, *(_money(judge, cost) for judge, cost in plan.judge_costs)]


def _askers(works: Iterable[JudgeWork]) -> list[Row]:
    return [
        (f"  {one.asker}", f"{one.calls:,}", f"judges.{one.judge}, {_questions(one)}")
        for one in works
    ]


def _questions(work: JudgeWork) -> str:
    about = "" if work.asked.is_exact else "about "
    plural = "" if work.asked.questions == 1 else "s"
    calls = round(work.calls / work.questions) if work.questions else 1
    times = "" if calls == 1 else f", {calls} calls each"
    return f"{about}{work.asked.questions:g} question{plural} an image{times}"


def _money(judge: str, cost: Cost) -> Row:
    name = f"money, {judge}"
    if cost.money is None:
        return (name, "unknown", f"what a token costs is not set (judges.{judge}.prices)")
    remark = (
        f"in the currency of judges.{judge}.prices, with {cost.input:,.0f} tokens in and "
        f"{cost.output:,.0f} out a call, which is assumed"
    )
    if cost.limit is not None and cost.upper > cost.money:
        remark += f", to the {cost.limit:,} that an answer may take"
        return (name, f"{cost.money:,.2f} to {cost.upper:,.2f}", remark)
    if cost.thinks and cost.limit is None:
        remark += (
            "; it thinks first, which takes many times as many: bound them with "
            f"judges.{judge}.parameters.max_completion_tokens"
        )
        return (name, f"{cost.money:,.2f} or more", remark)
    return (name, f"~{cost.money:,.2f}", remark)
