"""The service's configuration file: a run's `rewards:`, and the `judges:` they ask."""

from __future__ import annotations

import json
from pathlib import Path

from pydantic import Field, ValidationError

from atelier.config.judged import judge_conflicts
from atelier.config.problems import describe
from atelier.config.sections.base import Section
from atelier.config.sections.judge import JudgeConfig, JudgeName
from atelier.config.sections.rewards import RewardsConfig
from atelier.config.yaml_files import Origin, read_yaml, shown
from atelier.errors import ConfigError
from atelier.tracking.run_directory import write_json


class ServiceSettings(Section):
    """What a service scores with: rewards, and the judges that they ask."""

    rewards: RewardsConfig
    judges: dict[JudgeName, JudgeConfig] = Field(default={})


def read_settings(path: Path) -> ServiceSettings:
    """Read a file that holds `rewards:`, `judges:` if they ask some, and nothing else.

    Raises:
        ConfigError: it is missing or does not fit the schema, with every problem and its line; or
            a reward asks a judge that is not there.
    """
    layer = read_yaml(path)
    try:
        settings = ServiceSettings.model_validate_json(json.dumps(layer.values), strict=True)
    except ValidationError as error:
        origins = {**layer.origins, (): Origin(shown(path))}
        raise ConfigError("\n".join(describe(error, origins))) from error
    problems = [
        f"{key}: {text}" for key, text in judge_conflicts(settings.rewards, settings.judges)
    ]
    if problems:
        raise ConfigError(f"{shown(path)}: " + "; ".join(problems))
    return settings


def write_settings(path: Path, settings: ServiceSettings) -> None:
    """Write what `read_settings` reads."""
    write_json(path, settings.model_dump(mode="json", exclude_none=True))
