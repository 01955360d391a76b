"""From recipe, params.yaml and command line to one frozen configuration.

Later sources win: schema defaults, the recipe (its parents first), variables of a guide where they
were taken (variables.py), params.yaml, `--set`. Every problem of a configuration is reported at
once, each with where it was written.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from atelier.config.keys import is_section
from atelier.config.path_keys import expand_home
from atelier.config.paths import repository_root
from atelier.config.problems import NO_SECTION, describe, has_conflicts
from atelier.config.recipes import recipe_layers, recipes_directory
from atelier.config.schema import RunConfig
from atelier.config.stage_files import load_stage_config, write_stage_configs
from atelier.config.variables import layer_of
from atelier.config.yaml_files import Layer, read_override, read_yaml
from atelier.errors import ConfigError

__all__ = ["load_stage_config", "resolve", "write_stage_configs"]

logger = logging.getLogger(__name__)

Words = tuple[str, ...]


def resolve(
    recipe: str | None = None,
    overrides: Sequence[str] = (),
    params_file: Path | None = None,
    recipes_dir: Path | None = None,
    variables: Mapping[str, str] | None = None,
) -> RunConfig:
    """The configuration of a run.

    `recipe` is a name below `recipes_dir` or a path ending in .yaml; without it, the recipe that
    params.yaml names. `overrides` are `dotted.key=value`. `params_file` defaults to the
    repository's params.yaml, which may be missing; a file that is named must exist. `variables`
    are those of `variables.taken`; one that says nothing beside the rest is told in the log.
    Raises ConfigError listing every problem with its file and line or argument.
    """
    problems: list[str] = []
    layers: list[Layer] = []
    params = Layer()
    with _noted(problems):
        params = _read_params(params_file)
    with _noted(problems):
        recipe, asked_by = _recipe_asked_for(recipe, params)
        if recipe is not None:
            layers += recipe_layers(recipe, recipes_dir or recipes_directory(), asked_by)
    above = [params]
    for argument in overrides:
        with _noted(problems):
            above.append(_read_override(argument))
    with _noted(problems):
        layers.append(_variables_layer(variables or {}, [*layers, *above]))
    layers += above
    merged = _merged(layers, problems)
    expand_home(merged.values)
    return _validated(merged, recipe, problems)


@contextmanager
def _noted(problems: list[str]) -> Iterator[None]:
    """Go on after a ConfigError, so that the user sees all problems and not the first."""
    try:
        yield
    except ConfigError as error:
        problems.extend(str(error).splitlines())


def _read_params(path: Path | None) -> Layer:
    if path is not None:
        return read_yaml(path)
    default = repository_root() / "params.yaml"
    return read_yaml(default) if default.exists() else Layer()


def _recipe_asked_for(recipe: str | None, params: Layer) -> tuple[str | None, str]:
    """The recipe's name and who asks for it. The command line goes before params.yaml."""
    named: Any = params.values.pop("recipe", None)
    if recipe is not None or named is None:
        return recipe, "--recipe"
    where = str(params.origins[("recipe",)])
    if not isinstance(named, str):
        raise ConfigError(f"{where}: recipe: expected the name of one recipe, not {named!r}")
    return named, where


def _variables_layer(variables: Mapping[str, str], others: Sequence[Layer]) -> Layer:
    theirs: list[str] = []  # their problems are told with all layers
    layer, remarks = layer_of(variables, _merged(others, theirs).values)
    for remark in remarks:
        logger.warning("%s", remark)
    return layer


def _read_override(argument: str) -> Layer:
    layer = read_override(argument)
    if "recipe" in layer.values:
        raise ConfigError("--set recipe: a recipe is chosen with --recipe NAME")
    return layer


def _merged(layers: Iterable[Layer], problems: list[str]) -> Layer:
    """Lay each layer over the ones before it: sections key by key, everything else whole.

    A value where a section belongs is a problem even when a later layer would cover it.
    """
    result = Layer()
    for layer in layers:
        for path in _overlay(result.values, layer.values, ()):
            key = ".".join(path)
            problems.append(f"{result.origins[path]}: {key}: {NO_SECTION}")
        result.origins.update(layer.origins)
    return result


def _overlay(below: dict[str, Any], above: dict[str, Any], prefix: Words) -> Iterator[Words]:
    """Change `below`; yields the keys of sections that were values in it."""
    for key, value in above.items():
        path = (*prefix, key)
        if not isinstance(value, dict):
            below[key] = value
            continue
        covered = below.get(key)
        if not isinstance(covered, dict):
            if covered is not None and is_section(".".join(path)):
                yield path
            below[key] = {}
        yield from _overlay(below[key], value, path)


def _validated(merged: Layer, recipe: str | None, problems: list[str]) -> RunConfig:
    # As JSON, pydantic's strict mode takes a list for a tuple but never "3" or true for 3.
    text = json.dumps({**merged.values, "recipe": recipe})
    config = None
    try:
        config = RunConfig.model_validate_json(text, strict=True)
    except ValidationError as error:
        # With a layer missing, fields may seem to exclude each other that do not.
        if not (problems and has_conflicts(error)):
            problems += describe(error, merged.origins)
    if config is None or problems:
        raise ConfigError(_summary(problems))
    return config


def _summary(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return "\n".join(
        [f"{len(problems)} problems in the configuration:", *(f"  {p}" for p in problems)]
    )
