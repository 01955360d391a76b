"""Text embeddings of SD3: kept, shared through the disk, and the encoders' coming and going."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest
import torch

from atelier.config.schema import RunConfig
from atelier.config.sections.policy import PolicyConfig
from atelier.config.sections.policy_parts import TextConfig
from atelier.policies import embedding_cache
from atelier.policies.embedding_cache import (
    DiskCache,
    Embedding,
    EmbeddingCache,
    MemoryCache,
)
from atelier.policies.sd3.conditions import PromptEncoder
from atelier.policies.sd3.loading import load_image_parts
from atelier.policies.sd3.policy import SD3Policy
from atelier.policies.sd3.text_encoders import PipelineEncoders
from tests.support.runs import untrained_pipeline

TEXTS = ['the word "KEM" in red', "two blue circles", 'the word "ABE" in green']
CPU = torch.device("cpu")


def config(**text) -> PolicyConfig:
    return PolicyConfig(
        path=str(untrained_pipeline()), max_sequence_length=16, text=TextConfig(**text)
    )


def encoders(**text) -> PipelineEncoders:
    return PipelineEncoders(untrained_pipeline(), config(**text), CPU)


def encoder(source: PipelineEncoders, disk: Path | None, limit: int = 10**9) -> PromptEncoder:
    kept = DiskCache(disk, source.fingerprint(), limit) if disk else None
    return PromptEncoder(source, EmbeddingCache(MemoryCache(10**6), kept), CPU)


def test_embeddings_are_those_of_the_pipeline_cached_or_not(tmp_path: Path) -> None:
    from diffusers import StableDiffusion3Pipeline

    pipeline = StableDiffusion3Pipeline.from_pretrained(untrained_pipeline())
    expected, _, pooled, _ = pipeline.encode_prompt(
        TEXTS[1], None, None, do_classifier_free_guidance=False, max_sequence_length=16
    )
    first = encoder(encoders(), tmp_path)
    for kept in (first, first, encoder(encoders(), tmp_path), encoder(encoders(), None)):
        found = kept.encode([TEXTS[0], TEXTS[1], TEXTS[1]])
        assert torch.equal(found.embeddings[1:], expected.expand(2, -1, -1))
        assert torch.equal(found.pooled[1:], pooled.expand(2, -1))


def test_encoders_are_freed_when_all_prompts_are_encoded_and_come_back_for_a_new_one() -> None:
    source = encoders()
    assert not source.are_loaded
    kept = encoder(source, None)
    kept.prepare(TEXTS[:2])
    assert not source.are_loaded
    kept.encode(["", *TEXTS[:2]])
    assert not source.are_loaded, "everything asked for was prepared"
    kept.encode(TEXTS)
    assert source.are_loaded


class Counting(MemoryCache):
    puts = 0

    def put(self, prompt: str, embedding: Embedding) -> None:
        super().put(prompt, embedding)
        self.puts += 1


def test_encoders_stay_where_embeddings_cannot(caplog: pytest.LogCaptureFixture) -> None:
    source = encoders()
    cache = Counting(20_000)
    kept = PromptEncoder(source, EmbeddingCache(cache), CPU)
    with caplog.at_level(logging.WARNING):
        kept.prepare(TEXTS)
    assert "2 of 4 prompts do not fit in policy.text.memory_gigabytes" in caplog.text
    assert source.are_loaded
    assert cache.puts == 3, "what comes after the first that is pushed out pushes out others"


def test_another_process_finds_embeddings_on_the_disk(tmp_path: Path) -> None:
    encoder(encoders(), tmp_path).prepare(TEXTS)
    source = encoders()
    kept = encoder(source, tmp_path)
    kept.prepare(TEXTS, rank=1)
    assert len(kept.encode(TEXTS)) == 3
    assert not source.are_loaded


@pytest.mark.parametrize("change", ["dtype", "length", "files"])
def test_other_encoders_or_settings_are_another_source(change: str, tmp_path: Path) -> None:
    other = encoders()
    if change == "dtype":
        other = encoders(dtype="bfloat16")
    elif change == "length":
        other._policy = config().model_copy(update={"max_sequence_length": 17})
    else:
        other._directory = tmp_path
    assert other.fingerprint() != encoders().fingerprint()
    assert encoders().fingerprint() == encoders().fingerprint()


def test_a_damaged_file_is_encoded_again(tmp_path: Path) -> None:
    encoder(encoders(), tmp_path).prepare(TEXTS)
    for file in tmp_path.glob("*/*.safetensors"):
        file.write_bytes(file.read_bytes()[:100])
    found, fresh = encoder(encoders(), tmp_path), encoder(encoders(), None)
    assert torch.equal(found.encode(TEXTS).embeddings, fresh.encode(TEXTS).embeddings)
    again = encoders()
    encoder(again, tmp_path).encode(TEXTS)
    assert not again.are_loaded, "it was written anew"


def test_the_disk_keeps_what_was_used_last(tmp_path: Path) -> None:
    value = {"embedding": torch.zeros(1000)}
    old = DiskCache(tmp_path, "old", 15_000)
    for prompt in ("a", "b"):
        old.put(prompt, value)
        os.utime(old._file(prompt), (1, 1))  # clocks tick too slowly to tell them apart
    assert old.get("a") is not None  # used: "b" goes first
    new = DiskCache(tmp_path, "new", 15_000)
    for prompt in ("c", "d"):
        new.put(prompt, value)
    assert [one in old for one in "ab"] == [True, False]
    assert [one in new for one in "cd"] == [True, True]
    assert sum(file.stat().st_size for file in tmp_path.rglob("*.safetensors")) <= 15_000


def test_a_full_disk_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "source").write_text("a file where the folder should be")
    cache = DiskCache(tmp_path, "source", 10**6)
    with caplog.at_level(logging.WARNING):
        cache.put("a", {"embedding": torch.zeros(10)})
    assert "an embedding was not kept" in caplog.text
    assert "a" not in cache


def test_a_policy_never_has_encoders_beside_its_transformer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedding_cache, "CACHE", str(tmp_path))
    settings = config(disk_gigabytes=1.0)
    policy = SD3Policy.load(RunConfig(policy=settings), "cpu", prompts=TEXTS)
    assert not policy._encoder._encoders.are_loaded
    assert len(list(tmp_path.glob("*/*.safetensors"))) == len(TEXTS) + 1
    parts = load_image_parts(untrained_pipeline(), settings)
    assert parts.text_encoder is parts.text_encoder_2 is parts.text_encoder_3 is None


def test_sixteen_bit_encoders_give_float32_conditions() -> None:
    half, full = (
        encoder(encoders(dtype=one), None).encode(TEXTS) for one in ("bfloat16", "float32")
    )
    assert half.embeddings.dtype == half.pooled.dtype == torch.float32
    assert torch.allclose(half.embeddings, full.embeddings, atol=0.05)
    assert not torch.equal(half.embeddings, full.embeddings)
