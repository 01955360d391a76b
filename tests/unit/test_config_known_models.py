"""Sizes of models that are not on this machine, and what makes a run fit a GPU."""

import math
import os
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.facts.janus import IMAGE_TOKENIZER, VISION, JanusFacts
from atelier.config.facts.known_janus import CONVERTED, MODELS, own_tensors
from atelier.config.facts.known_sd3 import PIPELINES
from atelier.config.facts.read import known_facts
from atelier.config.memory.estimate import estimate
from atelier.config.memory_advice import GIBIBYTE, fitting
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.errors import PlanError
from atelier.policies.janus.tiny import build_tokenizer
from benchmarks.janus_shape import JANUS_SHAPES, build_janus
from benchmarks.sd3_shape import Shape, build_transformer, build_vae

MEDIUM = "stabilityai/stable-diffusion-3.5-medium"
ONE_GPU = "sd35m/flow-grpo-fast-1gpu"


def configured(*overrides: str, recipe: str = ONE_GPU) -> RunConfig:
    return resolve(recipe, overrides, Path(os.devnull))


def test_fewer_held_out_images_together_may_make_it_fit() -> None:
    many = "evaluation.micro_batch_size=512", "evaluation.periodic_prompts=512"
    lines = fitting(configured(*many), 40)
    assert lines[0].startswith("does not fit 40 GiB")
    assert any("fits with   --set evaluation.micro_batch_size=" in line for line in lines), lines


def test_the_sizes_are_those_of_the_classes() -> None:
    with torch.device("meta"):
        transformer, vae = build_transformer(Shape()), build_vae(Shape())
    known = PIPELINES[MEDIUM]
    stored = transformer.state_dict().values()
    assert known.parameters == sum(tensor.numel() for tensor in stored)
    assert known.vae_parameters == sum(tensor.numel() for tensor in vae.parameters())
    linear = Counter(
        (re.sub(r"^transformer_blocks\.\d+\.", "", name), tuple(module.weight.shape))
        for name, module in transformer.named_modules()
        if isinstance(module, torch.nn.Linear)
    )
    assert {(name, shape): blocks for name, shape, blocks in known.linear} == dict(linear)


@pytest.mark.parametrize(
    ("hub_id", "shape"),
    [("deepseek-community/Janus-Pro-1B", "1b"), ("deepseek-community/Janus-Pro-7B", "7b")],
)
def test_the_sizes_of_janus_are_those_of_the_class(hub_id: str, shape: str) -> None:
    with torch.device("meta"):
        model = build_janus(JANUS_SHAPES[shape], build_tokenizer())
    tensors = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    frozen = {name for name in tensors if name.startswith((*VISION, IMAGE_TOKENIZER))}
    own = {name: one.shape for name, one in own_tensors(MODELS[hub_id]).items()}
    assert own == {name: tensor for name, tensor in tensors.items() if name not in frozen}
    facts = known_facts(configured(f"policy.path={hub_id}", recipe="janus-pro-1b/grpo"))
    assert isinstance(facts, JanusFacts)
    seeing = [name for name in frozen if name.startswith(VISION)]
    assert facts.images.vision_parameters == sum(math.prod(tensors[name]) for name in seeing)
    decoding = frozen.difference(seeing)
    assert facts.images.tokenizer_parameters == sum(math.prod(tensors[name]) for name in decoding)
    assert (facts.images.tokens, facts.images.pixels) == (576, 384 * 384)
    assert facts.images.channels == model.model.vqmodel.decoder.conv_out.in_channels


def test_janus_in_its_original_layout_is_refused_with_its_twin() -> None:
    assert set(CONVERTED.values()) == set(MODELS)
    for original, converted in CONVERTED.items():
        settings = configured(f"policy.path={original}", recipe="janus-pro-1b/grpo")
        with pytest.raises(PlanError, match=rf"policy\.path: {original}: is in .* use {converted}"):
            plan(settings)


def test_the_plan_of_janus_in_words() -> None:
    def said(*words: str) -> str:
        arguments = ["plan", "--params", os.devnull, *words]
        return CliRunner().invoke(application, arguments).output

    drawn = said("--recipe", "janus-pro-1b/grpo")
    assert re.search(r"trained actions +576  of each image: its tokens", drawn)
    assert "token steps, rollout" in drawn
    assert "over one row with all its tokens" in drawn
    assert "sizes of the published model; not on this machine" in drawn
    assert "prompts  " not in drawn.partition("memory a process")[2], "no text encoders"
    judged = said("--recipe", "janus-pro-1b/introspective-v1")
    assert re.search(r"samples a step +64  x 8 samples a prompt", judged)
    assert re.search(r"images a sample +2  at most", judged)
    assert re.search(r"trained actions +1,232  of each sample: tokens of images, and of", judged)


def test_a_janus_that_nobody_knows_is_taken_for_a_published_one() -> None:
    settings = configured("policy.path=organisation/model", recipe="janus-pro-1b/grpo")
    made = plan(settings)
    assert made.trained_actions == 576
    (warning,) = [text for text in made.warnings if text.startswith("policy.path")]
    assert "memory unknown, and 576 tokens an image assumed" in warning


def test_what_makes_janus_fit() -> None:
    lines = fitting(configured(recipe="janus-pro-1b/pair-grpo"), 30)
    assert lines[0].startswith("does not fit 30 GiB")
    assert not [line for line in lines if "policy.vae" in line or "policy.text" in line]
    lora = configured("policy.trainable=lora", recipe="janus-pro-1b/pair-grpo")
    assert any("policy.base_dtype=bfloat16" in line for line in fitting(lora, 16))


def test_an_adapter_is_the_last_way_to_make_full_training_fit() -> None:
    config = configured(recipe="janus-pro-7b/pair-grpo")
    lines = fitting(config, 80)
    (line,) = [one for one in lines if "fits with" in one]
    assert "--set policy.trainable=lora: " in line
    assert "an adapter is trained" in line
    assert not any("nothing that the plan knows" in one for one in lines)
    again = fitting(configured("policy.trainable=lora", recipe="janus-pro-7b/pair-grpo"), 80)
    assert again[0].startswith("fits 80 GiB")
    roomy = fitting(configured(recipe="sd35m/nft"), 20)
    assert not any("policy.trainable" in one for one in roomy), "an adapter stays one"


def test_what_a_judge_takes_of_the_same_gpu_is_not_there_for_training() -> None:
    shared = fitting(configured(recipe="janus-pro-1b/grpo"), 80)
    assert shared[0].startswith("fits 80 GiB")
    assert shared[0].endswith("beside servers that take 24.0 GiB of the same GPU")
    assert fitting(configured(recipe="janus-pro-1b/grpo"), 50)[0].startswith("does not fit 50 GiB")
    away = ("server: {share_gpus: false}", "placement: remote, urls: [http://h:1/v1]")
    judge = f"judges.internvl={{{', '.join(away)}}}"
    alone = fitting(configured(judge, recipe="janus-pro-1b/grpo"), 50)
    assert alone[0].startswith("fits 50 GiB")
    assert "beside servers" not in alone[0]
    asleep = configured("judges.internvl.vllm.sleep=true", recipe="janus-pro-1b/grpo")
    assert fitting(asleep, 50)[0].startswith("fits 50 GiB")


def test_the_adapter_follows_the_configuration() -> None:
    facts = known_facts(configured())
    other = known_facts(configured("policy.lora.rank=8", "policy.lora.target_modules=[attn2.to_q]"))
    assert facts is not None
    assert other is not None
    assert facts.adapter_parameters == 191 * 32 * 2 * 1536  # the published 18.8 M
    assert other.adapter_parameters == 13 * 8 * 2 * 1536
    assert known_facts(configured("policy.path=organisation/model")) is None


FAST = ("policy.transformer=fast", "rollout.group_size=24", "train.prompts_per_step=2")


@pytest.mark.parametrize(
    ("overrides", "phase", "measured", "apart"),
    [  # benchmarks/README.md, "Memory of SD3.5-Medium's shape"
        ([], "replay", 23.4, 0.01),
        ([], "rollout", 13.3, 0.02),
        ([], "update", 5.4, 0.04),  # by an AdamW that made copies
        ([], "prompts", 12.3, 0.17),
        (["policy.base_dtype=float32"], "replay", 30.7, 0.07),
        (
            ["policy.base_dtype=float32", "policy.gradient_checkpointing=true"],
            "replay",
            11.6,
            0.02,
        ),
        # "How fast", and a whole step there
        ([*FAST, "rollout.micro_batch_size=24"], "replay", 37.2, 0.02),
    ],
)
def test_the_estimate_is_near_what_was_measured(
    overrides: list[str], phase: str, measured: float, apart: float
) -> None:
    """Of a micro-batch by itself: the benchmark keeps no average, and its own embeddings alone."""
    config = configured("policy.vae.dtype=float32", *overrides)
    facts = known_facts(config)
    assert facts is not None
    actions = plan(config).trained_actions
    memory = estimate(config, facts, config.rollout.micro_batch_size, actions, ranks=1)
    own = 4 * config.rollout.micro_batch_size * facts.condition_values
    held = {**memory.held, "embeddings": own, "moving average": 0}
    found = replace(memory, held=held).at(phase)
    assert math.isclose(found / GIBIBYTE, measured, rel_tol=apart)


def test_a_whole_step_peaks_where_it_was_measured() -> None:
    memory = plan(configured()).memory
    assert memory is not None
    assert round(memory.peak / GIBIBYTE, 1) == 23.7


def test_the_plan_says_whose_sizes_they_are() -> None:
    said = CliRunner().invoke(application, ["plan", "--recipe", ONE_GPU, "--params", os.devnull])
    assert "~23.7 GiB" in said.output
    assert "sizes of the published model; not on this machine" in said.output
    assert "unknown" not in said.output
    assert "published" not in CliRunner().invoke(application, ["plan"]).output


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("policy.lora.target_modules=[nowhere]", "nowhere names no module of the transformer"),
        ("policy.resolution=500", "a multiple of 16"),
    ],
)
def test_a_known_model_refuses_what_it_has_no_place_for(override: str, text: str) -> None:
    with pytest.raises(PlanError, match=text):
        plan(configured(override))


def test_a_known_model_may_have_a_revision() -> None:
    assert plan(configured("policy.revision=main")).memory is not None


def test_it_fits() -> None:
    (line,) = fitting(configured(), 40)
    assert line.startswith("fits 40 GiB: the peak of 23.7 GiB, with 10 %")


def test_what_makes_it_fit_comes_cheapest_first() -> None:
    lines = fitting(configured("policy.base_dtype=float32"), 28)
    assert lines[0].startswith("does not fit 28 GiB")
    assert lines[1:] == [
        "  fits with   --set policy.base_dtype=bfloat16: 23.7 GiB",
        "  fits with   --set rollout.micro_batch_size=4: 23.8 GiB",
        "  fits with   --set policy.gradient_checkpointing=true: 14.2 GiB",
    ]


def test_several_settings_where_one_is_not_enough() -> None:
    lines = fitting(configured("policy.base_dtype=float32", recipe="sd35m/flow-grpo"), 12)
    fits = [line for line in lines if "fits with" in line]
    assert len(fits) == 1
    assert fits[0].count("--set") > 1
    assert sum("rollout.micro_batch_size" in line for line in lines) == 2
    typed = re.findall(r"--set (\S+[^:\s])", fits[0])
    again = fitting(configured("policy.base_dtype=float32", *typed, recipe="sd35m/flow-grpo"), 12)
    assert again[0].startswith("fits 12 GiB")


def test_where_nothing_makes_it_fit() -> None:
    assert fitting(configured(), 4)[-1].startswith("nothing that the plan knows")
    unknown = fitting(configured("policy.path=organisation/model"), 4)
    assert unknown == [
        "cannot say whether it fits: the model is not here, and its sizes are not known"
    ]
