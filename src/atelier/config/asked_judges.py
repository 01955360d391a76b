"""Which judges a run itself asks. A remote reward's judge is its service's own business, which has
a configuration, a token and a budget of its own."""

from __future__ import annotations

from collections.abc import Iterator

from atelier.config.schema import RunConfig
from atelier.config.sections.rewards import JudgedSection


def judged_here(config: RunConfig) -> Iterator[tuple[str, JudgedSection]]:
    """Dotted key and section of every reward for which this run asks a judge."""
    for path, section in config.rewards.by_path().items():
        if isinstance(section, JudgedSection) and section.placement != "remote":
            yield path, section


def judges_asked_here(config: RunConfig, rewards: bool = True) -> list[str]:
    """Names of the judges that the run itself asks, in the order of `judges`.

    Args:
        rewards: whether those of rewards count, or the suite's alone.
    """
    asked = {config.evaluation.judge}
    if rewards:
        asked |= {section.judge for _, section in judged_here(config)}
    return [name for name in config.judges if name in asked]
