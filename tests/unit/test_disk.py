import errno
import shutil
import subprocess
import sys

import pytest
from safetensors import SafetensorError

from atelier.disk import (
    amount,
    is_full,
    require_writable,
    stopped_when_full,
    stopped_when_refused,
)
from atelier.errors import CheckpointError, Stopped

FULL = OSError(errno.ENOSPC, "No space left on device")


def caused_by(error):
    try:
        try:
            raise error
        except Exception as cause:
            raise RuntimeError("while saving") from cause
    except RuntimeError as effect:
        return effect


@pytest.mark.parametrize(
    "error",
    [
        FULL,
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        shutil.Error([("a", "b", str(FULL))]),
        SafetensorError(
            'Io(Os { code: 28, kind: StorageFull, message: "No space left on device" })'
        ),
        caused_by(FULL),
    ],
)
def test_a_full_disk_is_recognised_whoever_met_it(error):
    assert is_full(error)


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "Permission denied"), ValueError("space")])
def test_other_errors_are_not_a_full_disk(error, tmp_path):
    assert not is_full(error)
    with pytest.raises(type(error)), stopped_when_full(tmp_path):
        raise error


def test_the_message_names_the_file_from_the_run_on_and_the_bytes(tmp_path):
    run = tmp_path / "run-1"
    (run / "train").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    broken = OSError(errno.ENOSPC, "No space left on device", str(run / "train/metrics.jsonl"))
    with pytest.raises(Stopped) as stop, stopped_when_full(run, "the checkpoint", 5_300_000):
        raise broken
    message = str(stop.value)
    assert message.startswith("run-1/train/metrics.jsonl: the disk is full: ")
    assert "free, the checkpoint needs 5.3 MB" in message
    assert str(tmp_path) not in message


def test_an_error_with_a_meaning_of_its_own_keeps_it(tmp_path):
    for error in (Stopped("the monitor says stop"), CheckpointError("altered")):
        with pytest.raises(type(error), match=str(error)), stopped_when_full(tmp_path):
            raise error


def test_amounts_are_for_people():
    assert [amount(n) for n in (0, 999, 1500, 2_000_000, 3 * 10**9, 4 * 10**12)] == [
        "0 B", "999 B", "1.5 kB", "2.0 MB", "3.0 GB", "4.0 TB",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "mend"),
    [
        (OSError(errno.EROFS, "Read-only file system"), "mounted read-only"),
        (OSError(errno.EACCES, "Permission denied"), "the right to write there"),
        (SafetensorError("I/O error: File too large (os error 27)"), "raise `ulimit -f`"),
        (SafetensorError('Io(Os { code: 30, kind: ReadOnlyFilesystem, message: "" })'), "mounted"),
    ],
)
def test_what_may_not_be_written_is_told_with_its_mend(error, mend, tmp_path):
    folder = tmp_path / "run-1/train/checkpoints"
    folder.mkdir(parents=True)
    (tmp_path / "run-1/run.json").write_text("{}")
    told = f"^run-1/train/checkpoints: the checkpoint of step 2 cannot be written: .*{mend}"
    with (
        pytest.raises(Stopped, match=told),
        stopped_when_refused(folder, "the checkpoint of step 2"),
    ):
        raise error


@pytest.mark.parametrize("error", [FULL, ValueError("space"), CheckpointError("altered")])
def test_other_errors_are_no_refusal(error, tmp_path):
    with pytest.raises(type(error)), stopped_when_refused(tmp_path, "it"):
        raise error


def test_a_folder_that_can_be_written_is_left_as_it_was(tmp_path):
    require_writable(tmp_path / "new")
    assert not any((tmp_path / "new").iterdir())


LIMITED = """
import resource, signal, sys
from pathlib import Path
from atelier.disk import require_writable
from atelier.errors import Stopped
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))
try:
    require_writable(Path(sys.argv[1]))
except Stopped as stop:
    print(stop)
"""


def test_a_folder_that_takes_no_file_is_refused_before_any_work(tmp_path):
    command = [sys.executable, "-c", LIMITED, str(tmp_path)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "what is saved there cannot be written: a file may not be so large" in told
