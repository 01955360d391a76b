"""One resolved file a stage: all a stage reads, with the digest of what shapes it.

The digest stands at the top, so that DVC can depend on it alone (`params: [config/train.yaml:
[digest]]`): a changed MLflow setting is in the file and does not train again.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atelier.config.digest import SHAPED_BY, stage_digest
from atelier.config.problems import describe
from atelier.config.schema import RunConfig
from atelier.config.yaml_files import Origin, dump_yaml, read_yaml, shown
from atelier.errors import ConfigError
from atelier.tracking.run_directory import RunDirectory, write_text_atomically

_HEADER = "# Resolved by Atelier; change params.yaml, a recipe or --set instead of this file.\n"


def write_stage_configs(config: RunConfig, run: RunDirectory) -> dict[str, str]:
    """Write `<run>/config/<stage>.yaml` for every stage; returns each stage's digest."""
    digests = {stage: stage_digest(config, stage) for stage in SHAPED_BY}
    for stage, value in digests.items():
        document = {"stage": stage, "digest": value, "config": config.model_dump(mode="json")}
        write_text_atomically(run.config(stage), _HEADER + dump_yaml(document))
    return digests


def load_stage_config(path: Path) -> RunConfig:
    """Read what write_stage_configs wrote.

    Raises ConfigError when the file is missing, does not fit the schema, or was edited in a way
    that changes its digest.
    """
    stage, expected, config = _read(path)
    if stage_digest(config, stage) != expected:
        raise ConfigError(
            f"{shown(path)}: changed since it was resolved (its digest is another); "
            "resolve the run again with `atelier stage resolve`"
        )
    return config


def recorded_config(path: Path) -> RunConfig:
    """The configuration a finished stage ran with, also under an earlier schema: keys that were
    added since get their defaults, which are what the stage did, and keys that are gone are left
    out, because nothing reads them any more.

    Raises ConfigError when the file is missing or does not fit the schema otherwise.
    """
    return _read(path, _validated_without_gone_keys)[2]


def _validated(values: Any) -> RunConfig:
    return RunConfig.model_validate_json(json.dumps(values), strict=True)


def _validated_without_gone_keys(values: Any) -> RunConfig:
    try:
        return _validated(values)
    except ValidationError as error:
        gone = [one["loc"] for one in error.errors() if one["type"] == "extra_forbidden"]
        if not gone:
            raise
    for *sections, key in gone:
        section = values
        for name in sections:
            section = section[name]
        del section[key]
    return _validated(values)


def _read(
    path: Path, validated: Callable[[Any], RunConfig] = _validated
) -> tuple[str, object, RunConfig]:
    """Stage, recorded digest and configuration of a resolved file."""
    layer = read_yaml(path)
    name = shown(path)
    if set(layer.values) != {"stage", "digest", "config"}:
        raise ConfigError(f"{name}: not a resolved stage file (stage, digest and config)")
    stage = layer.values["stage"]
    if not isinstance(stage, str) or stage not in SHAPED_BY:
        raise ConfigError(f"{name}: stage: {stage!r} is none of {', '.join(SHAPED_BY)}")
    if path.stem in SHAPED_BY and stage != path.stem:
        raise ConfigError(
            f"{name}: stage: this is the file of stage {stage}, copied over that of {path.stem}; "
            "resolve the run again with `atelier stage resolve`"
        )
    try:
        config = validated(layer.values["config"])
    except ValidationError as error:
        origins = {
            key[1:]: origin for key, origin in layer.origins.items() if key[:1] == ("config",)
        }
        origins[()] = Origin(name)
        raise ConfigError("\n".join(describe(error, origins))) from error
    return stage, layer.values["digest"], config
