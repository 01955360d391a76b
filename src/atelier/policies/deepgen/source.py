"""Where the parts of a model come from: a directory in the published layout, or a checkpoint over
the models that it was trained from. Each part is loaded by itself, when it is needed.

Source: DeepGen-RL.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, SD3Transformer2DModel
from diffusers.utils import logging as diffusers_logging
from huggingface_hub import snapshot_download
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration
from transformers.utils import logging as transformers_logging

from atelier.config.paths import from_root
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import Dtype, holds_weights_alone
from atelier.errors import ConfigError
from atelier.model_files import (
    quietly,
    read_weights,
    require_all_weights,
    require_no_others,
    require_numbers,
    require_sound,
    require_weights_of_kind,
    telling,
    without_bars,
)
from atelier.policies.deepgen.bridge_files import FOLDER as BRIDGE_FOLDER
from atelier.policies.deepgen.bridge_files import build_bridge, read_bridge
from atelier.policies.deepgen.connector import Bridge
from atelier.policies.deepgen.published import Published, merge_vlm, require_one_form, sort_weights
from atelier.policies.deepgen.template import FILE as TEMPLATE
from atelier.policies.deepgen.template import Template, read_template
from atelier.weight_index import weight_files

logger = logging.getLogger(__name__)

TRANSFORMER, VAE, SCHEDULER = "transformer", "vae", "scheduler"
VLM, TOKENIZER = "vlm", "tokenizer"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.msgpack")


def open_source(policy: PolicyConfig) -> Source:
    """What `policy.path` names.

    Raises:
        ConfigError: there is no such directory, hub id or file, or a checkpoint does not say what
            it was trained from (policy.bases).
    """
    if not holds_weights_alone(policy.path):
        return Directory(located(policy.path, policy.revision), policy)
    for key, value in (("vlm", policy.bases.vlm), ("pipeline", policy.bases.pipeline)):
        if value is None:
            raise ConfigError(
                f"policy.bases.{key}: {policy.path} holds weights alone; name what it was trained "
                "from, Qwen2.5-VL-3B-Instruct as vlm and UniPic2-SD3.5M-Kontext-2B as pipeline"
            )
    return Checkpoint(policy)


def located(path: str, revision: str | None = None) -> Path:
    """A directory (absolute, or relative to the repository), or that of a hub id in its cache.

    Raises:
        ConfigError: neither.
    """
    local = from_root(path)
    if local.is_dir():
        return local
    with telling(f"{path}: is neither a directory nor a model of the hub that can be had"):
        return Path(snapshot_download(path, revision=revision, ignore_patterns=[*_PICKLES]))


class Source(ABC):
    """Parts of a model, on the CPU, frozen and in eval mode."""

    def __init__(self, policy: PolicyConfig) -> None:
        self._policy = policy

    @abstractmethod
    def transformer(self, dtype: Dtype) -> SD3Transformer2DModel: ...

    @abstractmethod
    def transformer_config(self) -> Mapping[str, Any]:
        """What the transformer is, without its weights."""

    @abstractmethod
    def vae(self) -> AutoencoderKL:
        """In policy.vae.dtype."""

    @abstractmethod
    def scheduler(self) -> FlowMatchEulerDiscreteScheduler: ...

    @abstractmethod
    def vlm(self, dtype: Dtype | None) -> Qwen2_5_VLForConditionalGeneration:
        """None: in the dtype of its files."""

    @abstractmethod
    def bridge(self) -> Bridge:
        """In float32."""

    @abstractmethod
    def tokenizer(self) -> Any: ...

    @abstractmethod
    def template(self) -> Template: ...

    @abstractmethod
    def text_files(self) -> list[Path]:
        """All files that the encoding of a prompt depends on."""

    @contextmanager
    def _opening(self, what: str) -> Iterator[None]:
        at = f" at revision {self._policy.revision}" if self._policy.revision else ""
        failing = f"policy.path: {self._policy.path!r}{at}: {what} cannot be loaded"
        with telling(failing), quietly(diffusers_logging), without_bars(transformers_logging):
            yield

    def _part(self, folder: Path, kind: Any, **how: Any) -> Any:
        """A model of diffusers or transformers, all of whose weights are there and are numbers."""
        if not (folder / "config.json").is_file():
            raise ConfigError(f"{folder}: has no config.json, so no {kind.__name__}")
        with self._opening(folder.name):
            part, info = kind.from_pretrained(folder, output_loading_info=True, **how)
        require_sound(folder, part, info)
        return part.requires_grad_(False).eval()

    def _vlm(self, folder: Path, dtype: Dtype | None) -> Qwen2_5_VLForConditionalGeneration:
        held = "auto" if dtype is None else getattr(torch, dtype)
        how = {"dtype": held, "attn_implementation": "sdpa"}
        model: Qwen2_5_VLForConditionalGeneration = self._part(
            folder, Qwen2_5_VLForConditionalGeneration, **how
        )
        return model

    def _vae(self, directory: Path) -> AutoencoderKL:
        dtype = getattr(torch, self._policy.vae.dtype)
        return self._part(directory / VAE, AutoencoderKL, torch_dtype=dtype)

    def _scheduler(self, directory: Path) -> FlowMatchEulerDiscreteScheduler:
        with self._opening(SCHEDULER):
            return FlowMatchEulerDiscreteScheduler.from_pretrained(directory, subfolder=SCHEDULER)

    def _transformer_config(self, directory: Path) -> Mapping[str, Any]:
        with self._opening(TRANSFORMER):
            shape: Mapping[str, Any] = SD3Transformer2DModel.load_config(directory / TRANSFORMER)
        return shape

    def _tokenizer(self, folder: Path) -> Any:
        with self._opening("its tokenizer"):
            return AutoTokenizer.from_pretrained(folder)


class Directory(Source):
    """The published layout: transformer/, vae/, scheduler/, vlm/, connector/, tokenizer/ and
    prompt_template.json."""

    def __init__(self, directory: Path, policy: PolicyConfig) -> None:
        super().__init__(policy)
        self.directory = directory
        folders = (TRANSFORMER, VAE, SCHEDULER, VLM, BRIDGE_FOLDER, TOKENIZER)
        lacking = [name for name in folders if not (directory / name).is_dir()]
        if lacking:
            raise ConfigError(
                f"policy.path: {policy.path} is no DeepGen model: it has no {lacking[0]}/"
            )

    def transformer(self, dtype: Dtype) -> SD3Transformer2DModel:
        how = {"torch_dtype": getattr(torch, dtype)}
        return self._part(self.directory / TRANSFORMER, SD3Transformer2DModel, **how)

    def transformer_config(self) -> Mapping[str, Any]:
        return self._transformer_config(self.directory)

    def vae(self) -> AutoencoderKL:
        return self._vae(self.directory)

    def scheduler(self) -> FlowMatchEulerDiscreteScheduler:
        return self._scheduler(self.directory)

    def vlm(self, dtype: Dtype | None) -> Qwen2_5_VLForConditionalGeneration:
        return self._vlm(self.directory / VLM, dtype)

    def bridge(self) -> Bridge:
        return read_bridge(self.directory)

    def tokenizer(self) -> Any:
        return self._tokenizer(self.directory / TOKENIZER)

    def template(self) -> Template:
        return read_template(self.directory)

    def text_files(self) -> list[Path]:
        folders = (self.directory / name for name in (VLM, BRIDGE_FOLDER, TOKENIZER))
        files = [file for folder in folders for file in folder.iterdir() if file.is_file()]
        return [*files, self.directory / TEMPLATE]


class Checkpoint(Source):
    """Weights by published names, in a file or in those of an index, over a Qwen2.5-VL and an SD3.5
    pipeline."""

    def __init__(self, policy: PolicyConfig) -> None:
        super().__init__(policy)
        bases = policy.bases
        assert bases.vlm is not None
        assert bases.pipeline is not None
        self.files = [from_root(one) for one in (policy.path, bases.sft) if one is not None]
        self.vlm_directory = located(bases.vlm)
        self.pipeline_directory = located(bases.pipeline)

    @property
    def all_files(self) -> list[Path]:
        """Those that hold weights, and indices of them."""
        return [one for file in self.files for one in weight_files(file)]

    @cached_property
    def weights(self) -> Published:
        """Of the file, over those of policy.bases.sft where there are any; each is accounted for.

        Raises:
            ConfigError: a file cannot be read, a weight belongs to no part, nothing says how the
                language model was adapted, or both do.
        """
        found = Published()
        for file in reversed(self.files):
            one = sort_weights(str(file), read_weights(file))
            logger.info(
                "%s: %d weights of the transformer, %d of the connector, %d of the language model, "
                "%d not used",
                *(file, len(one.transformer), len(one.bridge), len(one.vlm), len(one.aside)),
            )
            require_one_form("policy.bases.sft", one, found)
            found = one.over(found)
        if not found.vlm:
            raise ConfigError(
                f"policy.bases.sft: {self._policy.path} does not hold the adapter of the language "
                "model that it was trained beside, and the stock model would read prompts "
                "otherwise; name the SFT checkpoint"
            )
        return found

    def transformer(self, dtype: Dtype) -> SD3Transformer2DModel:
        where = self._policy.path
        with self._opening(TRANSFORMER), torch.device("meta"):
            model = SD3Transformer2DModel.from_config(self.transformer_config())
        weights, expected = self.weights.transformer, model.state_dict()
        require_all_weights(f"{where}: transformer", expected.keys() - weights.keys())
        require_no_others(f"{where}: transformer", weights.keys() - expected.keys())
        require_weights_of_kind(where, weights, expected)
        held = {name: value.to(getattr(torch, dtype)) for name, value in weights.items()}
        require_numbers(where, held)
        with self._opening(TRANSFORMER):
            model.load_state_dict(held, assign=True)
        return model.requires_grad_(False).eval()

    def transformer_config(self) -> Mapping[str, Any]:
        return self._transformer_config(self.pipeline_directory)

    def vae(self) -> AutoencoderKL:
        return self._vae(self.pipeline_directory)

    def scheduler(self) -> FlowMatchEulerDiscreteScheduler:
        return self._scheduler(self.pipeline_directory)

    def vlm(self, dtype: Dtype | None) -> Qwen2_5_VLForConditionalGeneration:
        """With the checkpoint's LoRA merged in float32 and rounded to the dtype of the base's
        files, as an export holds it: both are one model."""
        model = self._vlm(self.vlm_directory, None)
        stored = model.dtype
        model = model.float()
        alpha = self._policy.bases.adapter_alpha
        done = merge_vlm(self._policy.path, model, self.weights.vlm, alpha)
        logger.info("%s: LoRA of %d modules merged", self._policy.path, done.adapted)
        model = model.to(stored)
        if dtype is not None:
            model = model.to(getattr(torch, dtype))
        require_numbers(self._policy.path, model.state_dict())
        return model

    def bridge(self) -> Bridge:
        heads = self._policy.connector.heads
        return build_bridge(self._policy.path, self.weights.bridge, heads)

    def tokenizer(self) -> Any:
        return self._tokenizer(self.vlm_directory)

    def template(self) -> Template:
        return Template()

    def text_files(self) -> list[Path]:
        return [*self.all_files, *(one for one in self.vlm_directory.iterdir() if one.is_file())]
