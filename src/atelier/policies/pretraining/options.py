"""A pre-training's options: a dataclass whose fields are also command-line arguments."""

# ruff: noqa: RUF009 - a knob is dataclasses.field with a help text

import argparse
import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
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


@dataclass(frozen=True, kw_only=True)
class PretrainingOptions:
    """What every `train` has; a family adds its own, and other defaults where it needs them.

    Lists of numbers are tuples, times are seconds.
    """

    out: Path = needed("folder for snapshots and log.json", type=Path)
    device: str = knob("cuda", "torch device")
    seed: int = knob(0, "seed of scenes, initial weights and draws")
    workers: int = knob(14, "processes that render images and look at them")
    budget_seconds: float = knob(540.0, "wall-clock time of the whole run")
    compile: bool = knob(True, "torch.compile the training steps")

    steps: int = knob(1_000_000, "most steps of the training that has what is left of the time")
    learning_rate: float = knob(2e-3, "AdamW, constant after the warm-up")
    warmup_steps: int = knob(400, "linear warm-up of the learning rate")
    weight_decay: float = knob(0.05, "of AdamW")
    clip_norm: float = knob(1.0, "largest gradient norm")
    ema_decay: float = knob(0.998, "decay of the averaged weights, which are what is saved")
    prompt_dropout: float = knob(0.1, "share of empty prompts, for classifier-free guidance")


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
    module: str,
    options: type,
    values: Mapping[str, Any],
    leave_out: tuple[str, ...] = (),
    verb: str = "train",
) -> str:
    """The command line of a training whose `plain` options were `values`: what is no default."""
    defaults = json.loads(
        json.dumps({item.name: item.default for item in fields(options)}, default=str)
    )
    changed = [
        _argument(name, value)
        for name, value in values.items()
        if name not in ("out", *leave_out) and value != defaults[name]
    ]
    return " ".join([f"python -m {module} {verb} --out DIR", *changed])


def _argument(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} " + (" ".join(map(str, value)) if isinstance(value, list) else str(value))
