"""Opening models that somebody saved: what is wrong with their files is told, and nothing else is
said."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from atelier.errors import ConfigError
from atelier.weight_index import WEIGHTS_INDEX, places_in, weight_files

logger = logging.getLogger(__name__)

_LONGEST = 400  # characters of a reason
_WRAPPERS = ("state_dict", "model", "module")  # keys under which training code saves weights


def told(error: Exception) -> str:
    """An error in a line or two: transformers lists every model there is."""
    text = f"{type(error).__name__}: {error}"
    return text if len(text) <= _LONGEST else text[:_LONGEST] + " ..."


@contextmanager
def telling(what: str) -> Iterator[None]:
    """Inside, anything that goes wrong becomes a ConfigError that says `what`.

    Somebody's files are parsed by transformers, tokenizers, safetensors and pickle: what is damaged
    raises what their code trips over: KeyError, SafetensorError, TypeError, Exception.
    """
    try:
        yield
    except Exception as error:
        raise ConfigError(f"{what}: {told(error)}") from error


def read_weights(file: Path) -> dict[str, Tensor]:
    """Weights by name of a file of torch.save or safetensors, or of all files that an index names;
    nothing in them is executed.

    Raises:
        ConfigError: it cannot be read as that.
    """
    if file.name.endswith(WEIGHTS_INDEX):
        return _of_shards(file)
    with telling(f"{file}: is no file of weights"):
        held: Any
        if file.suffix == ".safetensors":
            held = load_file(file)
        else:
            # Before torch 1.6 a file was a bare pickle, which cannot be mapped into memory.
            mapped = is_zipfile(file)
            held = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    for name in _WRAPPERS:
        if isinstance(held, dict) and isinstance(held.get(name), dict):
            held = held[name]
    if not isinstance(held, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in held.items()
    ):
        raise ConfigError(f"{file}: holds something else than tensors by name")
    for weight, value in held.items():
        if value.layout is not torch.strided or value.is_meta or value.is_quantized:
            raise ConfigError(
                f"{file}: {weight} is no plain tensor: sparse, packed or without data"
            )
    return held


def _of_shards(index: Path) -> dict[str, Tensor]:
    """Raises ConfigError unless the files of an index hold what it says, and nothing else."""
    places = places_in(index)
    found: dict[str, Tensor] = {}
    for file in weight_files(index)[1:]:
        own = read_weights(file)
        if odd := sorted(own.keys() ^ {name for name, place in places.items() if place == file}):
            raise ConfigError(
                f"{index}: weight_map: {odd[0]} is in {file.name} or said to be, and not both; the "
                "files are of two checkpoints, or one is damaged"
            )
        found |= own
    return found


def require_sound(folder: Path, model: nn.Module, info: Mapping[str, Any]) -> None:
    """Raise ConfigError unless a model that was loaded has all its weights from its folder's files,
    and they are numbers.

    Args:
        info: what `from_pretrained` says with output_loading_info.
    """
    held = model.state_dict()
    require_all_weights(str(folder), info["missing_keys"])
    tell_of_others(str(folder), info["unexpected_keys"])
    require_files_of_kind(folder, held)
    require_numbers(str(folder), held)


def require_all_weights(where: str, missing: Iterable[str]) -> None:
    """Libraries make up what they do not find, with a word of warning at most.

    Args:
        where: the model, for the error.
        missing: weights that it has and its files lack.

    Raises:
        ConfigError: there are any.
    """
    lacking = sorted(missing)
    if lacking:
        raise ConfigError(
            f"{where}: {len(lacking)} of the model's weights are not there, such as {lacking[0]}"
        )


def require_no_others(where: str, unexpected: Iterable[str]) -> None:
    """Raise ConfigError where files hold weights that the model has not: they are another's."""
    odd = sorted(unexpected)
    if odd:
        raise ConfigError(
            f"{where}: has {len(odd)} weights that the model's config knows nothing of, such as "
            f"{odd[0]}"
        )


def tell_of_others(where: str, unexpected: Iterable[str]) -> None:
    """The same in a warning: a published model may have more in its files than is used, such as
    buffers of an older library."""
    if odd := sorted(unexpected):
        logger.warning(
            "%s: %d weights of its files are not used, such as %s", where, len(odd), odd[0]
        )


def require_numbers(where: str, weights: Mapping[str, Tensor]) -> None:
    """Raise ConfigError where a weight has a value that is NaN or infinite, as it is held.

    A file can have them, and so can a dtype that is too narrow for what the file has.
    """
    for name, value in weights.items():
        # Of extremes, for they need no memory; NaN is both.
        if value.is_floating_point() and value.numel() and not _finite(value):
            kind = str(value.dtype).removeprefix("torch.")
            raise ConfigError(
                f"{where}: {name} has values that are no numbers (NaN, or infinite in {kind}); the "
                "file is damaged, was saved by a training that failed, or needs a wider dtype"
            )


def _finite(value: Tensor) -> bool:
    if value.element_size() == 1:  # torch does not compare these kinds
        value = value.float()
    low, high = torch.aminmax(value.detach())
    return bool(low.isfinite() & high.isfinite())


def require_weights_of_kind(
    where: str, weights: Mapping[str, Tensor], model: Mapping[str, Tensor]
) -> None:
    """Raise ConfigError where a model's weight is real and what is to replace it is not: whole
    numbers or truth values are what is left of a cast, and complex ones lose a half."""
    for name, value in weights.items():
        if name in model and model[name].is_floating_point() and not value.is_floating_point():
            raise no_weight(where, name, str(value.dtype).removeprefix("torch."))


def require_files_of_kind(folder: Path, model: Mapping[str, Tensor]) -> None:
    """The same of the safetensors of a folder, by their headers: libraries cast without a word."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (not a mapping)
                kind = opened.get_slice(name).get_dtype()
                real = kind.startswith(("F", "BF"))
                if name in model and model[name].is_floating_point() and not real:
                    raise no_weight(str(file), name, kind)


def no_weight(where: str, name: str, kind: str) -> ConfigError:
    """What is said of a weight that is stored as no real number."""
    return ConfigError(
        f"{where}: {name} is stored as {kind}, and the model computes with real numbers; give "
        "weights as float32, bfloat16 or float16"
    )


@contextmanager
def without_bars(library: Any) -> Iterator[None]:
    """No progress bars of a library.

    Args:
        library: its logging module, `transformers.utils.logging` or that of diffusers.
    """
    bars = library.is_progress_bar_enabled()
    library.disable_progress_bar()
    try:
        yield
    finally:
        if bars:
            library.enable_progress_bar()


@contextmanager
def quietly(library: Any) -> Iterator[None]:
    """No progress bars and no reports either: what matters in them is checked."""
    verbosity = library.get_verbosity()
    library.set_verbosity_error()
    try:
        with without_bars(library):
            yield
    finally:
        library.set_verbosity(verbosity)
