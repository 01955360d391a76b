"""Ctrl-C and SIGTERM end a command with a sentence and the exit code that README promises."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from atelier.cli.stopping import Terminated, terminable
from atelier.tracking.run_directory import RunDirectory
from tests.support.patience import FOR_EVER, PATIENCE
from tests.support.runs import environment, make_run

SIGNALS = {signal.SIGINT: 130, signal.SIGTERM: 143}
NODE = ("node", "--address", "127.0.0.1")
# What is imported for ever: by the verb of a node, and before there are verbs.
IMPORTED = {"psutil.py": NODE, "yaml.py": ("recipes",)}


def stopped(
    words: Sequence[str], by: signal.Signals, is_begun: Callable[[], bool], **more: str
) -> tuple[int, str]:
    """Exit code and standard error of a command that got a signal once it had begun."""
    process = subprocess.Popen(
        [sys.executable, "-m", "atelier", *words],
        env=environment(**more),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until = time.monotonic() + PATIENCE
        while not is_begun():
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < until
            time.sleep(0.05)
        process.send_signal(by)
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    return process.returncode, said


@pytest.mark.parametrize("module", IMPORTED)
@pytest.mark.parametrize("by", SIGNALS)
def test_a_command_that_still_imports_is_interrupted(
    tmp_path: Path, by: signal.Signals, module: str
) -> None:
    begun, file = tmp_path / "begun", tmp_path / module
    file.write_text(
        f"import time, pathlib\npathlib.Path({str(begun)!r}).touch()\ntime.sleep({FOR_EVER})\n"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    code, said = stopped(IMPORTED[module], by, begun.exists, PYTHONPATH=path)
    assert (code, said.strip()) == (SIGNALS[by], "interrupted")


@pytest.mark.slow
@pytest.mark.parametrize("by", SIGNALS)
def test_a_stage_says_how_it_goes_on(tmp_path: Path, by: signal.Signals) -> None:
    run = make_run(tmp_path / "a run", ["evaluation.num_inference_steps=1000"])
    words = ("stage", "baseline", "--run", str(run.root))
    code, said = stopped(words, by, lambda: _works(run))
    assert code == SIGNALS[by]
    assert "Traceback" not in said
    # Not always the last line: what MLflow lacks is sent at the very end, and may fail in words.
    assert f"interrupted. To go on: atelier stage baseline --run '{run.root}'" in said.splitlines()
    assert '"failed"' in (run.baseline / "stage.json").read_text()


def _works(run: RunDirectory) -> bool:
    return (run.baseline / "stage.json").exists()


def test_sigterm_unwinds_once_and_is_as_it_was_afterwards() -> None:
    cleaned = []
    with pytest.raises(Terminated) as raised, terminable():  # noqa: PT012
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            cleaned.append(signal.getsignal(signal.SIGTERM))
    assert raised.value.code == 143
    assert cleaned == [signal.SIG_DFL], "a second one ends the process"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_a_sigterm_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        with terminable():
            signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
