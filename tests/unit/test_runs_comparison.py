"""Comparisons of runs; their figures are recomputed here from the raw files by other code."""

import json
import re
from itertools import combinations

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner
from scipy import stats

from atelier.cli.application import application
from atelier.errors import ConfigError, DataError
from atelier.report.runs_comparison import compare_runs
from atelier.report.runs_page import write_page
from atelier.tracking.run_directory import RunDirectory, read_json_object, write_json
from tests.support.fake_run import open_fake_run
from tests.support.scored_runs import scored_run, write_scores

BETAS, SEEDS, PROMPTS = (0.0, 0.01, 0.1), (1, 2, 3), 48
EFFECTS = {0.0: 0.62, 0.01: 0.8, 0.1: 0.6}


@pytest.fixture(scope="module")
def nine(tmp_path_factory):
    """Three betas, three seeds; 0.01 is planted as the best. One score is missing."""
    folder, rng = tmp_path_factory.mktemp("runs"), np.random.default_rng(3)
    hard = rng.normal(0, 0.1, PROMPTS)
    runs = []
    for beta in BETAS:
        for seed in SEEDS:
            scores = EFFECTS[beta] + hard + rng.normal(0, 0.01) + rng.normal(0, 0.05, PROMPTS)
            if (beta, seed) == (0.1, 2):
                scores[5] = np.nan
            overrides = (f"algorithm.beta={beta}", f"train.seed={seed}")
            runs.append(scored_run(folder / f"beta-{beta}-seed-{seed}", scores, *overrides))
    return runs


def raw(runs):
    """All final scores, straight from the files: one row a run and prompt."""
    frames = []
    for run in runs:
        rows, start = (
            pd.read_json(run.root / folder / "scores.jsonl", lines=True)
            for folder in ("evaluate", "baseline")
        )
        frame = rows.merge(start, on=["dataset_id", "prompt_id"], suffixes=("", "_before"))
        _, beta, _, seed = run.root.name.split("-")
        frames.append(frame.assign(beta=float(beta), seed=int(seed)))
    table = pd.concat(frames)
    bad = table[table["similarity"].isna()]["prompt_id"].unique()
    return table[~table["prompt_id"].isin(bad)]


def recomputed(table, metric, beta, other):
    """Difference and interval by plain loops over the paired design, all groups pooled."""
    scores = table.pivot_table(index="prompt_id", columns=["beta", "seed"], values=metric)
    count = len(scores)
    difference = scores[other].mean(axis=1) - scores[beta].mean(axis=1)
    groups, seeds = len(BETAS), len(SEEDS)
    seed_means = scores.mean().unstack()
    interaction = (
        seed_means.sub(seed_means.mean(axis=1), axis=0)
        - seed_means.mean()
        + seed_means.stack().mean()
    )
    degrees = (groups - 1) * (seeds - 1)
    of_seeds = count * (interaction.to_numpy() ** 2).sum() / degrees
    cube = np.array([[scores[(b, s)] for s in SEEDS] for b in BETAS])  # [beta, seed, prompt]
    rest = 0.0
    for b, s, p in np.ndindex(cube.shape):
        value = cube[b, s, p] - cube[b, s].mean() - cube[b, :, p].mean() - cube[:, s, p].mean()
        value += cube[b].mean() + cube[:, s].mean() + cube[:, :, p].mean() - cube.mean()
        rest += value**2
    rest /= degrees * (count - 1)
    spread = difference.var()
    freedom = count - 1
    if of_seeds > rest:
        share = 2 / seeds
        total = spread + share * (of_seeds - rest)
        freedom = total**2 / (
            spread**2 / (count - 1)
            + (share * of_seeds) ** 2 / degrees
            + (share * rest) ** 2 / (degrees * (count - 1))
        )
        spread = total
    half = stats.t.ppf(1 - 0.025 / 3, freedom) * np.sqrt(spread / count)
    return difference.mean(), difference.mean() - half, difference.mean() + half


def test_figures_are_those_of_the_raw_files(nine):
    table, comparison = raw(nine), compare_runs(nine)
    assert [group.label for group in comparison.groups] == [
        "algorithm.beta 0", "algorithm.beta 0.01", "algorithm.beta 0.1",
    ]  # fmt: skip
    assert [one.metric for one in comparison.metrics][:2] == ["similarity", "exact"]
    for one in comparison.metrics[:3]:
        assert (one.prompts, one.left_out) == (PROMPTS - 1, 1)
        by_beta = table.groupby("beta")[one.metric].mean()
        assert list(one.means) == pytest.approx([by_beta[beta] for beta in BETAS])
        gain = (table[one.metric] - table[f"{one.metric}_before"]).groupby(table["beta"]).mean()
        assert [g.mean for g in one.gains] == pytest.approx([gain[beta] for beta in BETAS])
        for pair, (beta, other) in zip(one.pairs, combinations(BETAS, 2), strict=True):
            found = (pair.difference.mean, pair.difference.low, pair.difference.high)
            assert found == pytest.approx(recomputed(table, one.metric, beta, other))


def test_runs_go_by_the_names_that_people_gave_them(tmp_path):
    """One name a group; runs of a group that are called otherwise leave it what differs."""

    def named(name, beta, seed=1, called=None):
        scores = np.linspace(0.2, 0.8, PROMPTS) + beta + seed / 100
        own = (
            f"algorithm.beta={beta}",
            f"train.seed={seed}",
            f"tracking.run_name={called or name}",
        )
        return scored_run(tmp_path / name, scores, *own)

    runs = [named("first", 0.01, called="careful"), named("second", 0.1, called="bold")]
    comparison = compare_runs(runs)
    assert [group.label for group in comparison.groups] == ["careful", "bold"]
    assert "bold is better" in comparison.headline
    assert "careful (first)" in comparison.as_text()
    third = named("third", 0.1, 2, called="bolder")
    labels = [group.label for group in compare_runs([*runs, third]).groups]
    assert labels == ["careful", "algorithm.beta 0.1"]


def test_a_planted_winner_is_named(nine):
    comparison = compare_runs(nine)
    assert comparison.headline.startswith(
        "OCR similarity: algorithm.beta 0.01 is best, ahead of algorithm.beta 0 by +0.1"
    )
    text = comparison.as_text()
    assert "left out" in text
    assert "Same prompts and noise" in text
    assert compare_runs(nine, metric="gold").headline.startswith(
        "Gold: algorithm.beta 0.01 is best"
    )


def test_equal_configurations_have_no_winner(tmp_path):
    rng = np.random.default_rng(1)
    runs = [
        scored_run(tmp_path / f"{beta}-{seed}", 0.6 + rng.normal(0, 0.1, 32), *overrides)
        for beta in (0.0, 0.1)
        for seed in (1, 2, 3)
        if (overrides := (f"algorithm.beta={beta}", f"train.seed={seed}"))
    ]
    comparison = compare_runs(runs)
    assert comparison.metrics[0].winner is None
    assert comparison.headline.startswith("OCR similarity: no winner; algorithm.beta 0.1 less")


def test_seeds_alone_give_the_gain_of_the_configuration(tmp_path):
    runs = [
        scored_run(tmp_path / str(seed), np.linspace(0.6, 0.9, 16), f"train.seed={seed}")
        for seed in (1, 2)
    ]
    comparison = compare_runs(runs)
    assert comparison.headline.startswith("OCR similarity changed by +0.250, 95 % interval")
    assert not comparison.metrics[0].pairs


def test_one_seed_each_says_that_seeds_were_not_looked_at(tmp_path):
    first, second = two_runs(tmp_path)
    assert any(
        "One seed a configuration" in text for text in compare_runs([first, second]).warnings
    )


def test_groups_that_differ_in_much_are_letters_in_sentences(tmp_path):
    first, second = two_runs(tmp_path, "rollout.noise_level=0.5", "train.learning_rate=1e-5")
    comparison = compare_runs([first, second])
    assert comparison.headline.startswith("OCR similarity: B is better, ahead of A by +0.010")
    assert "algorithm.beta 0.1, train.learning_rate 1e-05" in comparison.as_text()


def test_groups_of_recipes_of_their_own_have_the_names_of_these(tmp_path):
    much = ("rollout.noise_level=0.5", "train.learning_rate=1e-5", "rollout.group_size=8")
    runs = two_runs(tmp_path, *much)
    for run, recipe in zip(runs, ("tiny/nft", "tiny/guard"), strict=True):
        write_json(run.run_file, {**read_json_object(run.run_file), "recipe": recipe})
    comparison = compare_runs(list(runs))
    assert comparison.headline.startswith("OCR similarity: tiny/guard is better, ahead of tiny/nft")
    assert "tiny/nft, 4 settings" in comparison.as_text()


def test_runs_of_an_earlier_schema_are_compared(tmp_path):
    first, second = two_runs(tmp_path)
    file = second.config("evaluate")
    file.write_text(file.read_text().replace("  train:\n", "  train:\n    gone_since: 1\n"))
    assert compare_runs([first, second]).metrics[0].winner == 1


def test_what_else_differs_is_shown_and_warned_of(tmp_path):
    first, second = two_runs(tmp_path)
    description = json.loads(second.run_file.read_text())
    tables = {"train.parquet": "c" * 32, "heldout.parquet": "b" * 32}
    write_json(
        second.run_file,
        description | {"data": {"md5": tables}, "git": {"sha": "f" * 40, "dirty": True}},
    )
    write_scores(second.baseline, np.full(16, 0.4))
    comparison = compare_runs([first, second])
    warnings = " ".join(comparison.warnings)
    for words in ("different prompts", "different code", "uncommitted changes", "start alike"):
        assert words in warnings
    text = comparison.as_markdown()
    for words in ("cccccccccccc", "ffffffffff with changes", "Differences of the gains"):
        assert words in text


def test_the_page_needs_nothing_but_itself_and_names_no_machine(nine, tmp_path):
    comparison = compare_runs(nine)
    page = write_page(comparison, tmp_path / "out").read_text()
    assert not re.search(r'(?:src|href)="(?!data:)|<script|@import|url\(', page)
    assert comparison.headline in page
    assert page.count("data:image/png;base64,") >= 10 * 9, "rows of all runs and of the start"
    assert page.count("<svg") == 3, "similarity and gold held out, and the reward"
    assert str(nine[0].root.parent) not in page
    figures = json.loads((tmp_path / "out/comparison.json").read_text())
    assert figures["metrics"][0]["winner"] == 1
    assert len(comparison.short_id) == 8
    assert comparison.short_id == compare_runs(nine[::-1]).short_id


def two_runs(folder, *overrides, prompts=16):
    scores = np.linspace(0.5, 0.9, 16)
    first = scored_run(folder / "first", scores)
    second = scored_run(
        folder / "second", np.resize(scores + 0.01, prompts), "algorithm.beta=0.1", *overrides
    )
    return first, second


def test_runs_that_were_not_evaluated_alike_are_not_paired(tmp_path):
    first, second = two_runs(tmp_path / "a", "evaluation.num_inference_steps=4")
    with pytest.raises(DataError, match=r"evaluation.num_inference_steps is \d+ and 4"):
        compare_runs([first, second])
    first, second = two_runs(tmp_path / "b", prompts=12)
    with pytest.raises(DataError, match=r"held-out prompts are not the same \(16 and 12"):
        compare_runs([first, second])
    first, second = two_runs(tmp_path / "c")
    summary = json.loads((second.evaluate / "summary.json").read_text())
    write_json(second.evaluate / "summary.json", summary | {"reader": "r/2"})
    with pytest.raises(DataError, match="read by r/1 and by r/2"):
        compare_runs([first, second])


def test_what_cannot_be_compared_is_said(tmp_path):
    first, second = two_runs(tmp_path)
    with pytest.raises(ConfigError, match="two runs or more, not 1"):
        compare_runs([first, RunDirectory(first.root)])
    with pytest.raises(ConfigError, match="--metric beauty: these runs have similarity"):
        compare_runs([first, second], metric="beauty")
    twin = scored_run(tmp_path / "twin", np.linspace(0.5, 0.9, 16))
    with pytest.raises(ConfigError, match="same configuration and seed 1"):
        compare_runs([first, second, twin])
    unfinished = open_fake_run(tmp_path / "unfinished", "sqlite:///unused.db")
    with pytest.raises(DataError, match=r"not finished.*--resume unfinished"):
        compare_runs([first, unfinished])
    newer = json.loads(second.run_file.read_text()) | {"format": 99}
    write_json(second.run_file, newer)
    with pytest.raises(DataError, match=r"format 99.*newer"):
        compare_runs([first, second])


def test_an_evaluation_of_an_earlier_configuration_is_no_result(tmp_path):
    first, second = two_runs(tmp_path)
    open_fake_run(second.root, "sqlite:///unused.db", "algorithm.beta=0.2")
    with pytest.raises(DataError, match="no final evaluation of its present configuration"):
        compare_runs([first, second])


def test_the_command_prints_the_result_and_where_the_page_lies(tmp_path, monkeypatch):
    _, second = two_runs(tmp_path)
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path))
    arguments = ["compare", "first", str(second.root), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(application, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "OCR similarity: algorithm.beta 0.1 is better" in result.output
    assert result.output.strip().endswith(str(tmp_path / "out/index.html"))
    assert (tmp_path / "out/index.html").exists()
    unknown = CliRunner().invoke(application, ["compare", "first", "nothing"])
    assert isinstance(unknown.exception, ConfigError)
    assert "no run 'nothing'" in str(unknown.exception)
