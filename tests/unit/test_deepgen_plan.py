"""What the planner knows of DeepGen: sizes, memory, and settings that do not go together."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from atelier.config.facts.deepgen import PUBLISHED_BRIDGE, Bridge, DeepGenFacts
from atelier.config.facts.known_deepgen import VLM_PARAMETERS
from atelier.config.facts.known_sd3 import PIPELINES
from atelier.config.facts.read import known_facts, read_model_facts
from atelier.config.memory.connector import connector_kept
from atelier.config.memory.estimate import estimate
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.data.captioned import captioned_table
from atelier.data.prompts import Prompt
from atelier.data.scenes import sample_scene, to_dict
from atelier.errors import PlanError
from atelier.policies.deepgen.connector import Bridge as Connecting
from atelier.policies.deepgen.connector import Shape
from atelier.policies.deepgen.policy import DeepGenPolicy
from atelier.policies.deepgen.vision import seen
from benchmarks.deepgen_shape import build_bridge, build_vlm
from tests.support import random_deepgen
from tests.support.runs import random_deepgen_model, untrained_pipeline

HUB = "deepgenteam/DeepGen-1.0-diffusers"


def configured(*overrides: str, path: str | None = None) -> RunConfig:
    own = ("policy.family=deepgen", f"policy.path={path or random_deepgen_model()}")
    return resolve("tiny/base", [*own, *overrides], Path(os.devnull))


def test_the_published_sizes_are_those_of_the_classes() -> None:
    with torch.device("meta"):
        vlm, bridge = build_vlm(), build_bridge()
    assert sum(one.numel() for one in vlm.parameters()) == VLM_PARAMETERS
    assert sum(one.numel() for one in bridge.parameters()) == PUBLISHED_BRIDGE
    assert bridge.meta_queries.numel() == Bridge().query_parameters
    facts = known_facts(configured("policy.resolution=512", path=HUB))
    assert isinstance(facts, DeepGenFacts)
    medium = PIPELINES["stabilityai/stable-diffusion-3.5-medium"]
    assert facts.parameters == medium.parameters
    assert facts.image_tokens == 1024
    assert facts.text_tokens == 128 + 128
    assert facts.text_parameters == VLM_PARAMETERS + PUBLISHED_BRIDGE


@pytest.mark.parametrize("part", ["dit", "dit_connector", "lora"])
def test_the_sizes_of_a_directory_are_those_of_the_model(part: str) -> None:
    torch.set_num_threads(1)
    config = configured(f"policy.trainable={part}", "policy.lora.rank=4")
    facts, policy = read_model_facts(config), DeepGenPolicy.load(config, "cpu")
    assert isinstance(facts, DeepGenFacts)
    trained = sum(one.numel() for one in policy.trainable().values())
    table = policy._base.pos_embed.pos_embed.numel()  # stored, and counted as if it were trained
    assert facts.trained(config) - (0 if part == "lora" else table) == trained
    model = random_deepgen.build()
    bridge = sum(one.numel() for one in model.bridge.parameters())
    assert facts.bridge.parameters == bridge
    assert facts.text_parameters == bridge + sum(one.numel() for one in model.vlm.parameters())
    conditions = policy._encoder.encode(["a red circle"])
    assert facts.text_width == conditions.tokens.shape[-1]
    assert facts.latent_values == policy.noise([1])[0, 0].numel()


def test_the_memory_of_the_published_recipe() -> None:
    """The transformer in float32 with AdamW, its reference, and prompts read before it is there."""
    settings = ("policy.resolution=512", "policy.dtype=bfloat16", "policy.text.dtype=bfloat16")
    config = configured(*settings, "algorithm.beta=5e-7", "algorithm.kl=velocity", path=HUB)
    facts = known_facts(config)
    memory = estimate(config, facts, images=32, actions=2, ranks=8)
    assert memory.held["base"] == memory.held["reference"] == 4 * facts.parameters
    reading = memory.at("prompts")
    assert reading == 2 * (VLM_PARAMETERS + PUBLISHED_BRIDGE)
    both = known_facts(configured(*settings, "policy.trainable=dit_connector", path=HUB))
    assert both.trained(config) == facts.parameters + PUBLISHED_BRIDGE - 128 * 2048
    assert both.condition_values > 2 * facts.condition_values, "hidden states are wider"


EDITS = (
    *("rollout.kind=edit", "data.scene_task=edit", "data.scene_kind=shapes"),
    *("evaluation.suite=editing", "rewards.ocr=null", "rewards.jpeg_compressibility.weight=1.0"),
)
STAYS = {
    "edits": EDITS,
    "maskless": ("policy.connector.padding=maskless",),
    "a small cache": ("policy.text.memory_gigabytes=0.001",),
}


@pytest.mark.parametrize("why", STAYS)
def test_the_language_model_is_counted_where_it_stays(why: str) -> None:
    settings = ("policy.text.dtype=bfloat16", "policy.text.disk_gigabytes=0")
    freed = plan(configured(*settings)).memory
    stays = plan(configured(*settings, *STAYS[why])).memory
    assert freed is not None
    assert stays is not None
    facts = read_model_facts(configured())
    assert isinstance(facts, DeepGenFacts)
    assert freed.held["text encoders"] == 0
    assert stays.held["text encoders"] == 2 * facts.text_parameters


def test_an_edit_has_tokens_of_its_image_twice() -> None:
    """The language model looks at it, and the transformer has its latents beside the noisy ones."""
    torch.set_num_threads(1)
    drawn, edits = (read_model_facts(configured(*one)) for one in ((), EDITS))
    assert isinstance(drawn, DeepGenFacts)
    assert isinstance(edits, DeepGenFacts)
    policy = DeepGenPolicy.load(configured(*EDITS), "cpu")
    scene = to_dict(sample_scene(random.Random(1), "shapes"))
    prompt = Prompt(0, 0, "a red circle", {"source_scene": scene})
    asked = policy.encode([prompt], 1.0)
    assert asked.references is not None
    tower = policy._encoder._reader.parts.vlm.config.vision_config
    (looked_at,) = seen([torch.zeros(3, policy.image_side, policy.image_side)], tower).tokens
    assert edits.text_tokens - drawn.text_tokens == looked_at
    (latents,) = asked.references[0]
    size = policy._base.config.patch_size
    behind = latents.shape[-1] * latents.shape[-2] // size**2
    assert edits.tokens - drawn.tokens == looked_at + behind
    assert edits.condition_values - edits.embedding_values == latents.numel()
    guided = read_model_facts(configured(*EDITS, "rollout.guidance_scale=3"))
    assert isinstance(guided, DeepGenFacts)
    assert guided.condition_values - edits.condition_values == edits.embedding_values


def test_a_cache_too_small_for_all_prompts_is_told() -> None:
    small = ("policy.text.memory_gigabytes=0.001", "data.train_prompts=300")
    (said,) = (one for one in plan(configured(*small)).warnings if "embeddings of" in one)
    assert said.startswith("policy.text.disk_gigabytes: embeddings of 557 prompts and captions")
    assert said.endswith("encode again; 1 holds all")
    sft = ("data.sft={source: scenes, scenes: 100}", "train.sft.coefficient=0.1")
    assert any("embeddings of 657 " in one for one in plan(configured(*small, *sft)).warnings)
    for enough in ("policy.text.disk_gigabytes=1", "policy.connector.padding=maskless"):
        told = plan(configured(*small, enough)).warnings
        assert not any("embeddings of" in one for one in told)


def test_the_recipe_keeps_what_it_encodes_and_shows_pictures_of_its_mixture() -> None:
    config = resolve("deepgen/mr-grpo", ["data.sft.scenes=30"], Path(os.devnull))
    recipe = plan(resolve("deepgen/mr-grpo", [], Path(os.devnull)))
    assert recipe.memory is not None
    assert recipe.memory.held["text encoders"] == 0
    assert not any("embeddings of" in one for one in recipe.warnings)
    pictures = captioned_table(config.data)
    assert pictures is not None
    scenes = [one.metadata["scene"] for one in pictures]
    assert all(one["word"] and one["objects"] for one in scenes)
    assert config.rollout.old_log_prob == "recompute", "which bfloat16 does not give back"


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_trained_connector_keeps_what_is_counted(checkpointing: bool) -> None:
    """Of the bytes that autograd saves; those of weights are none of its activations."""
    shape = Shape(states=96, queries=4, query_width=32, hidden_size=128, intermediate_size=700)
    shape = replace(shape, num_attention_heads=4, num_hidden_layers=4, tokens=64, pooled=32)
    bridge = Connecting(shape)
    bridge.connector.gradient_checkpointing = checkpointing
    rows, tokens = 2, 40
    weights = {one.untyped_storage().data_ptr() for one in bridge.parameters()}
    saved: dict[int, int] = {}

    def note(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = storage.nbytes()
        held.append(value)
        return value

    held: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        bridge(torch.randn(rows, tokens, shape.states))
    settings = ("policy.trainable=dit_connector", f"policy.gradient_checkpointing={checkpointing}")
    config = configured(*settings)
    facts = read_model_facts(config)
    assert isinstance(facts, DeepGenFacts)
    sizes = Bridge(
        parameters=0,
        states=shape.states,
        width=shape.hidden_size,
        feed_forward=shape.intermediate_size,
        layers=shape.num_hidden_layers,
        tokens=shape.tokens,
    )
    same = replace(facts, bridge=sizes, text_tokens=tokens)
    counted = connector_kept(config, same, rows)
    assert connector_kept(configured(), same, rows) == 0, "frozen"
    if checkpointing:
        assert sum(saved.values()) < counted / 2, "the rest is one layer's, while it is computed"
    else:
        assert counted == pytest.approx(sum(saved.values()), rel=0.25)


def test_buckets_are_those_of_the_tuning() -> None:
    sizes = []
    for tuning in ("general", "sd3"):
        zero = ("launch.engine=deepspeed", "launch.zero_stage=3", f"launch.zero_tuning={tuning}")
        config = configured("policy.resolution=512", *zero, path=HUB)
        memory = estimate(config, known_facts(config), images=8, actions=1, ranks=8)
        sizes.append(memory.held["buckets"])
    assert sizes == [8 * 50_000_000, 8 * 105_000_000]


def test_a_batch_of_one_prompt_has_no_padding_to_train_with() -> None:
    maskless = ("policy.connector.padding=maskless", "policy.text.memory_gigabytes=2")
    one = ("rollout.group_size=8", "rollout.micro_batch_size=8")
    told = plan(configured(*maskless, *one)).warnings
    assert any("padding: maskless, and a micro-batch of 8" in text for text in told)
    assert any(text.startswith("policy.text.memory_gigabytes: does nothing") for text in told)
    for fine in (("rollout.micro_batch_size=16",), ("rollout.guidance_scale=2",)):
        told = plan(configured(*maskless, *one, *fine)).warnings
        assert not any("maskless, and" in text for text in told)


def test_a_plan_of_a_tiny_one() -> None:
    made = plan(configured())
    assert not made.acts_by_tokens
    assert made.model_is_here
    assert made.trained_actions == 2
    assert configured("policy.trainable=full").policy.trainable == "dit"


def rejected(*overrides: str, path: str | None = None) -> str:
    with pytest.raises(PlanError) as caught:
        plan(configured(*overrides, path=path))
    return str(caught.value)


REJECTED: list[tuple[tuple[str, ...], str]] = [
    (("policy.bases.vlm=x",), "policy.bases: is for a file of weights"),
    (("rollout.kind=introspect",), "rollout.kind: introspect is for policy.family janus"),
    (("algorithm.surrogate=cispo",), "algorithm.surrogate: cispo is for token policies"),
    (("policy.base_dtype=bfloat16",), "with policy.trainable: dit everything is trained"),
    (
        ("policy.connector.padding=maskless", "policy.text.disk_gigabytes=1"),
        "policy.text.disk_gigabytes: with policy.connector.padding maskless",
    ),
    (
        (
            *("policy.connector.padding=maskless", "rollout.kind=edit", "data.scene_task=edit"),
            *("data.scene_kind=shapes", "evaluation.suite=editing", "rewards.ocr=null"),
            "rewards.jpeg_compressibility.weight=1.0",
        ),
        "policy.connector.padding: maskless is for prompts without images",
    ),
    (("policy.layout=x",), "policy.layout: is for policy.family janus"),
    (
        ("policy.trainable=lora", "policy.lora.target_modules=[q_proj]"),
        "q_proj names no linear layer of the transformer",
    ),
]


@pytest.mark.parametrize(("overrides", "message"), REJECTED)
def test_what_does_not_go_together_is_refused(overrides: tuple[str, ...], message: str) -> None:
    assert message in rejected(*overrides)


def test_a_file_of_weights_needs_what_it_was_trained_from(tmp_path: Path) -> None:
    file = tmp_path / "sft.pth"
    text = rejected(path=str(file))
    assert "policy.bases.vlm: " in text
    assert "policy.bases.pipeline: " in text
    base = random_deepgen_model()
    bases = (f"policy.bases.vlm={base}/vlm", f"policy.bases.pipeline={base}")
    assert f"policy.path: there is no file {file}" in rejected(*bases, path=str(file))
    torch.save({}, file)
    facts = read_model_facts(configured(*bases, path=str(file)))
    assert isinstance(facts, DeepGenFacts)
    assert facts.parameters == read_model_facts(configured()).parameters
    assert facts.bridge == Bridge(), "which no header says"
    missing = rejected(*bases, f"policy.bases.sft={tmp_path}/x.pth", path=str(file))
    assert "policy.bases.sft: there is no file" in missing


def test_files_of_weights_are_looked_at_before_they_are_loaded(tmp_path: Path) -> None:
    """Those of the guide: RL's safetensors, DeepSpeed's directory with a file's name."""
    base = random_deepgen_model()
    bases = (f"policy.bases.vlm={base}/vlm", f"policy.bases.pipeline={base}")
    folder = tmp_path / "checkpoint-50"
    folder.mkdir()
    file = folder / "model.safetensors"
    save_file({"transformer.a": torch.zeros(4)}, file)
    assert read_model_facts(configured(*bases, path=str(file))) is not None
    plan(configured(*bases, path=str(file)))
    assert f"name the file itself, {file}, and what it was" in rejected(path=str(folder))
    file.write_bytes(file.read_bytes()[:-4])
    assert "model.safetensors: is cut off" in rejected(*bases, path=str(file))
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"transformer.a": file.name}}))
    assert f"name the file itself, {index}, and what it was" in rejected(path=str(folder))
    assert "model.safetensors: is cut off" in rejected(*bases, path=str(index))
    index.write_text(json.dumps({"weight_map": {"transformer.a": "gone.safetensors"}}))
    assert "there is no file gone.safetensors beside it" in rejected(*bases, path=str(index))
    index.unlink()
    file.write_bytes(b"no header")
    sft = rejected(*bases, f"policy.bases.sft={file}", path=str(file))
    assert sft.count("not a safetensors file") == 2
    assert "policy.bases.sft: x is no file" in rejected(*bases, "policy.bases.sft=x", path="y.pth")
    shards = tmp_path / "iter_9.pth"
    shards.mkdir()
    assert (
        f"zero_to_fp32 {tmp_path} {tmp_path}/iter_9-whole --tag iter_9.pth --max_shard_size 100GB` "
        f"makes one of it: {tmp_path}/iter_9-whole/pytorch_model.bin"
    ) in rejected(*bases, path=str(shards))


def test_a_file_of_weights_has_no_revision(tmp_path: Path) -> None:
    base, file = random_deepgen_model(), tmp_path / "sft.pth"
    torch.save({}, file)
    bases = (f"policy.bases.vlm={base}/vlm", f"policy.bases.pipeline={base}")
    text = rejected(*bases, "policy.revision=main", path=str(file))
    assert text.count("policy.revision: ") == 1
    assert f"policy.revision: {file} is a file of weights, only a hub id has revisions" in text


def test_models_of_other_families_are_told(tmp_path: Path) -> None:
    assert "is a diffusers pipeline; set policy.family: sd3" in rejected(
        path=str(untrained_pipeline())
    )
    own = f"policy.path={random_deepgen_model()}"
    with pytest.raises(PlanError, match=r"is a DeepGen model; set policy\.family: deepgen"):
        plan(resolve("tiny/base", [own], Path(os.devnull)))
    assert "not a DeepGen model" in rejected(path=str(tmp_path))
    others = ["policy.trainable=dit"]
    with pytest.raises(PlanError, match=r"policy\.trainable: dit is for policy\.family deepgen"):
        plan(resolve("tiny/base", others, Path(os.devnull)))
