import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from atelier.report.page import render
from atelier.report.run_data import metric_records
from tests.support import fake_run


class Outline(HTMLParser):
    """Headings, and whether every tag that was opened was closed."""

    VOID = frozenset({"meta", "img", "br", "i"})

    def __init__(self):
        super().__init__()
        self.open, self.headings, self.in_heading = [], [], False

    def handle_starttag(self, tag, attributes):
        self.in_heading = tag in ("h1", "h2")
        if tag not in ("meta", "img", "line", "circle", "polyline", "polygon"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.in_heading = False
        if tag not in ("line", "circle", "polyline", "polygon"):
            assert self.open.pop() == tag

    def handle_data(self, data):
        if self.in_heading:
            self.headings.append(data)


def outline(page):
    parser = Outline()
    parser.feed(page)
    assert parser.open == []
    return parser.headings


@pytest.fixture
def run(tmp_path):
    return fake_run.open_fake_run(tmp_path / "run", "sqlite:///unused.db")


def test_a_finished_run_shows_all_sections_and_needs_no_network(run):
    fake_run.finish(run)
    page = render(run)
    assert outline(page)[1:] == [
        "Before and after",
        "Curves",
        "Same prompt, same noise: before and after",
        "During training",
        "Time",
        "What it was made from",
    ]
    assert not re.search(r'(?:src|href)="(?!data:)|<script|@import|url\(', page)
    assert "rose from 0.515 to 0.715" in page
    assert "train.parquet" in page


def test_a_run_without_periodic_evaluations_draws_before_and_after(run):
    fake_run.finish(run)
    shutil.rmtree(run.train / "evaluation")
    last = max(record["step"] for record in metric_records(run))
    page = render(run)
    assert "<title>gold at 0:" in page
    assert f"<title>gold at {last}:" in page


def test_text_from_images_and_prompts_is_escaped(run):
    fake_run.finish(run)
    page = render(run)
    assert "A&amp;B" in page
    assert "&lt;0&gt;" in page
    assert "<0>" not in page


def test_what_got_worse_is_shown(run):
    fake_run.finish(run, level=0.3)
    assert "What got worse most" in outline(render(run))
    assert "made the model worse" in render(run)


def test_a_run_that_only_began_has_a_page(run):
    assert "Not evaluated yet." in render(run)
    fake_run.write_steps(run, range(1, 8))
    page = render(run)
    assert "Curves" in outline(page)
    assert "finite" in page, "a step with NaN is warned of"


def test_what_is_always_zero_is_said_and_not_drawn(run):
    """As the ratio of a policy that is trained on what it has just sampled."""
    fake_run.finish(run)
    records = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for number, record in enumerate(records):
        record |= {"ratio/mean_abs_dev": 0.0, "grad_norm": 0.0 if number else 1.0}
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = render(run)
    assert "0 at every step, so not drawn: Ratio: mean |ratio - 1|." in page
    assert "<figcaption>Ratio" not in page
    assert "<figcaption>Gradient norm" in page


def test_how_long_rewards_took_is_no_phase_of_the_trainer(run):
    run.metrics.parent.mkdir(parents=True, exist_ok=True)
    row = {"step": 1, "time/score": 3.0, "time/reward/ocr/max": 77.0, "time/step": 4.0}
    run.metrics.write_text(json.dumps(row) + "\n")
    page = render(run)
    assert "<td>score</td><td>3.0 s</td><td>100&nbsp;%</td>" in page
    assert "77.0 s" not in page


@pytest.mark.parametrize("rewards", [("ocr",), ("ocr", "yes_no")])
def test_several_rewards_are_shown_each_by_itself(run, rewards):
    fake_run.finish(run)
    records = [json.loads(line) for line in run.metrics.read_text().splitlines()]
    for record in records:
        record |= {f"reward/{name}/mean": 0.5 for name in rewards}
        record |= {f"reward/{name}/advantage_share": 1 / len(rewards) for name in rewards}
    run.metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    page = render(run)
    assert ("Each reward, unweighted" in page) == (len(rewards) > 1)
    assert ("Share of the advantage that each reward explains" in page) == (len(rewards) > 1)
    assert ("<title>yes_no at" in page) == (len(rewards) > 1)


def test_the_page_says_what_scored(run):
    fake_run.finish(run)
    rewards = {"ocr": {"weight": 0.5, "version": "rapidocr-x"}}
    (run.train / "rewards.json").write_text(json.dumps(rewards))
    judge = {"url": "u", "model": "assets/tiny-judge", "version": "vllm-9", "weights": "abc123"}
    (run.train / "reward_services.json").write_text(json.dumps({"judges.scene": [judge]}))
    page = render(run)
    assert "reward ocr, weight 0.5" in page
    assert "rapidocr-x" in page
    assert "assets/tiny-judge by vllm-9, weights abc123" in page


def test_how_often_a_stage_was_begun_is_told_with_the_seconds_of_all_attempts(run):
    fake_run.finish(run)
    assert "times; its seconds" not in render(run)
    earlier = [{"started": "x", "seconds": 7.0}, {"started": "x", "seconds": None}]
    fake_run.write_record(run, "train", earlier=earlier)
    page = render(run)
    assert "<td>train</td><td>done</td><td>3</td><td>12.0</td>" in page
    assert "<td>baseline</td><td>done</td><td>1</td><td>5.0</td>" in page
    assert "train was begun 3 times; its seconds are of all of them but 1, which ended" in page


def test_a_curve_of_fewer_prompts_than_the_table_is_told(run):
    fake_run.finish(run)
    note = "The held-out curve is of the first 2 of 4 prompts"
    assert note not in render(run)
    for step in (0, 2):
        folder = run.periodic_evaluation("ocr", step)
        shutil.rmtree(folder)
        fake_run.write_evaluation(folder, 0.5, prompts=2)
    assert note in render(run)
