import pytest

from atelier.config.resolve import load_stage_config
from atelier.errors import ConfigError, DataError, PlanError
from atelier.stages.run_file import find_run, open_run, read_run


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


def test_a_run_that_is_not_there_is_named(runs):
    with pytest.raises(ConfigError, match="no run 'nothing'"):
        find_run("nothing")
    broken = runs / "broken"
    broken.mkdir(parents=True)
    (broken / "run.json").write_text("{")
    with pytest.raises(DataError, match="cannot be read as JSON"):
        read_run(find_run("broken"))
