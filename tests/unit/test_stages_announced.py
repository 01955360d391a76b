"""Events that announce images: what is there, and lines that are none."""

import json
from pathlib import Path

import pytest

from atelier.errors import DataError
from atelier.stages.announced import Images, announced_images
from atelier.tracking.run_directory import RunDirectory

SOUND = {"event": "evaluation_images", "step": 2, "folder": "evaluation/ocr/step-2", "prompts": 4}
STARTED = '{"event":"started"}\n'


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    (tmp_path / "train").mkdir()
    return RunDirectory(tmp_path)


def test_images_are_found_among_other_events(run: RunDirectory) -> None:
    run.events.write_text(f"{STARTED}{json.dumps(SOUND)}\n")
    assert list(announced_images(run)) == [Images(run.train / "evaluation/ocr/step-2", 4, 2)]


@pytest.mark.parametrize(
    ("event", "wrong"),
    [
        ({"a": 1}, "event"),
        ({"event": 5}, "event"),
        ({"event": "evaluation_images"}, "folder, prompts, step"),
        (SOUND | {"prompts": "4"}, "prompts"),
        (SOUND | {"prompts": True}, "prompts"),
        (SOUND | {"folder": "../../../etc"}, "folder"),
        (SOUND | {"folder": "/etc"}, "folder"),
        (SOUND | {"folder": ""}, "folder"),
        (SOUND | {"folder": "a\0b"}, "folder"),
    ],
)
def test_a_line_that_is_no_event_is_named(run: RunDirectory, event, wrong: str) -> None:
    run.events.write_text(f"{STARTED}{json.dumps(event)}\n")
    with pytest.raises(DataError, match=rf"events\.jsonl: the line at byte 20: {wrong}: .*mend"):
        list(announced_images(run))
