"""Which rewards ask which judge, and whether it can answer them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.questions import PROMPT
from atelier.config.sections.rewards import JudgedSection, RewardsConfig


def undeclared(name: str, judges: Iterable[str]) -> str:
    """That a judge is not among those declared, and how one is."""
    known = ", ".join(judges)
    if known:
        return f"{name!r} is not one of judges (declared: {known})"
    return (
        f"{name!r} is not one of judges, and none is declared: add a section judges.{name} that "
        "says what answers, such as {model: assets/tiny-judge, placement: in_process} "
        "(docs/judge.md)"
    )


def judge_conflicts(
    rewards: RewardsConfig, judges: Mapping[str, JudgeConfig]
) -> Iterator[tuple[str, str]]:
    """Key and problem of rewards that ask a judge nobody declares, or that cannot answer."""
    for path, section in rewards.by_path().items():
        if not isinstance(section, JudgedSection):
            continue
        judge = judges.get(section.judge)
        if judge is None:
            yield f"{path}.judge", undeclared(section.judge, judges)
        elif judge.placement == "in_process" and section.asked_of_an_image(1).in_words:
            yield (
                f"{path}.judge",
                f"{section.judge} is in_process and answers yes or no only; this reward needs "
                f"words: set judges.{section.judge}.placement to managed or remote{_or(path)}",
            )


def judge_warnings(rewards: RewardsConfig) -> Iterator[tuple[str, str]]:
    """Key and warning of questions that say less than they seem to."""
    asked = rewards.yes_no
    if asked is not None and not any(PROMPT in text for text in asked.questions.values()):
        yield (
            "rewards.yes_no.questions",
            f"none has {PROMPT}, so every image is asked the same and its prompt does not matter; "
            "write it where a prompt belongs, unless that is meant",
        )


def _or(path: str) -> str:
    return f", or {path}.ask to each" if path == "rewards.mmmg" else ""
