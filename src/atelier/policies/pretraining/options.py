"""A pre-training's options: a dataclass whose fields are also command-line arguments."""

import argparse
import json
from collections.abc import Mapping
from dataclasses import MISSING, field, fields
from pathlib import Path
from typing import Any, TypeVar

_Options = TypeVar("_Options")


def knob(default: Any, text: str, **arguments: Any) -> Any:
    """A field with a default and a help text; a tuple is a list of arguments of one type."""
    if isinstance(default, tuple):
        arguments |= {"nargs": "+", "type": type(default[0])}
    elif isinstance(default, bool):
        arguments["action"] = argparse.BooleanOptionalAction
    elif "type" not in arguments:
        arguments["type"] = type(default)
    return field(default=default, metadata={"help": text, **arguments})


def needed(text: str, **arguments: Any) -> Any:
    """A field without a default."""
    return field(metadata={"help": text, **arguments})


def add_arguments(parser: argparse.ArgumentParser, options: type) -> None:
    """One argument a field: `--budget-seconds` for `budget_seconds`."""
    for item in fields(options):
        required = item.default is MISSING
        parser.add_argument(
            "--" + item.name.replace("_", "-"),
            required=required,
            default=None if required else item.default,
            **item.metadata,
        )


def from_arguments(namespace: argparse.Namespace, options: type[_Options]) -> _Options:
    """The options that `add_arguments` parsed."""
    values: dict[str, Any] = {item.name: getattr(namespace, item.name) for item in fields(options)}  # type: ignore[arg-type]
    lists = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return options(**{**values, **lists})


def plain(options: Any) -> dict[str, Any]:
    """The options as JSON can hold them; of paths the name alone, the rest is of a machine."""
    values = {item.name: getattr(options, item.name) for item in fields(options)}
    return {
        name: value.name if isinstance(value, Path) else value for name, value in values.items()
    }


def command(
    module: str, options: type, values: Mapping[str, Any], leave_out: tuple[str, ...] = ()
) -> str:
    """The command line of a `train` whose `plain` options were `values`: what is no default."""
    defaults = json.loads(
        json.dumps({item.name: item.default for item in fields(options)}, default=str)
    )
    changed = [
        _argument(name, value)
        for name, value in values.items()
        if name not in ("out", *leave_out) and value != defaults[name]
    ]
    return " ".join([f"python -m {module} train --out DIR", *changed])


def _argument(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} " + (" ".join(map(str, value)) if isinstance(value, list) else str(value))
