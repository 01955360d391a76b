"""Learning curves of many runs: what is refused, removed and ended, with trainers of no work."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from atelier.config.paths import repository_root
from benchmarks import learning_curves
from benchmarks.learning_curves import remove_earlier
from tests.support.runs import environment


def swept(*words: str) -> object:
    try:
        return learning_curves.main(words)
    except SystemExit as refused:
        return refused.code


@pytest.mark.parametrize(
    ("words", "code", "expected"),
    [
        (("--variant", "train.seed=2", "--variant", "train.sed=2"), 2, "--variant 'train.sed=2'"),
        (("--variant", "rollout.micro_batch_size=7"), 3, "7 does not divide"),
        (("--set", "nonsense.key=1"), 2, "nonsense"),
        (("--recipe", "tiny/nothing"), 2, "tiny/nothing"),
        (("--parallel", "0"), 2, "--parallel: give 1 or more, not 0"),
        (("--scorers", "-1"), 2, "--scorers: give 1 or more, not -1"),
        (("--seconds", "nan"), 2, "--seconds: give 0.0 or more, not nan"),
        (("--out", "/dev/null/below"), 2, "--out /dev/null/below: cannot be a folder"),
    ],
)
def test_wrong_options_are_refused_and_an_earlier_sweep_stays(
    tmp_path: Path, capsys, words: tuple[str, ...], code: int, expected: str
) -> None:
    earlier = tmp_path / "curves.json"
    earlier.write_text("[]")
    assert swept("--out", str(tmp_path), *words) == code
    assert expected in capsys.readouterr().err
    assert earlier.read_text() == "[]"


def test_what_is_not_its_own_stays(tmp_path: Path) -> None:
    others, own = ("run-1", "run-00-mine", "notes", "elsewhere"), ("run-00", "run-101", "run-07")
    for name in (*others, *own[:2]):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    (tmp_path / "run-07").symlink_to(tmp_path / "elsewhere")
    for name in ("curves.json", "baseline.json", "other.json"):
        (tmp_path / name).touch()
    remove_earlier(tmp_path)
    assert {one.name for one in tmp_path.iterdir()} == {*others, "other.json"}
    assert (tmp_path / "elsewhere" / "file").exists()


@pytest.mark.parametrize(
    ("program", "more", "code"),
    [
        ("pass", (), 0),
        ("raise SystemExit('no room')", (), 1),
        ("import time; time.sleep(600)", ("--seconds", "0.1"), 0),
    ],
)
def test_it_ends_as_its_trainers_did(
    tmp_path: Path, monkeypatch, capsys, program: str, more: tuple[str, ...], code: int
) -> None:
    monkeypatch.setattr(
        learning_curves, "trainer_command", lambda *_: [sys.executable, "-c", program]
    )
    before = signal.getsignal(signal.SIGTERM)
    assert swept("--out", str(tmp_path), *more) == code
    assert signal.getsignal(signal.SIGTERM) is before
    (result,) = json.loads((tmp_path / "curves.json").read_text())
    assert result["exit_code"] == code
    assert ("no room" in capsys.readouterr().out) == (code == 1)


def test_a_variant_that_cannot_be_scored_costs_no_other(tmp_path: Path, monkeypatch) -> None:
    def one_fails(variant, number, *_):
        if number == 0:
            raise RuntimeError("no scores")
        return {"exit_code": 0, "curve": [], "log_tail": "", **dict.fromkeys(KEYS)}

    monkeypatch.setattr(learning_curves, "run_variant", one_fails)
    words = ("--variant", "train.seed=1", "--variant", "train.seed=2")
    assert swept("--out", str(tmp_path), *words) == 1
    assert len(json.loads((tmp_path / "curves.json").read_text())) == 1


KEYS = ("seconds", "images_per_second", "seconds_to_target")
# Two trainers that say who they are and sleep, and one that waits for its turn.
RUN = """
import sys
from benchmarks import learning_curves
SLEEPER = "import os, sys, time; open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
learning_curves.trainer_command = lambda run, _: [
    sys.executable, "-c", SLEEPER, str(run.root / "pid")
]
if __name__ == "__main__":
    sys.exit(learning_curves.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_its_trainers(tmp_path: Path, signum: signal.Signals) -> None:
    script, out = tmp_path / "sleeping.py", tmp_path / "out"
    script.write_text(RUN)
    path = os.pathsep.join([str(repository_root() / "src"), str(repository_root())])
    words = [word for seed in (1, 2, 3) for word in ("--variant", f"train.seed={seed}")]
    sweep = subprocess.Popen(
        [sys.executable, str(script), "--out", str(out), "--parallel", "2", *words],
        env=environment(PYTHONPATH=path),
    )
    try:
        trainers = _trainers(out, 2)
        sweep.send_signal(signum)
        assert sweep.wait(60) == 128 + signum
    finally:
        sweep.kill()
        sweep.wait()
    assert not any(one.is_running() for one in trainers)
    assert not (out / "run-02").exists(), "its turn never comes"


def _trainers(out: Path, count: int) -> list[psutil.Process]:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        with contextlib.suppress(ValueError):  # a file is there before its number is
            found = [int(one.read_text()) for one in out.glob("run-*/pid")]
            if len(found) == count:
                return [psutil.Process(one) for one in found]
        time.sleep(0.1)
    raise AssertionError("no trainers")
