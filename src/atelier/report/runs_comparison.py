"""Compare finished runs: which configuration is better on what, and by how much.

    comparison = compare_runs([RunDirectory(...), RunDirectory(...)])
    print(comparison.as_text())
    runs_page.write_page(comparison, Path(".atelier/compare/..."))

The figures come from evaluate/scores.jsonl and baseline/scores.jsonl of the runs and from nothing
else; how intervals are made is said in evaluation/contrasts.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from atelier.config.digest import digest
from atelier.errors import ConfigError
from atelier.report.compared_runs import (
    ComparedRun,
    Group,
    group_runs,
    read_compared,
    require_comparable,
    shown,
)
from atelier.report.comparison import units_of
from atelier.report.comparison_warnings import comparison_warnings
from atelier.report.metric_contrasts import (
    MetricContrast,
    contrast,
    metrics_of,
    seeds_are_paired,
    sentence,
)
from atelier.report.text_tables import Row, aligned, markdown, signed
from atelier.tracking.run_directory import RunDirectory


def compare_runs(runs: Sequence[RunDirectory], metric: str | None = None) -> RunsComparison:
    """Group finished runs by configuration, and compare the groups on every held-out metric.

    Args:
        runs: two or more finished runs, evaluated on the same prompts under the same settings.
        metric: what the headline is about; default: the first one the report names.

    Raises:
        ConfigError: fewer than two runs, one run twice, or no such metric.
        DataError: a run is not finished, or two were not evaluated alike (and how they differ).
    """
    different = dict.fromkeys(RunDirectory(run.root.resolve()) for run in runs)
    found = [read_compared(run) for run in different]
    if len(found) < 2:
        raise ConfigError(f"a comparison needs two runs or more, not {len(found)}")
    require_comparable(found)
    names = metrics_of(found)
    if metric is not None and metric not in names:
        raise ConfigError(f"--metric {metric}: these runs have {', '.join(names)}")
    groups = group_runs(found)
    primary = metric or names[0]
    ordered = [primary, *(name for name in names if name != primary)]
    return RunsComparison(groups, [contrast(name, groups) for name in ordered])


@dataclass(frozen=True)
class RunsComparison:
    """Groups of runs and one contrast a metric, the primary metric first."""

    groups: Sequence[Group]
    metrics: Sequence[MetricContrast]

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for group in self.groups for run in group.runs]

    @cached_property
    def start_alike(self) -> bool:
        """Whether every run had the same scores before training: gains then differ as scores do."""
        return all(run.before.rows == self.runs[0].before.rows for run in self.runs)

    @property
    def units(self) -> str:
        """What means are over: prompts or pairs."""
        return units_of(self.runs[0].after.summary)

    @property
    def short_id(self) -> str:
        """The same for the same runs and primary metric."""
        return digest([self.metrics[0].metric, sorted(run.id for run in self.runs)])[:8]

    @property
    def headline(self) -> str:
        return sentence(self.metrics[0], self.groups)

    @property
    def sentences(self) -> list[str]:
        """One a metric, the primary one first."""
        return [sentence(one, self.groups) for one in self.metrics]

    @cached_property
    def warnings(self) -> list[str]:
        return comparison_warnings(self.groups, self.metrics, self.start_alike)

    @property
    def method(self) -> str:
        """How to read the intervals, in one or two sentences."""
        pairs = len(self.metrics[0].pairs)
        several = any(len(group.runs) > 1 for group in self.groups)
        seeds = f"seeds and {self.units}" if several else self.units
        parts = [f"Same prompts and noise everywhere; intervals are for other {seeds}"]
        if seeds_are_paired(self.groups):
            parts.append("runs of one seed are compared with each other")
        if pairs > 1:
            parts.append(f"all {pairs} intervals of a metric hold at once (Bonferroni)")
        return "; ".join(parts) + "."

    def as_text(self) -> str:
        """For a terminal."""
        warnings = [f"warning: {text}" for text in self.warnings]
        blocks = [self.headline, "\n".join(warnings), "\n".join(self.sentences[1:]), self.method]
        blocks[1:1] = [aligned(rows) for _, rows in self.tables()]
        return "\n\n".join(block for block in blocks if block)

    def as_markdown(self) -> str:
        """For a Prefect artifact."""
        blocks = [f"# {self.headline}", *(f"> {text}" for text in self.warnings)]
        for title, rows in self.tables():
            blocks += [f"## {title}", markdown(rows)]
        blocks += ["\n".join(f"- {text}" for text in self.sentences), self.method]
        return "\n\n".join(blocks)

    def tables(self) -> list[tuple[str, list[Row]]]:
        """Title and rows, the first row the header; the same for terminal, Markdown and page."""
        found = [
            ("Configurations", self._group_rows()),
            ("Means, and gains over the baseline", self._mean_rows()),
            ("Differences", self._difference_rows()),
            ("What differs", self._setting_rows()),
        ]
        if not self.start_alike:
            found.insert(3, ("Differences of the gains", self._difference_rows(gains=True)))
        return [(title, rows) for title, rows in found if len(rows) > 1]

    def _group_rows(self) -> list[Row]:
        rows: list[Row] = [("Configuration", "what differs", "of seed", "runs")]
        for group in self.groups:
            seeds = ", ".join(map(str, group.seeds))
            names = ", ".join(map(_called, group.runs))
            rows.append((group.letter, group.summary, seeds, names))
        return rows

    def _mean_rows(self) -> list[Row]:
        """Mean and gain over the baseline, a column a group."""
        letters = [group.letter for group in self.groups]
        rows: list[Row] = [("Held-out metric, and gain over baseline", *letters, self.units)]
        for one in self.metrics:
            cells = [
                f"{mean:.3f} ({signed(gain.mean)})"
                for mean, gain in zip(one.means, one.gains, strict=True)
            ]
            rows.append((one.label, *cells, str(one.prompts)))
        return rows

    def _difference_rows(self, gains: bool = False) -> list[Row]:
        """Every two groups on every metric."""
        rows: list[Row] = [("Difference", "groups", "mean", "95 % interval", "p")]
        for one in self.metrics:
            for pair in one.gain_pairs if gains else one.pairs:
                value = pair.difference
                letters = f"{self.groups[pair.second].letter} - {self.groups[pair.first].letter}"
                interval = f"{signed(value.low)} to {signed(value.high)}"
                p_value = f"{value.p_value:.3f}" if value.p_value >= 0.001 else "<0.001"
                rows.append((one.label, letters, signed(value.mean), interval, p_value))
        return rows

    def _setting_rows(self) -> list[Row]:
        """What differs in configuration, data and code, a column a group."""
        letters = [group.letter for group in self.groups]
        rows: list[Row] = [("Differs in", *letters)]
        for key in self.groups[0].differing:
            rows.append((key, *(shown(group.differing[key]) for group in self.groups)))
        for key in self.runs[0].origins:
            if len({run.origins.get(key) for run in self.runs}) > 1:
                rows.append((key, *(_every_value(group, key) for group in self.groups)))
        return rows


def _every_value(group: Group, key: str) -> str:
    return ", ".join(dict.fromkeys(run.origins.get(key, "unknown") for run in group.runs))


def _called(run: ComparedRun) -> str:
    """By its name, if a person gave one, and its directory."""
    short = _short(run.directory.root.name)
    return f"{run.given_name} ({short})" if run.given_name not in (None, short) else short


def _short(name: str) -> str:
    """The beginning of a flow run's id says enough; a name that a person gave is kept."""
    return name[:8] if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", name) else name
