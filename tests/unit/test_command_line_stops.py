"""What `atelier run` says when it is stopped: at once, and how it goes on."""

import os
import signal
from pathlib import Path

import pytest

from atelier.config.resolve import resolve
from atelier.errors import ConfigError, Stopped
from atelier.stages import run_file
from atelier.tracking.run_directory import RunDirectory
from flows import command_line


@pytest.fixture
def opened(tmp_path, monkeypatch):
    monkeypatch.setenv("ATELIER_RUNS", str(tmp_path))
    monkeypatch.setattr(run_file, "_opened", [RunDirectory(tmp_path / "3f2a")])
    monkeypatch.setattr(command_line, "require_chosen_server", lambda: None)
    config = resolve("tiny/flow-grpo-fast", [], Path(os.devnull))
    monkeypatch.setattr(command_line, "check_opening", lambda *_: config)
    monkeypatch.setattr(command_line, "show_logs", lambda _: None)  # for the whole process


def ended_by(monkeypatch, stop) -> int:
    monkeypatch.setattr(command_line, "_run_flow", lambda *_: stop())
    return command_line.run_pipeline("tiny/base")


def test_ctrl_c_is_answered_at_once_and_says_how_it_goes_on(opened, monkeypatch, capfd):
    code = ended_by(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    said = capfd.readouterr().err.strip().splitlines()
    assert code == 130
    assert said[0].startswith("stopping; ")
    assert said[1] == "interrupted. To go on: atelier run --resume 3f2a"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_before_a_run_is_opened_there_is_nothing_to_resume(opened, monkeypatch, capfd):
    monkeypatch.setattr(run_file, "_opened", [])
    ended_by(monkeypatch, lambda: os.kill(os.getpid(), signal.SIGINT))
    assert "No run was opened; start it again" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("error", "named"), [(Stopped("no score"), True), (ConfigError("x"), False)]
)
def test_a_run_that_stopped_itself_is_named(opened, monkeypatch, capfd, error, named):
    def stop():
        raise error

    assert ended_by(monkeypatch, stop) == error.exit_code
    assert ("To go on: atelier run --resume 3f2a" in capfd.readouterr().err) is named


def test_a_run_on_gpus_is_refused_before_a_server_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("atelier.config.gpu_seen._DEVICES", tmp_path)
    monkeypatch.setattr(command_line, "_run_flow", lambda *_: pytest.fail("begun"))
    assert command_line.run_pipeline("tiny/base", ["launch.device=cuda"]) == 3
    assert "launch.device: cuda, but no GPU is seen" in capsys.readouterr().err
