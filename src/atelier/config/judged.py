"""Which rewards ask which judge, and whether it can answer them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from atelier.config.judge import JudgeConfig
from atelier.config.questions import PROMPT
from atelier.config.rewards import JudgedSection, RewardsConfig

if TYPE_CHECKING:
    from atelier.config.schema import RunConfig


def judge_conflicts(
    rewards: RewardsConfig, judges: Mapping[str, JudgeConfig]
) -> Iterator[tuple[str, str]]:
    """Key and problem of rewards that ask a judge nobody declares, or that cannot answer."""
    for path, section in rewards.by_path().items():
        if not isinstance(section, JudgedSection):
            continue
        judge = judges.get(section.judge)
        if judge is None:
            known = ", ".join(judges) or "none"
            yield f"{path}.judge", f"{section.judge!r} is not one of judges (declared: {known})"
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


def judges_asked_here(config: RunConfig, rewards: bool = True) -> list[str]:
    """Names of the judges that the run itself asks, in the order of `judges`: a remote reward's is
    its service's own business.

    Args:
        rewards: whether those of rewards count, or the suite's alone.
    """
    asked = {config.evaluation.judge}
    if rewards:
        asked |= {
            one.judge
            for one in config.rewards.sections().values()
            if isinstance(one, JudgedSection) and one.placement != "remote"
        }
    return [name for name in config.judges if name in asked]


def _or(path: str) -> str:
    return f", or {path}.ask to each" if path == "rewards.mmmg" else ""
