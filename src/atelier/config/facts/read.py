"""Sizes of the model that a configuration trains, whatever family it is of."""

from __future__ import annotations

from pathlib import Path

from atelier.config.facts.deepgen import (
    DeepGenFacts,
    is_deepgen,
    of_checkpoint,
    read_checkpoint,
    read_deepgen,
)
from atelier.config.facts.files import read_json
from atelier.config.facts.janus import JanusFacts, read_janus
from atelier.config.facts.known_deepgen import MODELS as DEEPGEN_MODELS
from atelier.config.facts.known_deepgen import known_deepgen
from atelier.config.facts.known_janus import CONVERTED, MODELS, known_janus
from atelier.config.facts.known_qwen import MODELS as QWEN_PIPELINES
from atelier.config.facts.known_qwen import known_qwen
from atelier.config.facts.known_sd3 import PIPELINES, known_sd3
from atelier.config.facts.qwen import INDEX, KINDS, QwenFacts, read_qwen
from atelier.config.facts.sd3 import SD3Facts, read_sd3
from atelier.config.keys import nearest
from atelier.config.paths import from_root, is_directory
from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.config.theirs import JANUS_PAGE
from atelier.errors import ConfigError
from atelier.weight_index import WEIGHTS_INDEX

Facts = SD3Facts | DeepGenFacts | JanusFacts | QwenFacts

_NAMES = {
    "sd3": "a diffusers pipeline",
    "deepgen": "a DeepGen model",
    "janus": "a Janus model",
    "qwen": "a Qwen-Image pipeline",
}


def source(policy: PolicyConfig) -> str:
    """Directory or hub id that says what the model is: a file of weights says nothing itself."""
    return policy.layout or policy.path


def read_model_facts(config: RunConfig) -> Facts | None:
    """Read the model's directory; None when there is none (a hub id).

    Raises ConfigError naming policy.family where the model is of another, or the file that is
    missing or not what it should be, or policy.resolution where it has no place for such images.
    """
    if of_checkpoint(config.policy):
        return _read_checkpoint(config)
    name = source(config.policy)
    root = from_root(name)
    if not is_directory(root):
        return None
    if config.policy.family == "deepgen":
        _require_deepgen(name, root)
        return read_deepgen(root, config)
    if config.policy.family == "janus":
        _require_janus(name, root)
        return read_janus(root, config)
    _require_pipeline(name, root, config.policy.family)
    if config.policy.family == "qwen":
        return read_qwen(root, config)
    return read_sd3(root, config)


def known_facts(config: RunConfig) -> Facts | None:
    """Sizes of a published model that is known by its hub id; None where it is not.

    Raises ConfigError naming policy.family where the model is of another, what to use instead of a
    model in a layout that is not read, or the setting that the model has no place for.
    """
    if of_checkpoint(config.policy):
        return known_deepgen(config)
    name = source(config.policy)
    if name in DEEPGEN_MODELS:
        _require_family(name, "deepgen", config)
        return known_deepgen(config)
    if name in CONVERTED:
        raise ConfigError(
            f"{name}: is in the original layout of Janus, which transformers does not read; use "
            f"{CONVERTED[name]}, the same model in its layout, with policy.family: janus"
        )
    if name in PIPELINES:
        _require_family(name, "sd3", config)
        return known_sd3(name, config)
    if name in QWEN_PIPELINES:
        _require_family(name, "qwen", config)
        return known_qwen(name, config)
    if name in MODELS:
        _require_family(name, "janus", config)
        return known_janus(name, config)
    _require_no_folder_meant(name)
    return None


def _require_no_folder_meant(name: str) -> None:
    """What lies beside it is here: a hub id would not begin with the name of a folder."""
    path = from_root(name)
    if "/" in name and is_directory(path.parent):
        there = [one.name for one in path.parent.iterdir() if one.is_dir()]
        close = nearest(path.name, there)
        meant = f"; did you mean {name.rpartition('/')[0]}/{close}?" if close else ""
        raise ConfigError(f"{name}: there is no such directory{meant}")


def _require_family(name: str, family: str, config: RunConfig) -> None:
    if config.policy.family != family:
        raise ConfigError(f"{name}: is {_NAMES[family]}; set policy.family: {family}")


def _read_checkpoint(config: RunConfig) -> DeepGenFacts | None:
    """Of a file of weights whose bases are both here."""
    bases = config.policy.bases
    if bases.pipeline is None or bases.vlm is None:
        return None
    pipeline, vlm = from_root(bases.pipeline), from_root(bases.vlm)
    if not is_directory(pipeline) or not is_directory(vlm):
        return None
    return read_checkpoint(pipeline, vlm, config)


def _require_deepgen(name: str, root: Path) -> None:
    if is_deepgen(root):
        return
    if (root / INDEX).is_file():
        family = "qwen" if _is_qwen(root) else "sd3"
        raise ConfigError(f"{name}: is {_NAMES[family]}; set policy.family: {family}")
    if any(root.glob("*.safetensors")):
        index = next((one.name for one in root.glob(f"*{WEIGHTS_INDEX}")), None)
        raise ConfigError(
            f"{name}: is no model but a checkpoint of one: name the file itself, "
            f"{name}/{index or 'model.safetensors'}, and what it was trained from as policy.bases"
        )
    raise ConfigError(f"{name}: has no vlm/ and connector/: not a DeepGen model")


def _require_pipeline(name: str, root: Path, family: str) -> None:
    if is_deepgen(root):
        raise ConfigError(f"{name}: is {_NAMES['deepgen']}; set policy.family: deepgen")
    if (root / INDEX).is_file():
        if family == "sd3" and _is_qwen(root):
            raise ConfigError(f"{name}: is {_NAMES['qwen']}; set policy.family: qwen")
        return
    file = root / "config.json"
    if file.is_file() and read_json(file).get("model_type") in ("janus", "multi_modality"):
        raise ConfigError(f"{name}: is {_NAMES['janus']}; set policy.family: janus")
    raise ConfigError(f"{name}: no {INDEX}: not a pipeline directory")


def _is_qwen(root: Path) -> bool:
    return read_json(root / INDEX).get("_class_name") in KINDS


def _require_janus(name: str, root: Path) -> None:
    if is_deepgen(root):
        raise ConfigError(f"{name}: is {_NAMES['deepgen']}; set policy.family: deepgen")
    if (root / INDEX).is_file():
        family = "qwen" if _is_qwen(root) else "sd3"
        raise ConfigError(f"{name}: is {_NAMES[family]}; set policy.family: {family}")
    if not (root / "config.json").is_file():
        raise ConfigError(f"{name}: no config.json: not a model directory")
    kind = read_json(root / "config.json").get("model_type")
    if kind == "multi_modality":
        raise ConfigError(
            f"{name}/config.json: model_type multi_modality is the original layout of Janus; name "
            "the same model as converted to transformers (deepseek-community/Janus-Pro-7B), and "
            "for these weights a file of theirs as policy.path, with that as policy.layout: a "
            f"folder becomes such a file by the lines in {JANUS_PAGE}, Checkpoints"
        )
    if kind != "janus":
        raise ConfigError(f"{name}/config.json: model_type is {kind}, not janus")
