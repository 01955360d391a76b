"""The embedded judge as a checkpoint that `from_pretrained` and vLLM load."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import Qwen2_5_VLForConditionalGeneration

from atelier.judge_models.tiny.model import build_processor, build_tokenizer


def save(model: Qwen2_5_VLForConditionalGeneration, folder: Path) -> None:
    """Weights in float16, tokenizer, processor and chat template; the model is rounded in place."""
    folder.mkdir(parents=True, exist_ok=True)
    model.to(torch.float16).save_pretrained(folder)
    build_processor(build_tokenizer()).save_pretrained(folder)
