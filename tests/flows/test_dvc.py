"""DVC as its users meet it: a clone, `dvc repro`, experiments, data of their own, flows beside."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from atelier.data.versioning import md5_of
from atelier.tracking.run_directory import STAGES, RunDirectory, read_json_object
from tests.flows.conftest import SMALL, processes_of
from tests.support.project import ROOT, Project, make_project
from tests.support.runs import metrics, untrained_pipeline

pytestmark = pytest.mark.slow

COUNTED = """
import json, logging, sys
from atelier.config.resolve import resolve
from atelier.data import versioning
from atelier.stages import prepared
logging.basicConfig(level=logging.INFO)
calls, start = [], versioning._start
versioning._start = lambda arguments: (calls.append(arguments[0]), start(arguments))[1]
folder = prepared.provide(resolve(overrides=sys.argv[1:]))
print(json.dumps({"folder": str(folder), "calls": calls}))
"""
PREPARE = "import sys; from flows.prepare import prepare; run = prepare(overrides=sys.argv[1:])"
TRAIN = "from flows.train import train; train(str(run))"
TWO_AT_ONCE = f"""
import os, subprocess, sys
from flows.local_platform.server import prefect_server
from prefect.settings import PREFECT_API_URL
with prefect_server():
    environment = os.environ | {{"PREFECT_API_URL": PREFECT_API_URL.value()}}
    commands = [{PREPARE + "; " + TRAIN!r}], [{PREPARE!r}, "data.seed=11"]
    both = [subprocess.Popen([sys.executable, "-c", *one], env=environment) for one in commands]
    sys.exit(max(abs(one.wait()) for one in both))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dvc")


@pytest.fixture(scope="module")
def project(place: Path) -> Iterator[Project]:
    """A clone that nothing was run in."""
    uri = f"tracking.mlflow_uri=sqlite:///{place / 'mlflow.db'}"
    settings = (*SMALL, "train.evaluate_every=0", f"policy.path={untrained_pipeline()}", uri)
    yield make_project(place / "project", "tiny/base", settings)
    for process in processes_of(place):
        process.kill()


@pytest.fixture(scope="module")
def built(project: Project) -> Project:
    """The same after `dvc repro`."""
    assert stages_run(project.dvc("repro")) == ["resolve", *STAGES]
    project.commit("Built")
    return project


@pytest.fixture(scope="module")
def two_runs(project: Project) -> dict[int, RunDirectory]:
    """Runs of flows that went on at the same time, by the seed of their data: one of params.yaml,
    which was trained too, and one of other data."""
    project.output(sys.executable, "-c", TWO_AT_ONCE)
    runs = [RunDirectory(path.parent) for path in project.root.glob("runs/*/run.json")]
    return {read_json_object(run.data / "summary.json")["seed"]: run for run in runs}


def stages_run(output: str) -> list[str]:
    return re.findall(r"Running stage '(\w+)'", output)


# The pipeline ------------------------------------------------------------------------------------


def test_a_clone_is_built_once(built: Project):
    again = built.dvc("repro")
    assert stages_run(again) == []
    assert "up to date" in again
    assert built.output("git", "status", "--porcelain") == ""
    shown = json.loads(built.output("dvc", "metrics", "show", "--json"))
    (values,) = shown[""]["data"].values()
    assert {"heldout", "gain", "reward"} <= values["data"].keys()
    plots = json.loads(built.run("dvc", "plots", "show", "--json").stdout)
    assert len(plots["data"]) == 4
    assert not plots.get("errors")


def test_dvc_and_the_flow_give_the_same_numbers(built: Project, two_runs: dict[int, RunDirectory]):
    run = two_runs[0]
    assert metrics(run) == metrics(built.outputs)
    assert len(metrics(run)) == 6
    for name in ("train.parquet", "heldout.parquet"):
        assert (run.data / name).read_bytes() == (built.outputs.data / name).read_bytes()


def test_flows_at_once_have_their_own_data(project: Project, two_runs: dict[int, RunDirectory]):
    noted = {}
    for seed, run in two_runs.items():
        data = noted[seed] = read_json_object(run.run_file)["data"]
        tracked = (project.root / data["dvc"]).with_suffix("")
        for name, md5 in data["md5"].items():
            assert (run.data / name).read_bytes() == (tracked / name).read_bytes()
            assert hashlib.md5((run.data / name).read_bytes()).hexdigest() == md5
    assert set(noted) == {0, 11}
    assert noted[0]["md5"] != noted[11]["md5"]
    assert noted[0]["dvc"] != noted[11]["dvc"]


def test_the_run_names_its_data_as_dvc_does(built: Project):
    lock = yaml.safe_load((built.root / "dvc.lock").read_text())
    deps = {one["path"]: one["md5"] for one in lock["stages"]["train"]["deps"]}
    data = read_json_object(built.outputs.run_file)["data"]
    assert data["dvc"] is None
    for name in ("train.parquet", "heldout.parquet"):
        assert data["md5"][name] == deps[f"outputs/data/{name}"]


def test_another_mlflow_experiment_reruns_nothing_that_computes(built: Project):
    built.set("tracking.experiment=another")
    assert stages_run(built.dvc("repro")) == ["resolve"]


def test_a_changed_beta_trains_anew_and_an_interruption_goes_on(built: Project):
    before = built.outputs.metrics.read_text()
    built.set("algorithm.beta=0.01")
    repro = subprocess.Popen(
        ["dvc", "repro", "train"], cwd=built.root, env=built.environment, stdout=subprocess.DEVNULL
    )
    old = built.root / "outputs/train.old-1"
    wait_until(lambda: old.exists() and line_count(built.outputs.metrics) >= 2)
    repro.kill()
    for process in processes_of(built.root.parent):
        process.kill()
    repro.wait()

    assert stages_run(built.dvc("repro", "train")) == ["train"]
    assert (old / "metrics.jsonl").read_text() == before
    assert [one["step"] for one in metrics(built.outputs)] == [1, 2, 3, 4, 5, 6]
    events = [json.loads(line) for line in built.outputs.events.read_text().splitlines()]
    assert events[0] == {"event": "started", "step": 0, "ranks": 1, "device": "cpu"}
    assert "resumed" in [event["event"] for event in events]
    assert stages_run(built.dvc("repro", "--dry")) == ["evaluate", "export", "report"]
    assert "old-1" not in built.output("git", "status", "--porcelain")


def test_an_experiment_in_a_copy_leaves_the_workspace_alone(built: Project):
    resolved = built.outputs.config("train").read_text()
    words = ["-S", "recipe=tiny/flow-grpo", "-S", "++algorithm.beta=0.02"]
    built.dvc("exp", "run", "--temp", "--name", "copied", *words, "resolve")
    assert built.outputs.config("train").read_text() == resolved
    shown = json.loads(built.output("dvc", "params", "diff", "HEAD", "copied", "--json"))
    assert shown["params.yaml"]["algorithm.beta"]["new"] == 0.02
    assert shown["params.yaml"]["recipe"]["new"] == "tiny/flow-grpo"
    trains = shown["outputs/config/train.yaml"]["digest"]
    assert trains["old"] != trains["new"]
    assert "copied" in built.output("dvc", "exp", "list")


# The data ----------------------------------------------------------------------------------------


def test_prepared_data_come_from_where_they_are(project: Project):
    """The workspace, DVC's cache, its remote; made anew where nobody has them."""
    made = provide(project, "data.seed=3")
    folder = Path(made["folder"])
    assert made["calls"] == ["add"]
    assert made["is_announced"], "who looks at `git status` next is told what that file is"
    tables = {one.name: one.read_bytes() for one in folder.iterdir()}
    hashes = [md5_of(folder), *map(md5_of, folder.iterdir())]
    cache, remote = project.root / ".dvc/cache", project.root / ".atelier/dvc-remote"
    assert set(tables) == {"train.parquet", "heldout.parquet", "summary.json"}
    assert provide(project, "data.seed=3")["calls"] == []

    (folder / "train.parquet").write_bytes(b"damaged")
    assert provide(project, "data.seed=3")["calls"] == ["pull"]
    project.dvc("push", str(folder))
    shutil.rmtree(folder)
    forget(cache, *hashes)
    assert provide(project, "data.seed=3")["calls"] == ["pull"]
    assert {one.name: one.read_bytes() for one in folder.iterdir()} == tables

    shutil.rmtree(folder)
    forget(cache, *hashes)
    forget(remote, *hashes)
    again = provide(project, "data.seed=3")
    assert again["calls"] == ["pull", "add"]
    assert not again["is_announced"], "git shows nothing new"
    assert provide(project, "data.seed=4")["folder"] != str(folder)
    status = project.output("git", "status", "--porcelain", "data/prepared")
    assert {line.split("/")[-1][-4:] for line in status.splitlines()} == {".dvc"}


def test_runs_that_need_the_same_data_at_once_make_them_once(project: Project):
    command = [sys.executable, "-c", COUNTED, "data.seed=5"]
    both = [
        subprocess.Popen(command, cwd=project.root, env=project.environment, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    said = [json.loads(one.communicate(timeout=200)[0]) for one in both]
    assert sorted(one["calls"] for one in said) == [[], ["add"]]
    assert said[0]["folder"] == said[1]["folder"]


def test_what_the_guide_says_of_data_works(project: Project):
    """The commands of docs/data.md, in order, in a shell that stops at the first that fails."""
    prompts, shared = project.root / "data/prompts", project.root.parent / "shared"
    (prompts / "pictures").mkdir()
    (prompts / "pictures/one.png").write_bytes(b"a picture")
    (prompts / "signs.txt").write_text("".join(f'a sign that says "S{n}"\n' for n in range(200)))
    shared.mkdir()
    (shared / "captions.txt").write_text("one\n")
    guide = (ROOT / "docs/data.md").read_text()
    blocks = re.findall(r"```sh\n(.*?)```", guide, re.DOTALL)
    assert len(blocks) == 4
    where = {"SHARED": str(shared), "PROJECT": str(project.root), "TEAM": str(shared / "team")}
    for block in blocks:
        project.output("bash", "-euc", block, **where)
    assert (prompts / "theirs.txt").read_bytes() == (prompts / "signs.txt").read_bytes()
    assert (prompts / "captions.txt").read_text() == "one\n"

    # A file that is not in the workspace is fetched by a flow, and named by a stage.
    forget(project.root / ".dvc/cache", md5_of(prompts / "signs.txt"))
    (prompts / "signs.txt").unlink()
    words = ("data.source=ocr_text", "data.path=data/prompts/signs.txt")
    project.output("atelier", "stage", "resolve", "--run", "runs/signs", *sets(words))
    refused = project.run("atelier", "stage", "prepare", "--run", "runs/signs")
    assert refused.returncode == 2
    assert "dvc pull data/prompts/signs.txt.dvc" in refused.stderr
    assert provide(project, *words)["calls"] == ["pull", "add"]
    assert line_count(prompts / "signs.txt") == 200


def test_a_busy_path_is_waited_for_and_its_holder_named(project: Project):
    """A stage that reads a tracked file holds its lock while it runs."""
    held = project.root / "data/prompts/held.txt"
    held.write_text("one\n")
    project.dvc("add", str(held))
    folder = project.root / "holder"
    folder.mkdir()
    stage = {"cmd": "touch began && sleep 300", "deps": ["../data/prompts/held.txt"]}
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"stages": {"hold": stage}}))
    holder = subprocess.Popen(
        ["dvc", "repro", "holder/dvc.yaml"],
        cwd=project.root,
        env=project.environment,
        stdout=subprocess.DEVNULL,
    )
    wait_until((folder / "began").exists)
    code = (
        "from atelier.data.versioning import run_dvc\nfrom atelier.errors import Stopped\n"
        "try:\n    run_dvc(['add', 'data/prompts/held.txt'], deadline_seconds={})\n"
        "except Stopped as error:\n    print(error)"
    )
    held.write_text("two\n")
    assert f"process {holder.pid} (" in project.python(code.format(2))

    waiting = subprocess.Popen(
        [sys.executable, "-c", code.format(60)], cwd=project.root, env=project.environment
    )
    time.sleep(4)
    assert waiting.poll() is None
    for process in psutil.Process(holder.pid).children(recursive=True):
        process.kill()
    holder.wait()
    assert waiting.wait(60) == 0
    md5 = hashlib.md5(b"two\n").hexdigest()
    assert md5 in held.with_name("held.txt.dvc").read_text()
    shutil.rmtree(folder)


def forget(store: Path, *md5s: str) -> None:
    """Lose content from DVC's cache or from a remote that is a folder."""
    for md5 in md5s:
        (store / "files/md5" / md5[:2] / md5[2:]).unlink()


def provide(project: Project, *overrides: str) -> dict[str, Any]:
    printed = project.output(sys.executable, "-c", COUNTED, *overrides)
    found = json.loads(next(line for line in printed.splitlines() if line.startswith("{")))
    return {**found, "is_announced": f"git shows a new {shown(found['folder'])}.dvc" in printed}


def shown(folder: str) -> str:
    return f"data/prepared/{Path(folder).name}"


def sets(overrides: Sequence[str]) -> list[str]:
    return [word for one in overrides for word in ("--set", one)]


def wait_until(condition: Callable[[], bool], seconds: float = 300.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)


def line_count(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0
