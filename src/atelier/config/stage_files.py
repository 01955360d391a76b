"""One resolved file a stage: all a stage reads, with the digest of what shapes it.

The digest stands at the top, so that DVC can depend on it alone (`params: [config/train.yaml:
[digest]]`): a changed MLflow setting is in the file and does not train again.
"""

from __future__ import annotations

import json
from pathlib import Path

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
    layer = read_yaml(path)
    name = shown(path)
    if set(layer.values) != {"stage", "digest", "config"}:
        raise ConfigError(f"{name}: not a resolved stage file (stage, digest and config)")
    stage, expected = layer.values["stage"], layer.values["digest"]
    if not isinstance(stage, str) or stage not in SHAPED_BY:
        raise ConfigError(f"{name}: stage: {stage!r} is none of {', '.join(SHAPED_BY)}")
    try:
        config = RunConfig.model_validate_json(json.dumps(layer.values["config"]), strict=True)
    except ValidationError as error:
        origins = {
            key[1:]: origin for key, origin in layer.origins.items() if key[:1] == ("config",)
        }
        origins[()] = Origin(name)
        raise ConfigError("\n".join(describe(error, origins))) from error
    if stage_digest(config, stage) != expected:
        raise ConfigError(
            f"{name}: changed since it was resolved (its digest is another); "
            "resolve the run again with `atelier stage resolve`"
        )
    return config
