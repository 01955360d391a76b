"""Verified exports: a logged model each, and a version of the experiment's registered model.

An export is what its stage proved by reloading it (docs/export.md), so a version is a promoted
checkpoint, with links to its run, and from the run to it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from atelier.tracking.mlflow_mirror.target import ITEM_TAG, RUN_TAG, Target
from atelier.tracking.mlflow_store import sqlite_path

LARGEST_MODEL_BYTES = 2 * 1024**3
MODEL_TAG = "atelier.model"  # of a version: databases keep no other link to the logged model


def send_model(target: Target, name: str, record: Mapping[str, Any]) -> None:
    """The exported directories as a logged model and a model version; where the export is large,
    only a tag that says where it lies.

    Args:
        name: the item's name: the same export is one model, however often it is sent.
        record: of the export stage, done.
    """
    export = target.run.export
    sizes = [path.stat().st_size for path in export.rglob("*") if path.is_file()]
    if sum(sizes) > LARGEST_MODEL_BYTES:
        target.client.set_tag(target.run_id, "atelier.export", f"{target.run.root.name}/export")
        return
    model_id = target.memory.values["models"].get(name) or _logged_model(target, name, record)
    target.memory.note_in("models", name, model_id)
    target.client.log_model_artifacts(model_id, str(export))
    target.client.finalize_logged_model(model_id, "READY")
    _link(target, model_id)
    _register(target, model_id, record)


def _logged_model(target: Target, name: str, record: Mapping[str, Any]) -> str:
    """Found by its tags where an earlier call could not remember it any more, else created."""
    identity = {RUN_TAG: str(target.description["id"]), ITEM_TAG: name}
    condition = " AND ".join(f"tags.`{key}` = '{value}'" for key, value in identity.items())
    found = target.client.search_logged_models([target.experiment_id], condition, max_results=1)
    if found:
        return str(found[0].model_id)
    config = target.config
    model = target.client.create_logged_model(
        target.experiment_id,
        name=f"{config.policy.family}-{config.algorithm.name}",
        source_run_id=target.run_id,
        tags=identity,
        params={"export.weights": config.export.weights, "checkpoint": _checkpoint(record)},
        model_type=config.policy.family,
    )
    return str(model.model_id)


def _link(target: Target, model_id: str) -> None:
    """The model among the outputs of the run, once."""
    from mlflow.entities import LoggedModelOutput

    outputs = target.client.get_run(target.run_id).outputs
    if outputs is None or all(one.model_id != model_id for one in outputs.model_outputs):
        output = LoggedModelOutput(model_id, target.config.train.steps)
        target.client.log_outputs(target.run_id, [output])


def _register(target: Target, model_id: str, record: Mapping[str, Any]) -> None:
    """A version of the registered model, once, and on the model's page the way to it."""
    name = registered_name(target.config.tracking.experiment, target.config.policy.family)
    if not target.client.search_registered_models(f"name = '{name}'", max_results=1):
        _create_registered_model(target.client, name)
    versions = target.client.search_model_versions(f"name = '{name}'")
    found = [version for version in versions if version.tags.get(MODEL_TAG) == model_id]
    version = found[0] if found else _create_version(target, name, model_id, record)
    link = json.dumps([{"name": name, "version": int(version.version)}])
    target.client.set_logged_model_tags(model_id, {"mlflow.modelVersions": link})


def _create_version(target: Target, name: str, model_id: str, record: Mapping[str, Any]) -> Any:
    description = target.description
    tags = {
        MODEL_TAG: model_id,
        RUN_TAG: description["id"],
        "atelier.recipe": description["recipe"],
        "atelier.seed": description["seed"],
        "atelier.checkpoint": _checkpoint(record),
        "atelier.code": (description.get("git") or {}).get("sha"),
    }
    # A server finds the model by its id; a database that is opened here would look for it in the
    # process's default store, which is another one.
    local = sqlite_path(target.uri) is not None
    model = target.client.get_logged_model(model_id)
    return target.client.create_model_version(
        name,
        model.artifact_location if local else f"models:/{model_id}",
        run_id=target.run_id,
        tags={key: str(value) for key, value in tags.items() if value is not None},
        description=f"{description['run_name']}: exported, reloaded in a clean process, verified",
        await_creation_for=0,
        model_id=model_id,
    )


def _create_registered_model(client: Any, name: str) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name)
    except MlflowException:
        if not client.search_registered_models(f"name = '{name}'", max_results=1):
            raise  # another run was not faster: it is refused


def registered_name(experiment: str, family: str) -> str:
    """Registered models belong to no experiment, so the name carries it; `/` and `:` may not."""
    return re.sub(r"[/:'\"]+", "-", f"{experiment}-{family}")


def _checkpoint(record: Mapping[str, Any]) -> str:
    """The checkpoint an export was made of, by its name."""
    for label in record.get("identity", {}).get("inputs", {}):
        if match := re.search(r"checkpoints/(step-\d+)/", label):
            return match[1]
    return "unknown"
