import errno
import shutil

import pytest
from safetensors import SafetensorError

from atelier.disk import amount, is_full, stopped_when_full
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
