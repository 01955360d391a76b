"""The run's run in MLflow, with a child run a stage; found again however often it is looked for."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from atelier.config.schema import RunConfig
from atelier.report.run_data import own_records
from atelier.tracking.mlflow_mirror.memory import Memory
from atelier.tracking.mlflow_mirror.store import experiment
from atelier.tracking.run_directory import RunDirectory
from atelier.tracking.run_file import note_in_run_file

RUN_TAG, ITEM_TAG = "atelier.run", "atelier.item"


class DeadlineReached(Exception):
    """The call's time is up; what is left is sent by the next one."""


@dataclass
class Target:
    """One call of `sync`: the run directory, its MLflow run, and the memory of what was sent."""

    run: RunDirectory
    config: RunConfig
    uri: str
    client: Any
    memory: Memory
    description: dict[str, Any]
    deadline: float

    @property
    def run_id(self) -> str:
        return str(self.memory.values["run_id"])

    @property
    def experiment_id(self) -> str:
        return str(self.memory.values["experiment_id"])

    @property
    def records(self) -> dict[str, dict[str, Any]]:
        """stage.json of every stage of this configuration that has begun."""
        return own_records(self.run)

    def check_deadline(self) -> None:
        if time.monotonic() > self.deadline:
            raise DeadlineReached

    def open(self) -> None:
        """Find or create the MLflow run."""
        if "run_id" in self.memory.values:
            return
        description, git = self.description, self.description["git"]
        tags = {
            "atelier.recipe": description["recipe"],
            "atelier.git_dirty": git["dirty"],
            "mlflow.source.git.commit": git["sha"],
            "mlflow.source.name": "atelier",
            "prefect.flow_run_id": description["flow_run_id"],
            **{f"atelier.digest.{stage}": one for stage, one in description["digests"].items()},
        }
        self.memory.note(experiment_id=experiment(self.client, self.config, self.uri))
        item = f"run:{self.memory.values['digest']}"
        run_id = self._find_or_create(item, description["run_name"], tags)
        self.memory.note(run_id=run_id, status="RUNNING")
        note_in_run_file(self.run, mlflow_run_id=run_id)

    def child(self, stage: str, record: Mapping[str, Any]) -> str:
        """The MLflow run of one attempt at a stage."""
        item = f"stage:{stage}:{record['started']}"
        known = self.memory.values["children"].get(item)
        if known is None:
            tags = {"mlflow.parentRunId": self.run_id}
            known = self._find_or_create(item, stage, tags, milliseconds(record["started"]))
            self.memory.note_in("children", item, known)
        return str(known)

    def send_stage(self, stage: str, record: Mapping[str, Any]) -> None:
        """Duration and outcome of a stage that has ended."""
        child, end = self.child(stage, record), milliseconds(record["ended"])
        if record.get("error"):
            self.client.set_tag(child, "atelier.error", record["error"])
        self.client.log_metric(child, "seconds", record["seconds"], timestamp=end)
        status = "FINISHED" if record["status"] == "done" else "FAILED"
        self.client.set_terminated(child, status=status, end_time=end)

    def send_status(self) -> None:
        """Finished when the report is there; failed while a stage's last attempt failed; scheduled
        while no stage runs and others are to come, such as after `atelier stage`."""
        states = {stage: record["status"] for stage, record in self.records.items()}
        status = _status(states)
        if status == self.memory.values.get("status"):
            return
        if status in ("RUNNING", "SCHEDULED"):
            self.client.update_run(self.run_id, status=status)
        else:
            self.client.set_terminated(self.run_id, status=status)
        self.memory.note(status=status)

    def _find_or_create(
        self, item: str, name: str, tags: Mapping[str, Any], start: int | None = None
    ) -> str:
        """One MLflow run an item, even if an earlier call died before it could remember it."""
        identity = {RUN_TAG: self.description["id"], ITEM_TAG: item}
        condition = " and ".join(f"tags.`{key}` = '{value}'" for key, value in identity.items())
        found = self.client.search_runs([self.experiment_id], condition, max_results=1)
        if found:
            return str(found[0].info.run_id)
        text = {k: str(v) for k, v in {**tags, **identity}.items() if v is not None}
        run = self.client.create_run(self.experiment_id, start_time=start, tags=text, run_name=name)
        return str(run.info.run_id)


def _status(states: Mapping[str, str]) -> str:
    """MLflow's word for a run whose stages have these states."""
    if "failed" in states.values():
        return "FAILED"
    if states.get("report") == "done":
        return "FINISHED"
    return "RUNNING" if "running" in states.values() or not states else "SCHEDULED"


def milliseconds(utc: str) -> int:
    """A moment as stage.json writes it, as MLflow takes it."""
    return int(datetime.fromisoformat(utc).timestamp() * 1000)
