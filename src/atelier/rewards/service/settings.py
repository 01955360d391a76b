"""The service's configuration file: the `rewards:` section of a run's, by itself."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import ValidationError

from atelier.config.problems import describe
from atelier.config.rewards import RewardsConfig
from atelier.config.sections import Section
from atelier.config.yaml_files import Origin, read_yaml, shown
from atelier.errors import ConfigError
from atelier.tracking.run_directory import write_json


class _File(Section):
    rewards: RewardsConfig


def read_rewards(path: Path) -> RewardsConfig:
    """Read a file that holds `rewards:` and nothing else, YAML or JSON.

    Raises:
        ConfigError: it is missing or does not fit the schema, with every problem and its line.
    """
    layer = read_yaml(path)
    try:
        return _File.model_validate_json(json.dumps(layer.values), strict=True).rewards
    except ValidationError as error:
        origins = {**layer.origins, (): Origin(shown(path))}
        raise ConfigError("\n".join(describe(error, origins))) from error


def write_rewards(path: Path, rewards: RewardsConfig) -> None:
    """Write what `read_rewards` reads."""
    write_json(path, {"rewards": rewards.model_dump(mode="json")})
