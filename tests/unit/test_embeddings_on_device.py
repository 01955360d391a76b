"""Prompts go to the device once, and rows made of them there are the bits they always were."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atelier.policies import cached_encoder
from atelier.policies.deepgen.conditions import Conditions as DeepGenConditions
from atelier.policies.embedding_cache import Embedding, EmbeddingCache, MemoryCache
from atelier.policies.sd3.conditions import PromptEncoder

CPU = torch.device("cpu")
ONE = 2 * (5 * 4 + 3)  # bytes of an embedding


class Encoders:
    """Embeddings of letters, in 16 bits."""

    def encode(self, prompt: str) -> Embedding:
        drawn = torch.Generator().manual_seed(len(prompt))
        return {
            "embedding": torch.randn(5, 4, generator=drawn).bfloat16(),
            "pooled": torch.randn(3, generator=drawn).bfloat16(),
        }

    def free(self) -> None: ...


@pytest.fixture(name="moved")
def _moved(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What went to the device."""
    moved: list[Tensor] = []

    def to_device(value: Tensor, device: torch.device) -> Tensor:
        moved.append(value)
        return value.clone()

    monkeypatch.setattr(cached_encoder, "to_device", to_device)
    return moved


def encoder() -> PromptEncoder:
    return PromptEncoder(Encoders(), EmbeddingCache(MemoryCache(10**6)), CPU)


def test_a_prompt_goes_to_the_device_once(moved: list[Tensor]) -> None:
    kept = encoder()
    for _ in range(3):
        conditions = kept.encode(["aa", "b", "aa"]).after(kept.encode([""] * 3))
        assert conditions.embeddings.shape == (6, 5, 4)
    assert len(moved) == 3 * 2, "three prompts of two tensors"


def test_the_least_recently_used_prompt_leaves_the_device(
    moved: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cached_encoder, "EMBEDDINGS_ON_DEVICE", 2 * ONE)
    kept = encoder()
    for prompt, copies in [("a", 1), ("bb", 2), ("a", 2), ("ccc", 3), ("a", 3), ("bb", 4)]:
        kept.encode([prompt])
        assert len(moved) == 2 * copies
    held = kept.encode(["a", "bb", "ccc", "dddd"])
    assert len(held.embeddings) == 4, "a batch larger than what is kept is whole"


def test_rows_are_what_a_stack_of_embeddings_was() -> None:
    made, texts = encoder().encode(["aa", "b", "aa"]), ["", "", "", "aa", "b", "aa"]
    both = made.after(encoder().encode([""] * 3))
    for name, found in (("embedding", both.embeddings), ("pooled", both.pooled)):
        expected = torch.stack([Encoders().encode(one)[name] for one in texts]).float()
        assert torch.equal(found, expected)
        assert found.is_contiguous()


def test_rows_of_any_length_are_padded_as_they_were() -> None:
    rows = [torch.randn(length, 3).bfloat16() for length in (2, 4, 3)]
    made = DeepGenConditions(("a", "b", "c"), tuple({"tokens": one} for one in rows))
    padded = torch.nn.utils.rnn.pad_sequence([one.float() for one in rows], batch_first=True)
    assert torch.equal(made.tokens, padded)
    assert made.mask is not None
    assert made.mask.sum(1).tolist() == [2, 4, 3]
    assert made.pooled is None
    assert made.rows([0, 0]).mask is None
    assert torch.equal(made.rows([2, 0]).tokens, padded[[2, 0], :3])
