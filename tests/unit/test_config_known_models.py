"""Sizes of models that are not on this machine, and what makes a run fit a GPU."""

import math
import os
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from atelier.cli.application import application
from atelier.config.facts.known_sd3 import PIPELINES
from atelier.config.facts.read import known_facts
from atelier.config.memory.estimate import estimate
from atelier.config.memory_advice import GIBIBYTE, fitting
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.errors import PlanError
from benchmarks.sd3_shape import Shape, build_transformer, build_vae

MEDIUM = "stabilityai/stable-diffusion-3.5-medium"
ONE_GPU = "sd35m/flow-grpo-fast-1gpu"


def configured(*overrides: str, recipe: str = ONE_GPU) -> RunConfig:
    return resolve(recipe, overrides, Path(os.devnull))


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


def test_the_adapter_follows_the_configuration() -> None:
    facts = known_facts(configured())
    other = known_facts(configured("policy.lora.rank=8", "policy.lora.target_modules=[attn2.to_q]"))
    assert facts is not None
    assert other is not None
    assert facts.adapter_parameters == 191 * 32 * 2 * 1536  # the published 18.8 M
    assert other.adapter_parameters == 13 * 8 * 2 * 1536
    assert known_facts(configured("policy.path=organisation/model")) is None


@pytest.mark.parametrize(
    ("overrides", "phase", "measured", "apart"),
    [  # benchmarks/README.md, "Memory of SD3.5-Medium's shape"
        ([], "replay", 23.4, 0.01),
        ([], "rollout", 13.3, 0.02),
        ([], "update", 5.4, 0.03),
        ([], "prompts", 12.3, 0.17),
        (["policy.base_dtype=float32"], "replay", 30.7, 0.07),
        (
            ["policy.base_dtype=float32", "policy.gradient_checkpointing=true"],
            "replay",
            11.6,
            0.02,
        ),
    ],
)
def test_the_estimate_is_near_what_was_measured(
    overrides: list[str], phase: str, measured: float, apart: float
) -> None:
    config = configured(*overrides)
    facts = known_facts(config)
    assert facts is not None
    actions = plan(config).trained_actions
    found = estimate(config, facts, config.rollout.micro_batch_size, actions, ranks=1).at(phase)
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
        "  fits with   --set policy.gradient_checkpointing=true: 18.3 GiB",
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
