"""The judges of a run: for what each was asked, how much, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from atelier.config.schema import RunConfig
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import JudgedSection
from atelier.judge.cache import cache_bytes
from atelier.judge.ledger import read_spent
from atelier.judge.usage import NAME, JudgeUsage, read_usage
from atelier.report.run_data import periodic_evaluations
from atelier.tracking.run_directory import RunDirectory


@dataclass(frozen=True)
class AskedFor:
    """One use of one judge; `usage` is None where nobody counted."""

    judge: str
    use: str
    config: JudgeConfig
    usage: JudgeUsage | None

    @property
    def calls_nobody(self) -> bool:
        """Whether it answers in the process that asks, and so has neither calls nor a price."""
        return self.config.placement == "in_process"

    @property
    def money(self) -> str:
        if self.usage is None or self.config.prices is None:
            return "no prices"
        return f"{self.usage.money:.4f}"


@dataclass(frozen=True)
class _Use:
    name: str
    judges: frozenset[str]
    files: tuple[Path, ...]
    has_begun: bool


def judges_asked(run: RunDirectory, config: RunConfig) -> list[AskedFor]:
    """Every use of every judge that has begun, in the order of the configuration."""
    uses = [(one, read_usage(one.files)) for one in _uses(run, config)]
    return [
        AskedFor(judge, use.name, section, counted.get(f"judges.{judge}"))
        for judge, section in config.judges.items()
        for use, counted in uses
        if judge in use.judges and (use.has_begun or f"judges.{judge}" in counted)
    ]


def judge_stores(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """(what and whose, path, what is in it) of ledgers and caches that are set."""
    for name, judge in config.judges.items():
        if judge.ledger is not None:
            yield f"Ledger of {name}", judge.ledger, _spent(Path(judge.ledger), judge)
        if judge.cache.folder is not None:
            size = cache_bytes(Path(judge.cache.folder)) / 1e6
            text = f"{size:.1f} MB of at most {judge.cache.max_mb:g}"
            yield f"Cache of {name}", judge.cache.folder, text


def _uses(run: RunDirectory, config: RunConfig) -> list[_Use]:
    """What judges are asked for, and where it is counted."""
    sections = config.rewards.sections().values()
    rewards = frozenset(one.judge for one in sections if isinstance(one, JudgedSection))
    suite = frozenset(filter(None, [config.evaluation.judge]))
    periodic = any(one.step for one in periodic_evaluations(run))  # step 0 is the baseline's
    services = run.train / "services"
    evaluated = [(one / "summary.json").exists() for one in (run.baseline, run.evaluate)]
    return [
        _Use("rewards", rewards, (run.train / NAME, services / NAME), run.metrics.exists()),
        _Use("baseline", suite, (run.baseline / NAME,), evaluated[0]),
        _Use("evaluation during training", suite, (run.train / "evaluation" / NAME,), periodic),
        _Use("evaluation", suite, (run.evaluate / NAME,), evaluated[1]),
    ]


def _spent(path: Path, judge: JudgeConfig) -> str:
    """What is spent of its budget, by every run that names the ledger."""
    try:
        spent = read_spent(path)
    except FileNotFoundError:
        return "nothing is spent yet"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    calls = money = ""
    if judge.budget is not None:
        calls = "" if judge.budget.calls is None else f" of {judge.budget.calls:,}"
        money = "" if judge.budget.money is None else f" of {judge.budget.money:g}"
    paid = "" if judge.prices is None else f" and {spent.money:.4f}{money} in money"
    return f"{spent.calls:,}{calls} calls{paid} are spent, by every run that names it"
