import json

from atelier.report.comparison import (
    ComparedMetric,
    as_markdown,
    as_text,
    headline,
    read_comparison,
    units_of_run,
)
from atelier.report.warnings import judge_is_reward_words, warnings
from atelier.tracking.run_directory import RunDirectory, write_json


def metric(name="similarity", before=0.5, after=0.7, low=0.15, high=0.25):
    return ComparedMetric(name, before, after, after - before, low, high, 64)


def test_an_interval_that_holds_zero_is_no_change():
    unclear = metric(after=0.52, low=-0.03, high=0.07)
    assert unclear.verdict == "same"
    assert "did not change measurably" in headline([unclear])


def test_headline_says_which_way_and_how_far():
    assert headline([metric()]) == (
        "Held-out OCR similarity rose from 0.500 to 0.700 (+0.200, 95 % interval +0.150 to +0.250)."
    )
    assert " fell from " in headline([metric(after=0.4, low=-0.2, high=-0.05)])


def test_of_one_prompt_no_interval_is_known_and_nothing_is_said(tmp_path):
    """Neither by a new run nor by the file of an earlier one, whose interval had no width."""
    (tmp_path / "evaluate").mkdir()
    old = metric(low=0.2, high=0.2).__dict__ | {"n": 1}
    new = old | {"low": None, "high": None}
    for row in (old, new):
        (tmp_path / "evaluate/comparison.json").write_text(json.dumps([row]))
        (found,) = read_comparison(RunDirectory(tmp_path))
        assert found.verdict == "unknown"
        assert found.cells()[-2:] == ("not known (one only)", "1")
        assert headline([found]) == (
            "Held-out OCR similarity went from 0.500 to 0.700 (+0.200), of one prompt or pair: "
            "whether that is more than chance, one cannot say."
        )
        assert warnings([], [], [found]) == []


def test_gold_is_believed_where_there_is_gold():
    assert "Believe gold" in judge_is_reward_words([["judge_edited", "gold_edited"]])
    for names in ([["judge_edited"]], [], [["gold"], ["judge_edited"]]):
        assert "Believe" not in judge_is_reward_words(names)
        assert "Evaluate with another judge" in judge_is_reward_words(names)


def test_image_statistics_have_no_better_or_worse():
    assert metric("dark_share", after=0.9).verdict == "changed"


def test_tables_show_the_same_cells():
    rows = [metric(), metric("gold", 0.4, 0.5)]
    text, markdown = as_text(rows), as_markdown(rows)
    for row in rows:
        for cell in row.cells():
            assert cell in text
            assert cell in markdown
    assert len({len(line) for line in text.splitlines()}) == 1, "columns are aligned"


def test_pairs_are_not_counted_as_prompts(tmp_path):
    run = RunDirectory(tmp_path)
    assert units_of_run(run) == "prompts"
    for unit, units in (("pair", "pairs"), ("tiered prompt", "prompts")):
        write_json(run.evaluate / "summary.json", {"unit": unit})
        assert units_of_run(run) == units
        assert as_text([metric()], units_of_run(run)).splitlines()[0].endswith(f"  {units}")
        assert as_markdown([metric()], units).splitlines()[0].endswith(f"| {units} |")


def test_what_matters_most_comes_first(tmp_path):
    rows = [metric(name).__dict__ for name in ("color_entropy", "gold", "similarity")]
    (tmp_path / "evaluate").mkdir()
    (tmp_path / "evaluate/comparison.json").write_text(json.dumps(rows))
    found = read_comparison(RunDirectory(tmp_path))
    assert [row.metric for row in found] == ["similarity", "gold", "color_entropy"]
    assert read_comparison(RunDirectory(tmp_path / "other")) == []


def test_a_proxy_that_rises_while_gold_falls_is_called_out():
    hacked = [metric(), metric("gold", 0.6, 0.4, -0.25, -0.1)]
    assert any("reward hacking" in text for text in warnings([], [], hacked))
    assert warnings([], [], [metric(), metric("gold")]) == []


def test_masked_images_are_counted():
    steps = [{"step": 1, "reward/valid_share": 0.9}, {"step": 2, "reward/valid_share": 1.0}]
    assert any(
        text.startswith("1 steps had images without a score") for text in warnings(steps, [], [])
    )
