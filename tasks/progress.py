"""How far the training is, as a live artifact on the run's page in Prefect.

A thread reads the run directory's metrics.jsonl, so the trainer knows nothing of it. The artifact
is made in the flow's thread: one made in a bare thread belongs to no run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from prefect.artifacts import create_progress_artifact
from prefect.client.schemas.actions import ArtifactUpdate

from atelier.background import BackgroundLoop
from atelier.config.resolve import load_stage_config
from atelier.tracking.run_directory import RunDirectory
from tasks.server import UNANSWERED, ask_server

UPDATE_EVERY_SECONDS = 5.0
TAIL_BYTES = 64 * 1024
KEY = "training"


class TrainingProgress(BackgroundLoop):
    """A context in which the artifact `training` follows a run: percent of its training steps.

    `say` replaces the description while something else is to be said, such as what is waited for.
    """

    def __init__(self, run: Path) -> None:
        super().__init__("training-progress", self._update, UPDATE_EVERY_SECONDS)
        directory = RunDirectory(run)
        self._metrics = directory.metrics
        self._steps = load_stage_config(directory.config("train")).train.steps
        self._remark = ""
        self._shown = self._state()
        self._artifact: Any = create_progress_artifact(
            self._shown[0], key=KEY, description=self._shown[1]
        )

    def __exit__(self, *errors: object) -> None:
        super().__exit__(*errors)
        if errors[0] is None:  # a stopping run has no time for it
            self._update()

    def say(self, remark: str) -> None:
        """Show a remark instead of the step; "" ends it."""
        self._remark = remark
        self.wake()

    def _update(self) -> float:
        percent, text = self._state()
        if (percent, text) != self._shown:
            try:
                with ask_server() as client:
                    update = ArtifactUpdate(data=percent, description=text)
                    client.update_artifact(self._artifact, update)
                self._shown = percent, text
            except UNANSWERED:
                pass  # shown with the next step
        return UPDATE_EVERY_SECONDS

    def _state(self) -> tuple[float, str]:
        record = _last_record(self._metrics)
        step = record.get("step", 0)
        percent = round(100.0 * min(step, self._steps) / self._steps, 1)
        reward = record.get("reward/mean")
        shown = f", mean reward {reward:.3f}" if isinstance(reward, float) else ""
        return percent, self._remark or f"step {step} of {self._steps}{shown}"


def _last_record(path: Path) -> dict[str, Any]:
    """The last whole line of a metrics file; empty where there is none, or a resume cuts it now."""
    if not path.exists():
        return {}
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        whole = file.read().split(b"\n")[:-1]
    try:
        return dict(json.loads(whole[-1])) if whole else {}
    except ValueError:
        return {}
