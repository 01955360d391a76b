"""Registers configs/automations: zombies always, the notification where a block says where to."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from uuid import UUID

import yaml
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.schemas.automations import AutomationCore

from atelier.config.paths import repository_root

NOTIFICATION_BLOCK = "atelier-failures"


def register_automations(client: SyncPrefectClient) -> list[str]:
    """Create what is missing and update what differs from its file.

    One that was paused in the UI stays paused.

    Returns:
        Names of the automations that are registered.
    """
    definitions = [_read("zombie.yaml")]
    block = _notification_block(client)
    if block is not None:
        notification = _read("failure-notification.yaml")
        for action in notification["actions"]:
            action["block_document_id"] = str(block)
        definitions.append(notification)
    for definition in definitions:
        _register(client, AutomationCore.model_validate(definition))
    return [definition["name"] for definition in definitions]


def _register(client: SyncPrefectClient, wanted: AutomationCore) -> None:
    found = client.read_automations_by_name(wanted.name)
    if not found:
        client.create_automation(wanted)
        return
    present = AutomationCore.model_validate(found[0].model_dump())
    wanted.enabled = present.enabled
    if _comparable(present) != _comparable(wanted):
        client.update_automation(found[0].id, wanted)


def _comparable(automation: AutomationCore) -> Any:
    """Not as JSON: what is a set would come in any order."""
    return automation.model_dump(exclude={"owner_resource", "tags"})


def _notification_block(client: SyncPrefectClient) -> UUID | None:
    """The block named `atelier-failures`, of whatever type the user likes."""
    blocks = client.read_block_documents(include_secrets=False)
    return next((block.id for block in blocks if block.name == NOTIFICATION_BLOCK), None)


def _read(name: str) -> dict[str, Any]:
    path: Path = repository_root() / "configs" / "automations" / name
    definition: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return definition
