"""How trained weights get to a server, and how it is known that they answered.

An adapter is loaded beside the encoder under a name of its own, which requests ask for and answers
bear. Where all is trained, the server reads the tensors in place of those it had, forgets what it
had cached, and notes the version, which then stands at every token that it draws. A version is used
once: weights of another update, or those that a restarted server begins with, cannot pass for it.

Files are safetensors, so that what a server reads runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import torch
from safetensors.torch import save_file
from torch import Tensor

from atelier.config.sections.policy import LoraConfig, PolicyConfig
from atelier.config.sections.policy_parts import Dtype
from atelier.policies.qwen.module import QwenModule
from atelier.policies.qwen.served.files import SERVED_NAME
from atelier.policies.qwen.served.server import Json, Passing, Server

_ENCODER = f"{QwenModule.held_as}."  # where it is in the module that is trained


class Delivery(Protocol):
    """A way to bring weights, under a version's name."""

    def write(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """Trained tensors by name, as files that a server reads."""
        ...

    def has(self, server: Server, version: str) -> bool: ...

    def bring(self, server: Server, version: str, folder: Path) -> None:
        """Have the server read what was written."""
        ...

    def drop(self, server: Server, version: str) -> None:
        """Have it forget a version that is over."""
        ...

    def model(self, version: str) -> str:
        """What requests call it."""
        ...

    def answered(self, answer: Json, version: str) -> bool:
        """Whether an answer is of these weights."""
        ...


def delivery_of(policy: PolicyConfig) -> Delivery:
    """As policy.trainable wants."""
    if policy.trainable == "lora":
        return AdapterDelivery(policy.lora)
    return WholeDelivery(policy.dtype)


class AdapterDelivery:
    """A low-rank adapter, loaded and unloaded while the server runs."""

    def __init__(self, lora: LoraConfig) -> None:
        self._lora = lora

    def write(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """See Delivery. In float32, as trained; the server casts them to what it computes in."""
        named = {_adapter_name(name): value.contiguous() for name, value in weights.items()}
        save_file(named, folder / "adapter_model.safetensors")
        settings = {
            "peft_type": "LORA",
            "r": self._lora.rank,
            "lora_alpha": self._lora.alpha,
            "target_modules": list(self._lora.target_modules),
            "bias": "none",
        }
        (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")

    def has(self, server: Server, version: str) -> bool:
        return version in [one.get("id") for one in server.get("/v1/models").get("data", [])]

    def bring(self, server: Server, version: str, folder: Path) -> None:
        body = {"lora_name": version, "lora_path": str(folder)}
        server.post("/v1/load_lora_adapter", body)

    def drop(self, server: Server, version: str) -> None:
        if self.has(server, version):
            server.post("/v1/unload_lora_adapter", {"lora_name": version})

    def model(self, version: str) -> str:
        return version

    def answered(self, answer: Json, version: str) -> bool:
        return bool(answer.get("model") == version)


class WholeDelivery:
    """All that is trained, read in place of what the server had. The vision tower stays.

    The requests are those of vLLM's development mode.
    """

    def __init__(self, dtype: Dtype) -> None:
        self._dtype: torch.dtype = getattr(torch, dtype)

    def write(self, weights: Mapping[str, Tensor], folder: Path) -> None:
        """See Delivery. In the dtype that the server computes in."""
        named = {name.removeprefix(_ENCODER): value for name, value in weights.items()}
        cast = {name: value.to(self._dtype).contiguous() for name, value in named.items()}
        save_file(cast, folder / "model.safetensors")

    def has(self, server: Server, version: str) -> bool:
        return bool(server.get("/weight_info").get("weight_version") == version)

    def bring(self, server: Server, version: str, folder: Path) -> None:
        """See Delivery. The scheduler's caches know nothing of new weights: left alone they would
        answer with old ones, or miss what the worker has thrown away."""
        read = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
        server.post("/collective_rpc", read)
        server.post("/reset_encoder_cache")
        server.post("/reset_mm_cache")
        if not server.post("/reset_prefix_cache").get("success"):
            raise Passing(f"{server.url}: its prefix cache is in use")
        server.post("/update_weight_version", {"new_version": version})

    def drop(self, server: Server, version: str) -> None:
        """They are overwritten."""

    def model(self, version: str) -> str:
        return SERVED_NAME

    def answered(self, answer: Json, version: str) -> bool:
        spans = [span for choice in answer["choices"] for span in choice["weight_versions"] or []]
        return bool(spans) and all(span["version"] == version for span in spans)


def _adapter_name(name: str) -> str:
    """As peft saves it: `base_model.model.<layer>.lora_A.weight`."""
    module = name.removeprefix(_ENCODER).replace(".default.weight", ".weight")
    return f"base_model.model.{module}"
