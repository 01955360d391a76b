"""The marks that drawing needs: transformers draws only where generation_config.json names them."""

from __future__ import annotations

from pathlib import Path

from transformers import GenerationConfig, JanusProcessor

from atelier.errors import ConfigError
from atelier.policies.janus.loading import generation_config
from atelier.tracking.run_directory import read_json_object


def write_generation_config(directory: Path) -> None:
    """Name the marks that `generate(generation_mode="image")` needs, unless they are named."""
    file = directory / "generation_config.json"
    known = read_json_object(file, ConfigError) if file.exists() else {}
    marks = known.get("generation_kwargs") or {}
    if "boi_token_id" in marks and None not in (
        known.get("bos_token_id"),
        known.get("pad_token_id"),
    ):
        return
    processor = JanusProcessor.from_pretrained(directory)
    generation_config(GenerationConfig(**known), processor.tokenizer).save_pretrained(directory)
