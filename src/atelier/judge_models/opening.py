"""Opening a checkpoint that is to judge: whatever is wrong with its files is told with its path."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoModelForImageTextToText,
    AutoProcessor,
    PreTrainedTokenizerBase,
)

from atelier.errors import ConfigError
from atelier.judge_models.qwen_vl import quicken
from atelier.model_files import require_numbers, telling

YES = ("yes", "Yes", "YES")
NO = ("no", "No", "NO")
_MEDIA = ("image", "video", "audio")


def opened(path: str | Path, device: str, dtype: str) -> tuple[Any, Any]:
    """The processor and the model of a checkpoint, on a device (auto: a GPU where there is one).

    Raises:
        ConfigError: it cannot be loaded, is not whole, or takes no images.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    with telling(f"judge {path}: cannot be loaded"):
        config = AutoConfig.from_pretrained(path)
    if type(config) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING:
        raise ConfigError(f"judge {path}: {config.model_type} is no vision-language model")
    with telling(f"judge {path}: cannot be loaded"):
        processor: Any = AutoProcessor.from_pretrained(path)
    if problem := _unfit(processor):
        raise ConfigError(f"judge {path}: {problem}")
    with telling(f"judge {path}: cannot be loaded"):
        model, lacking = _model(path, dtype)
        if device == "cpu" and dtype == "auto":
            model = model.float()  # half precision is slow there, and rounds more
        model = model.to(device).eval()
    if lacking:  # they would be random numbers
        raise ConfigError(
            f"judge {path}: {len(lacking)} of its weights are in none of its files, "
            f"such as {lacking[0]}"
        )
    require_numbers(f"judge {path}", model.state_dict())
    quicken(model)
    return processor, model


def _model(path: str | Path, dtype: str) -> tuple[Any, list[str]]:
    """The model, and the names of its weights that no file has."""
    model, info = AutoModelForImageTextToText.from_pretrained(
        path, dtype=dtype, output_loading_info=True
    )
    return model, sorted(info["missing_keys"])


def _unfit(processor: Any) -> str | None:
    """Why a processor cannot ask about images in a chat; None where it can."""
    if getattr(processor, "image_processor", None) is None:
        return "its processor takes no images"
    if getattr(processor, "tokenizer", None) is None:
        return "its processor has no tokenizer"
    if not getattr(processor, "chat_template", None):
        return "it has no chat template (chat_template.jinja), so it cannot be asked"
    return None


def first_tokens(tokenizer: PreTrainedTokenizerBase, words: Sequence[str]) -> list[int]:
    """Ids of the words that are one token, with and without a space before them."""
    spelled = (
        tokenizer.encode(space + word, add_special_tokens=False)
        for word in words
        for space in ("", " ")
    )
    return sorted({ids[0] for ids in spelled if len(ids) == 1})


def markers_of(processor: Any) -> list[str]:
    """The texts that are no words for the model: they stand for images, turns and the like."""
    own = [getattr(processor, f"{medium}_token", None) for medium in _MEDIA]
    tokenizer = processor.tokenizer
    added = [one.content for one in tokenizer.added_tokens_decoder.values() if one.special]
    found = {one for one in (*own, *added, *tokenizer.all_special_tokens) if isinstance(one, str)}
    # A single letter is one, too, that a tokenizer without padding of its own uses for that.
    return sorted(one for one in found if len(one) > 1)


def context_of(model: Any) -> int | None:
    """Most tokens of a question; None where the model does not say."""
    found = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return found if isinstance(found, int) and found > 0 else None
