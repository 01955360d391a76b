"""The estimate of Janus' memory: what a layer keeps is counted, the rest follows from settings."""

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from transformers import LlamaConfig, StaticCache
from transformers.models.llama.modeling_llama import LlamaModel

from atelier.config.facts.janus import JanusFacts
from atelier.config.facts.read import known_facts
from atelier.config.memory.estimate import Memory, estimate
from atelier.config.memory.janus import CODED_TOGETHER
from atelier.config.memory.llama import LanguageModel
from atelier.config.memory.parts import made_together
from atelier.config.memory.replay import LOGITS_CHUNK
from atelier.config.memory.sequences import PROMPT_TOKENS, longest_sequences
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.space import checkpoint_bytes, run_bytes
from atelier.config.work import work
from atelier.policies.janus.module import JanusModule
from atelier.policies.janus.pixels import BATCH

WIDTH, INNER, ROWS, LENGTH = 128, 352, 2, 160
MODEL = LanguageModel(WIDTH, INNER, WIDTH, 1, computed=4, held=4, adapted=False)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def llama(layers: int, held: torch.dtype, adapted: bool) -> LlamaModel:
    config = LlamaConfig(
        vocab_size=8,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=2,
    )
    model = LlamaModel._from_config(config, attn_implementation="sdpa").to(held)
    if adapted:
        model.requires_grad_(False)
        settings = LoraConfig(r=1, lora_alpha=1, target_modules=list(PROJECTIONS))
        inject_adapter_in_model(settings, model)
        for parameter in model.parameters():
            parameter.data = parameter.data.float() if parameter.requires_grad else parameter.data
    return model


def kept_bytes(model: LlamaModel, held: torch.dtype, autocast: bool) -> int:
    """Bytes that autograd keeps of padded rows, weights and their 16-bit copies aside."""
    weights = {one.untyped_storage().data_ptr() for one in model.parameters()}
    shapes = {one.shape for one in model.parameters() if one.dim() == 2}
    kept: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        is_copy = tensor.dim() == 2 and {tensor.shape, tensor.t().shape} & shapes
        if tensor.untyped_storage().data_ptr() not in weights and not is_copy:
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    mask = torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril().repeat(ROWS, 1, 1, 1)
    embeddings = torch.randn(ROWS, LENGTH, WIDTH, dtype=held).requires_grad_()
    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        model(inputs_embeds=embeddings, attention_mask=mask, use_cache=False)
    return sum(one.untyped_storage().nbytes() for one in kept.values())


@pytest.mark.parametrize(
    ("held", "autocast", "adapted"),
    [
        (torch.float32, False, False),
        (torch.float32, True, False),
        (torch.float32, True, True),
        (torch.bfloat16, True, True),
        (torch.float32, False, True),
    ],
)
def test_a_layer_keeps_what_is_counted(held: torch.dtype, autocast: bool, adapted: bool) -> None:
    one, three = (kept_bytes(llama(count, held, adapted), held, autocast) for count in (1, 3))
    computes = replace(MODEL, computed=2 if autocast else 4, held=held.itemsize, adapted=adapted)
    predicted = computes.layer_kept(ROWS * LENGTH, LENGTH)
    assert (three - one) / 2 == pytest.approx(predicted, rel=0.02)


def test_a_cache_is_as_large_as_transformers_makes_it() -> None:
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2)
    cache = StaticCache(config=config, max_cache_len=10)
    cache.early_initialization(3, 2, 16, torch.bfloat16, torch.device("cpu"))
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    model = LanguageModel(64, 1, 32, config.num_hidden_layers, 2, 4, adapted=False)
    assert model.keys_and_values(3 * 10, growing=False) == held
    assert model.keys_and_values(3 * 10, growing=True) == held * (4 + 2) / 4


# Settings ----------------------------------------------------------------------------------------


def configured(*overrides: str) -> RunConfig:
    return resolve("janus-pro-1b/grpo", overrides, Path(os.devnull))


def facts_of(config: RunConfig) -> JanusFacts:
    facts = known_facts(config)
    assert isinstance(facts, JanusFacts)
    return facts


def memory_of(*overrides: str, ranks: int = 1) -> Memory:
    config = configured(*overrides)
    facts = facts_of(config)
    return estimate(config, facts, 56, work(config, facts).actions, ranks)


def total(sizes: Mapping[str, int]) -> int:
    return sum(sizes.values())


def test_rows_are_as_long_as_what_comes_before() -> None:
    def lengths(*overrides: str) -> list[tuple[int, int, int]]:
        config = configured(*overrides)
        found = longest_sequences(config, facts_of(config), made_together(config)["rollout"])
        return [(one.rows, one.context, one.new) for one in found]

    assert lengths() == [(28, PROMPT_TOKENS, 576)]
    assert lengths("rollout.guidance_scale=1") == [(14, PROMPT_TOKENS, 576)]
    ((_, source, _),) = lengths("rollout.kind=edit")
    assert source == PROMPT_TOKENS + 576 + 8 + len(" Draw the edited image.") // 3
    two = lengths("rollout.kind=introspect")
    three = lengths("rollout.kind=introspect", "rollout.introspection.rounds=3")
    assert [rows for rows, _, _ in two] == [28, 14], "answers have no unconditional row"
    assert two[0][1] - two[1][1] == 80 + len("Draw another image.") // 3
    assert three[0][1] - two[0][1] == two[0][1] - PROMPT_TOKENS
    assert two[1][2] == 80


def test_what_is_held_in_which_dtype() -> None:
    facts = facts_of(configured())
    full = memory_of().held
    lora = memory_of("policy.trainable=lora", "policy.base_dtype=bfloat16").held
    assert full["base"] == full["reference"] == 4 * facts.parameters
    assert full["gradients"] == 4 * (facts.parameters - 102_400 * 2048)
    assert full["image tokenizer"] == lora["image tokenizer"] == 4 * 71_883_403
    assert full["vision tower"] == 2 * lora["vision tower"] == 4 * (303_688_704 + 6_295_552)
    assert (lora["base"], lora["reference"]) == (2 * facts.parameters, 0)
    assert lora["optimizer"] == 8 * facts.adapter_parameters
    assert full["experience"] == 56 * 576 * 12


def test_zero_2_shares_gradients_and_optimizer() -> None:
    facts = facts_of(configured())
    trained = facts.trained(configured())
    shared = memory_of("launch.engine=deepspeed", ranks=2).held
    assert shared["gradients"] == 4 * (trained // 2)
    assert shared["optimizer"] == 12 * (trained // 2)
    assert memory_of(ranks=2).held["buckets"] == 4 * trained


def test_a_rollout_holds_keys_and_values_of_both_rows() -> None:
    row = (PROMPT_TOKENS + 576 - 1) * 24 * 2 * 2048 * 2
    name = "keys and values"
    assert memory_of().phases["rollout"][name] == 28 * row
    plain = memory_of("rollout.guidance_scale=1", "rollout.micro_batch_size=28")
    assert plain.phases["rollout"][name] == 28 * row
    growing = memory_of("rollout.tokens.execution=dynamic").phases["rollout"]
    assert growing == {
        "16-bit copies": memory_of().phases["rollout"]["16-bit copies"],
        name: 28 * row * 3 // 2,  # keys in 32 bits
        "logits": 14 * 16_384 * 48,
    }
    compiled = memory_of("rollout.tokens.execution=compile", "train.evaluate_every=0")
    assert compiled.held[name] == 28 * row
    assert compiled.phases["rollout"].get(name, 0) == 0


def test_held_out_images_hold_keys_and_values_of_theirs() -> None:
    row = (PROMPT_TOKENS + 576 - 1) * 24 * 2 * 2048 * 2
    name, own = "keys and values", ["evaluation.micro_batch_size=40", "train.evaluate_every=1"]
    plain = [*own, "evaluation.guidance_scale=1"]
    assert memory_of(*plain).phases["evaluation"][name] == 40 * row
    assert memory_of(*own).phases["evaluation"][name] == 80 * row
    adapter = ["policy.trainable=lora", "policy.base_dtype=bfloat16"]
    few = memory_of(*plain, *adapter, "evaluation.periodic_prompts=4")
    assert few.phases["evaluation"] == {"coding of images": 4 * 4 * 384 * 384 * 128 * 4}
    assert "evaluation" not in memory_of("train.evaluate_every=0").phases
    compiled = "rollout.tokens.execution=compile"
    assert memory_of(*own, compiled).held[name] == (28 + 80) * row, "a decoder of each shape"
    same = ["evaluation.micro_batch_size=14", "evaluation.guidance_scale=2"]
    assert memory_of(*own, *same, compiled).held[name] == 28 * row


def test_the_image_tokenizer_may_be_what_a_rollout_needs_most() -> None:
    one_row = ["rollout.guidance_scale=1", "policy.trainable=lora", "policy.base_dtype=bfloat16"]
    drawn = memory_of(*one_row).phases["rollout"]
    assert drawn == {"coding of images": 4 * 14 * 384 * 384 * 128 * 4}
    edited = memory_of(*one_row, "rollout.kind=edit").phases["rollout"]
    assert edited == {"coding of images": 6 * 14 * 384 * 384 * 128 * 4}
    truth = memory_of(*one_row, "algorithm.ground_truth.enabled=true").phases["rollout"]
    assert truth == edited


def test_what_makes_a_replay_smaller_or_larger() -> None:
    def replay(*overrides: str) -> int:
        return total(memory_of(*overrides).phases["replay"])

    whole = "policy.gradient_checkpointing=false"
    assert replay() < replay(whole) / 3
    assert replay(whole, "rollout.tokens.log_prob=conditional") < 0.6 * replay(whole)
    assert replay(whole, "policy.dtype=float32") > 1.3 * replay(whole)
    told = [replay(f"rollout.kind={kind}") for kind in ("draw", "edit", "introspect")]
    assert all(shorter < longer for shorter, longer in pairwise(told))
    # A few rows take less than the gradient of the text's table.
    few = memory_of("rollout.micro_batch_size=1", "policy.dtype=float32").phases["replay"]
    assert few == {"gradient of the text's table": 4 * 102_400 * 2048}


def test_seen_images_are_experience() -> None:
    seen = memory_of("rollout.kind=introspect").held["experience"]
    assert seen == 56 * (12 * (2 * 576 + 80) + 3 * 576 * 2048 * 4)
    ahead = memory_of("rollout.kind=introspect", "train.one_step_off=true").held["experience"]
    assert ahead == 2 * seen


def test_stored_samples_take_space() -> None:
    config = configured("train.one_step_off=true", "train.in_flight=store")
    drained = configured("train.one_step_off=true")
    facts = facts_of(config)
    stored = checkpoint_bytes(config, facts) - checkpoint_bytes(drained, facts)
    assert stored == 56 * 576 * (8 + 4)


def test_an_export_is_in_one_dtype() -> None:
    config = configured("export.dtype=bfloat16")
    facts = facts_of(config)
    export = run_bytes(config, facts) - 3 * checkpoint_bytes(config, facts)
    assert export == 2 * 2_076_636_811  # parameters of Janus-Pro-1B


def test_constants_are_those_of_the_policy() -> None:
    """The planner imports no torch, so it has them twice."""
    chunk = inspect.signature(JanusModule.__init__).parameters["logits_chunk"].default
    assert chunk == LOGITS_CHUNK
    assert BATCH == CODED_TOGETHER
