"""The published vocabulary of Qwen2.5, from the wheel of dashscope."""

from __future__ import annotations

import base64
import importlib.util
from functools import cache
from pathlib import Path

from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer

FIRST_MARK = 151_643
# In the order of their ids.
MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


@cache
def published_tokenizer() -> Qwen2Tokenizer:
    """Of Qwen2.5-VL, with its marks."""
    found = importlib.util.find_spec("dashscope")
    assert found is not None
    assert found.origin is not None
    return _tokenizer(Path(found.origin).parent / "resources" / "qwen.tiktoken")


def _tokenizer(file: Path) -> Qwen2Tokenizer:
    ranks = dict(map(_entry, file.read_text(encoding="ascii").splitlines()))
    assert len(ranks) == FIRST_MARK
    vocabulary = {_symbols(token): rank for token, rank in ranks.items()}
    vocabulary |= {mark: FIRST_MARK + index for index, mark in enumerate(MARKS)}
    return Qwen2Tokenizer(
        vocab=vocabulary, merges=_merges(ranks), extra_special_tokens=list(MARKS[1:])
    )


def _entry(line: str) -> tuple[bytes, int]:
    token, rank = line.split()
    return base64.b64decode(token), int(rank)


def _merges(ranks: dict[bytes, int]) -> list[tuple[str, str]]:
    """Every pair that makes a token, in the order of the tokens."""
    found = []
    for token, rank in ranks.items():
        splits = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        pairs = [
            (ranks[left], ranks[right], left, right)
            for left, right in splits
            if left in ranks and right in ranks
        ]
        found += [(rank, *pair) for pair in pairs]
    return [(_symbols(left), _symbols(right)) for *_, left, right in sorted(found)]


def _symbols(token: bytes) -> str:
    return "".join(_SYMBOLS[byte] for byte in token)


def _byte_symbols() -> dict[int, str]:
    """Printable bytes stand for themselves, the others for characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    symbols = {byte: chr(byte) for byte in printable}
    symbols |= {byte: chr(256 + index) for index, byte in enumerate(others)}
    assert sorted(symbols.values()) == sorted(ByteLevel.alphabet())
    return symbols


_SYMBOLS = _byte_symbols()
