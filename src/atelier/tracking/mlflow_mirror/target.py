"""The run's run in MLflow, with a child run a stage; found again however often it is looked for.

It is of one configuration and of one training: where the prompts, the model or whatever else the
stages up to the training read has changed, they are done again, and that is another MLflow run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from atelier.config.digest import digest
from atelier.config.schema import RunConfig
from atelier.report.run_data import own_records
from atelier.tracking.mlflow_mirror.memory import Memory, agree
from atelier.tracking.mlflow_mirror.store import experiment
from atelier.tracking.run_directory import RunDirectory
from atelier.tracking.run_file import note_in_run_file

RUN_TAG, ITEM_TAG, PARENT_TAG = "atelier.run", "atelier.item", "mlflow.parentRunId"
IDENTITY_TAG = "atelier.identity."


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
        """Find or create the MLflow run, and note on it what it is of."""
        if "run_id" not in self.memory.values:
            self.memory.note(experiment_id=experiment(self.client, self.config, self.uri))
            identity = {ITEM_TAG: f"run:{self.memory.values['digest']}"}
            found = [one.info.run_id for one in self._find(identity) if self._is_of(one)]
            run_id = str(found[0]) if found else self._create_run(identity)
            self.memory.note(run_id=run_id, status="RUNNING")
            note_in_run_file(self.run, mlflow_run_id=run_id)
        self._name()
        self._note_identities()

    def child(self, stage: str, record: Mapping[str, Any]) -> str:
        """The MLflow run of one attempt at a stage. A stage that was not done again when the
        configuration changed has one below each of the two MLflow runs."""
        item = f"stage:{stage}:{record['started']}"
        known = self.memory.values["children"].get(item)
        if known is None:
            identity = {ITEM_TAG: item, PARENT_TAG: self.run_id}
            found = self._find(identity)
            start = milliseconds(record["started"])
            known = found[0].info.run_id if found else self._create(identity, stage, start=start)
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

    def _is_of(self, run: Any) -> bool:
        """Whether an MLflow run may be of what the stages have read."""
        tags = run.data.tags.items()
        noted = {k.removeprefix(IDENTITY_TAG): v for k, v in tags if k.startswith(IDENTITY_TAG)}
        return agree(noted, identities(self.records))

    def _note_identities(self) -> None:
        for stage, identity in identities(self.records).items():
            if stage not in self.memory.values["identities"]:
                self.client.set_tag(self.run_id, f"{IDENTITY_TAG}{stage}", identity)
                self.memory.note_in("identities", stage, identity)

    def _name(self) -> None:
        """As run.json has it by now. Where a run directory has several MLflow runs, of other
        configurations or data, the later ones have a number behind it."""
        name = self.description["run_name"]
        if self.memory.values.get("name") == name:
            return
        number = self._before()
        shown = f"{name} ({number + 1})" if number else name
        self.client.set_tag(self.run_id, "mlflow.runName", shown)
        self.memory.note(name=name)

    def _before(self) -> int:
        """How many MLflow runs of this run directory are older than this one."""
        runs = [one for one in self._find({}) if PARENT_TAG not in one.data.tags]
        mine = next(one.info.start_time for one in runs if one.info.run_id == self.run_id)
        return sum(one.info.start_time < mine for one in runs)

    def _create_run(self, identity: Mapping[str, str]) -> str:
        description, git = self.description, self.description["git"]
        tags = {
            "atelier.recipe": description["recipe"],
            "atelier.git_dirty": git["dirty"],
            "mlflow.source.git.commit": git["sha"],
            "mlflow.source.name": "atelier",
            "prefect.flow_run_id": description["flow_run_id"],
            **{f"atelier.digest.{stage}": one for stage, one in description["digests"].items()},
        }
        return self._create({**tags, **identity}, description["run_name"])

    def _find(self, identity: Mapping[str, str]) -> list[Any]:
        """The MLflow runs with these tags, the newest first: an earlier call may have died before
        it could remember that it created one."""
        tags = {RUN_TAG: self.description["id"], **identity}
        condition = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
        return list(self.client.search_runs([self.experiment_id], condition))

    def _create(self, tags: Mapping[str, Any], name: str, start: int | None = None) -> str:
        tags = {RUN_TAG: self.description["id"], **tags}
        text = {key: str(value) for key, value in tags.items() if value is not None}
        run = self.client.create_run(self.experiment_id, start_time=start, tags=text, run_name=name)
        return str(run.info.run_id)


def identities(records: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """By stage, what those up to the training were given: their configuration and inputs."""
    return {
        stage: digest(records[stage]["identity"])[:12]
        for stage in ("prepare", "baseline", "train")
        if stage in records
    }


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
