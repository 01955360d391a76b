"""What the planner says of Janus, beside what the policy does: a small one of the real class."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from atelier.config.facts.janus import JanusFacts
from atelier.config.facts.read import read_model_facts
from atelier.config.memory.janus import packed_bytes
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.work import work
from atelier.policies.base import Sample
from atelier.policies.janus.policy import JanusPolicy
from benchmarks.janus_shape import JANUS_SHAPES, write_janus
from benchmarks.memory import janus_prompt

ROOT = Path(__file__).parents[2]
ADAPTER = ["policy.trainable=lora", "policy.lora.rank=4"]
SAMPLES = [Sample(index, 0, janus_prompt(index, 5)) for index in range(2)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("janus")
    write_janus(JANUS_SHAPES["small"], root)
    return root


def loaded(folder: Path, *overrides: str) -> tuple[JanusPolicy, RunConfig, JanusFacts]:
    settings = [
        "launch.device=cpu",
        "rollout.tokens.execution=eager",
        "rollout.introspection.answer_tokens=6",
        *overrides,
    ]
    config = resolve("janus-pro-1b/grpo", [f"policy.path={folder}", *settings])
    facts = read_model_facts(config)
    assert isinstance(facts, JanusFacts)
    return JanusPolicy.load(config, torch.device("cpu")), config, facts


@pytest.mark.parametrize("settings", [[], ["rollout.kind=introspect"], ADAPTER])
def test_as_many_parameters_are_trained_as_the_plan_says(settings: list[str], folder: Path) -> None:
    policy, config, facts = loaded(folder, *settings)
    assert sum(one.numel() for one in policy.trainable().values()) == facts.trained(config)


@pytest.mark.parametrize("kind", ["draw", "edit", "introspect"])
def test_a_sample_costs_what_the_plan_says(kind: str, folder: Path) -> None:
    policy, config, facts = loaded(
        folder, f"rollout.kind={kind}", "rollout.introspection.version=v3"
    )
    each = work(config, facts)
    policy.begin_step(1)
    rollout = policy.rollout(policy.module, SAMPLES)
    assert each.actions - 5 <= rollout.actions <= each.actions  # an answer may be shorter
    images = rollout.drawings.images.shape[1] if rollout.drawings else 1
    assert each.images == images
    assert each.replay == len(list(policy.parts(rollout))) + each.images  # which have two rows
    packed = sum(one.numel() * one.element_size() for one in policy.pack(rollout).values())
    expected = packed_bytes(config, facts, each.actions) * len(SAMPLES)
    assert math.isclose(packed, expected, rel_tol=0.03)


def test_memory_is_near_what_is_counted(folder: Path) -> None:
    """Of a model so small that the gradients, which no rollout has, are a tenth of it.

    In a process of its own: every tensor that is alive is counted, those of other tests too.
    """
    command = [sys.executable, "-m", "benchmarks.memory", "--family", "janus"]
    settings = ["launch={device: cpu, threads: 1}", "rollout.micro_batch_size=2"]
    settings += ["rollout.tokens.execution=eager", "evaluation.micro_batch_size=4"]
    settings += ["rollout.kind=introspect", "rollout.introspection.answer_tokens=6"]
    words = [word for one in settings for word in ("--set", one)]
    printed = subprocess.run(
        [*command, "--folder", folder, *words], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    rows = [line.split() for line in printed.splitlines()[1:5]]
    ratios = {phase: float(ratio) for phase, _, _, ratio in rows}
    assert set(ratios) == {"rollout", "evaluation", "replay", "update"}
    assert all(0.75 < ratio < 1.05 for ratio in ratios.values()), ratios
