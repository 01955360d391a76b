import pytest

from atelier.config.paths import repository_root
from atelier.config.resolve import load_stage_config
from atelier.errors import ConfigError, DataError, PlanError
from atelier.report.page import render
from atelier.stages.closing import closing_words, result_markdown
from atelier.stages.find_run import find_run
from atelier.stages.run_file import (
    check_opening,
    ensure_run,
    open_run,
    read_run,
    shown_path,
    warnings_of,
)


@pytest.fixture(autouse=True)
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def report_config(run):
    return load_stage_config(run.config("report"))


def test_a_new_run_lies_under_the_flow_runs_id(runs):
    run = open_run("tiny/base", ["train.seed=7"], "my run", None, "flow-1")
    assert run.root == runs / "flow-1"
    description = read_run(run)
    assert description["flow_run_id"] == description["id"] == "flow-1"
    assert description["seed"] == 7
    assert description["run_name"] == "my run"
    assert description["overrides"] == ["train.seed=7"]
    assert len(description["git"]["sha"] or "0" * 40) == 40


def test_a_retried_flow_run_keeps_its_configuration():
    run = open_run("tiny/base", ["train.seed=7"], None, None, "flow-1")
    again = open_run("tiny/base", ["train.seed=8"], None, None, "flow-1")
    assert again.root == run.root
    assert report_config(again).train.seed == 7


def test_resume_by_id_or_directory_keeps_the_run_and_its_configuration(runs):
    run = open_run("tiny/base", ["train.seed=7"], None, None, "flow-1")
    for name in ("flow-1", str(runs / "flow-1")):
        again = open_run(None, [], None, name, "flow-2")
        assert again.root == run.root
        assert report_config(again).train.seed == 7
        assert read_run(again)["id"] == "flow-1"
        assert read_run(again)["flow_run_id"] == "flow-2"


def test_a_resumed_run_may_be_given_another_name():
    open_run("tiny/base", ["train.seed=7"], "first", None, "flow-1")
    again = open_run(None, [], "second", "flow-1", "flow-2")
    assert read_run(again)["run_name"] == report_config(again).tracking.run_name == "second"
    assert read_run(again)["overrides"] == ["train.seed=7"]
    assert report_config(again).train.seed == 7
    assert read_run(open_run(None, [], None, "flow-1", "flow-3"))["run_name"] == "second"


def test_a_name_stays_when_something_else_is_changed():
    open_run("tiny/base", ["train.seed=7"], "first", None, "flow-1")
    again = open_run(None, ["algorithm.beta=0.1"], None, "flow-1", "flow-2")
    assert read_run(again)["run_name"] == report_config(again).tracking.run_name == "first"
    assert read_run(again)["overrides"] == ["train.seed=7", "algorithm.beta=0.1"]
    renamed = open_run(None, ["tracking.run_name=second"], None, "flow-1", "flow-3")
    assert read_run(renamed)["run_name"] == "second"
    last = open_run(None, ["algorithm.beta=0.2"], "third", "flow-1", "flow-4")
    assert read_run(last)["run_name"] == "third"
    assert (
        read_run(open_run(None, ["algorithm.beta=0"], None, "flow-1", "f"))["run_name"] == "third"
    )


def test_resume_with_overrides_changes_what_they_say_and_nothing_else():
    open_run("tiny/base", ["train.seed=7", "algorithm.beta=0.5"], None, None, "flow-1")
    again = open_run(None, ["algorithm.beta=0.1"], None, "flow-1", "flow-2")
    assert report_config(again).algorithm.beta == 0.1
    assert report_config(again).train.seed == 7


def test_a_refused_configuration_writes_nothing(runs):
    with pytest.raises(ConfigError):
        open_run("tiny/base", ["train.sed=7"], None, None, "flow-1")
    with pytest.raises(PlanError):
        open_run("tiny/base", ["rollout.group_size=1"], None, None, "flow-1")
    assert not runs.exists()


def test_another_placement_leaves_the_services_of_the_old_one_behind(runs):
    remote = ["rewards.ocr.placement=remote", "rewards.ocr.urls=[http://127.0.0.1:8400]"]
    open_run("tiny/base", remote, None, None, "flow-1")
    again = open_run(None, ["rewards.ocr.placement=in_process"], None, "flow-1", "flow-2")
    assert report_config(again).rewards.ocr.urls == []
    managed = ["rewards.ocr.placement=managed", "rewards.ocr.replicas=2"]
    assert (
        report_config(open_run(None, managed, None, "flow-1", "flow-3")).rewards.ocr.replicas == 2
    )
    back = open_run(None, remote, None, "flow-1", "flow-4")
    assert report_config(back).rewards.ocr.urls == ["http://127.0.0.1:8400"]
    with pytest.raises(ConfigError, match=r"rewards\.ocr\.urls: is for placement: remote"):
        check_opening(None, ["rewards.ocr.placement=in_process", remote[1]], None, "flow-1")


def test_a_path_that_may_leave_the_machine_does_not_name_it(runs, tmp_path):
    assert shown_path(repository_root() / "runs/one/report") == "runs/one/report"
    assert shown_path(runs / "one/report") == f"{runs.name}/one/report"
    assert shown_path(tmp_path.parent / "elsewhere") == "elsewhere"


def test_a_run_that_is_not_there_is_named(runs):
    with pytest.raises(ConfigError, match="no run 'nothing'"):
        find_run("nothing")
    broken = runs / "broken"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_run(find_run("broken"))


@pytest.fixture
def three(runs):
    for name in ("3f2a-one", "3f2b-two", "9c00-three", ".3f2c-going"):
        (runs / name).mkdir(parents=True)
        (runs / name / "run.json").write_text("{}")
    return runs


def test_a_run_is_found_by_how_its_id_begins(three):
    assert find_run("3f2a").root == three / "3f2a-one"
    assert find_run("9c0").root == three / "9c00-three"
    (three / "3f2a").mkdir()
    (three / "3f2a/run.json").write_text("{}")
    assert find_run("3f2a").root == three / "3f2a", "a whole id is no beginning"


def test_a_run_is_found_by_the_name_it_was_given():
    for number, name in enumerate(("base", "guard", "twice", "twice")):
        open_run("tiny/base", [f"train.seed={number}"], name, None, f"flow-{number}")
    assert find_run("guard").root.name == "flow-1"
    with pytest.raises(ConfigError, match=r"flow-2, flow-3 are all called 'twice'"):
        find_run("twice")
    with pytest.raises(ConfigError, match="no run 'guar'"):
        find_run("guar")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("3f2", r"may be any of 3f2a-one, 3f2b-two: write more"),
        ("9d00-thr", r"no run '9d00-thr'.*did you mean 9c00-three\?"),
        ("9", r"no run '9'.*did you mean 9c00-three\?"),
        ("demo", r"no run 'demo'.*there are 3f2a-one, 3f2b-two, 9c00-three$"),
        ("", r"no run ''.*there are 3f2a-one"),
    ],
)
def test_who_names_no_run_is_told_which_there_are(three, name, words):
    with pytest.raises(ConfigError, match=words):
        find_run(name)


def test_what_cannot_be_opened_is_refused_without_writing(runs):
    run = open_run("tiny/base", ["train.seed=7"], None, None, "flow-1")
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    check_opening(None, ["train.seed=8"], None, "flow")
    with pytest.raises(ConfigError, match=r"train\.seed"):
        check_opening(None, ["train.sede=8"], None, "flow-1")
    with pytest.raises(PlanError):
        check_opening(None, ["rollout.group_size=1"], None, "flow-1")
    assert before == {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    run.config("report").write_text("{")
    with pytest.raises(ConfigError, match=r"report\.yaml"):
        check_opening(None, [], None, "flow-1")


def test_what_the_plan_warns_of_stays_with_the_run_and_beside_its_result(tmp_path):
    """The plan's own warnings, and those of the prompt file."""
    for name, count in (("train", 40), ("heldout", 8)):
        lines = [f'a {name} sign that says "{n}"\n' for n in range(count)]
        (tmp_path / f"{name}.txt").write_text("".join(lines))
    own = [
        "data.source=ocr_text",
        f"data.path={tmp_path}/train.txt",
        f"data.heldout_path={tmp_path}/heldout.txt",
        "train.prompts_per_step=16",
        "rollout.group_size=4",
        "evaluation.prompts=16",
        "evaluation.periodic_prompts=8",
    ]
    run = open_run("tiny/base", own, None, None, "flow-1")
    found = warnings_of(run)
    assert any(one.startswith("rollout.group_size: advantages of small groups") for one in found)
    assert any(one.startswith("evaluation.prompts: 16, but only 8 prompts") for one in found)
    for text in found:
        assert f"warning: {text}\n" in closing_words(run.root)
        assert f"\n\n> {text}" in result_markdown(run)
    page = render(run)
    assert f"What the plan warned of before the run ({len(found)})" in page
    assert "<li>rollout.group_size: advantages of small groups" in page

    again = open_run(None, [], None, "flow-1", "flow-2")
    assert warnings_of(again) == found
    ensure_run(again, report_config(again))
    assert warnings_of(again) == found
    mended = open_run(None, ["evaluation.prompts=8"], None, "flow-1", "flow-3")
    assert not any(one.startswith("evaluation.prompts") for one in warnings_of(mended))
