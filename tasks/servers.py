"""The servers of a run, as a live table on its page in Prefect.

A thread reads what the train stage writes about them. The artifact is made in the flow's thread:
one made in a bare thread belongs to no run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from prefect.artifacts import create_table_artifact
from prefect.client.schemas.actions import ArtifactUpdate

from atelier.background import BackgroundLoop
from atelier.config.placement import managed_servers
from atelier.config.resolve import load_stage_config
from atelier.errors import DataError
from atelier.rewards.service_file import read_services
from atelier.tracking.run_directory import RunDirectory
from tasks.server import UNANSWERED, ask_server

UPDATE_EVERY_SECONDS = 2.0
KEY = "servers"

Row = dict[str, Any]


def servers_table(run: Path) -> AbstractContextManager[object]:
    """A context in which the artifact `servers` follows a run; nothing where none is managed.

    To be entered in the flow's own thread.
    """
    directory = RunDirectory(run)
    labels = [label for label, _ in managed_servers(load_stage_config(directory.config("train")))]
    return ServersTable(directory, labels) if labels else nullcontext()


class ServersTable(BackgroundLoop):
    """The table while the servers are up, and once more when they are gone."""

    def __init__(self, run: RunDirectory, labels: list[str]) -> None:
        super().__init__("servers-table", self._update, UPDATE_EVERY_SECONDS)
        self._directory = run
        self._labels = labels
        self._shown = self._rows()
        self._artifact: Any = create_table_artifact(
            self._shown, key=KEY, description="Managed rewards and judges, up while it trains"
        )

    def __exit__(self, *errors: object) -> None:
        super().__exit__(*errors)
        if errors[0] is None:  # a stopping run has no time for it
            self._update()

    def _update(self) -> float:
        rows = self._rows()
        if rows != self._shown:
            try:
                with ask_server() as client:
                    update = ArtifactUpdate(data=json.dumps(rows))
                    client.update_artifact(self._artifact, update)
                self._shown = rows
            except UNANSWERED:
                pass  # shown with the next change
        return UPDATE_EVERY_SECONDS

    def _rows(self) -> list[Row]:
        try:
            services = read_services(self._directory.train)
        except DataError:  # not whole yet
            services = {}
        described = dict(_described(services))
        return [{"server": label, **described.get(label, _NOT_UP)} for label in self._labels]


_NOT_UP: Row = {"url": "", "pid": "", "version": "", "weights": "", "GPU": "", "restarts": ""}


def _described(services: dict[str, list[Row]]) -> Iterator[tuple[str, Row]]:
    for replicas in services.values():
        for one in replicas:
            yield (
                str(one.get("label")),
                {
                    "url": one["url"],
                    "pid": one.get("pid"),
                    "version": one.get("version", ""),
                    "weights": (one.get("weights") or "")[:12],
                    "GPU": ", ".join(one.get("gpus", ())) or "CPU",
                    "restarts": one.get("restarts", 0),
                },
            )
