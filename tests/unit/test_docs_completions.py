"""docs/algorithms/grpo-on-completions.md: what it works out by hand is what the code computes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from atelier.algorithms.advantages import group_advantages
from atelier.algorithms.base import Advantages
from atelier.algorithms.policy_loss import clipped_policy_loss
from atelier.config.log_probs import clip_ranges
from atelier.config.paths import repository_root
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Part, Rollout, Sample
from atelier.policies.language.log_probs import TextForm, text_log_probs
from atelier.training.distributed import World
from atelier.training.loss_weights import loss_weights

PAGE = (repository_root() / "docs/algorithms/grpo-on-completions.md").read_text(encoding="utf-8")
EXAMPLE = PAGE.partition("## By hand\n")[2].partition("\n## ")[0]
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in EXAMPLE.splitlines()
    if re.match(r"\| [ABC] ", line)
]
GROUP, CLIPPED = ROWS[:3], ROWS[3:]
LONGEST = 6
SOMEBODY = Sample(0, 0, Prompt(0, 0, "a"))
NO_IMAGES = np.zeros((3, 1, 1, 3), np.uint8)
MMMG, EDITS = (
    resolve(recipe, [], Path(os.devnull))
    for recipe in ("qwen-image/mmmg-lora", "qwen-image-edit/complex-edit-lora")
)


def test_a_token() -> None:
    for temperature, shown in ((1.0, "-0.408"), (0.5, "-0.143")):
        logits, drawn = torch.tensor([[[2.0, 1.0, 0.0]]]), torch.tensor([[0]])
        found = text_log_probs(logits, drawn, TextForm(temperature))
        assert f"{float(found):.3f}" == shown
        assert shown in EXAMPLE


@pytest.mark.parametrize(
    ("config", "column", "weight", "loss"),
    [(MMMG, 3, "0.111", "0.111"), (EDITS, 4, "0.056", "0.022")],
)
def test_a_group_and_what_its_tokens_weigh(
    config: RunConfig, column: int, weight: str, loss: str
) -> None:
    one = config.algorithm
    rewards = torch.tensor([float(row[1]) for row in GROUP])
    everyone = torch.ones(3, dtype=torch.bool)
    how = one.advantage_std, one.advantage_trim, one.advantage_ddof
    values = group_advantages(rewards, torch.zeros(3, dtype=torch.long), everyone, *how)
    assert [float(row[column]) for row in GROUP] == pytest.approx(values.tolist(), abs=5e-4)

    mask = torch.tensor([[at < int(row[2]) for at in range(LONGEST)] for row in GROUP])
    rollout = Rollout([SOMEBODY] * 3, LONGEST, None, NO_IMAGES, {}, longest=(LONGEST,), mask=mask)
    rows = torch.arange(3)
    kept = [Advantages(values[:, None], everyone)]
    weights = loss_weights(one.loss_mean, kept, [rollout], [rows], World(0, 1, torch.device("cpu")))
    each = weights.of(rollout, rows, Part(slice(0, LONGEST)))
    assert {f"{value:.3f}" for value in each[mask].tolist()} == {weight}
    assert f"{float((each * -values[:, None]).sum()):.3f}" == loss
    assert weight in EXAMPLE
    assert f"= {loss}" in EXAMPLE


def test_the_clip() -> None:
    assert len(CLIPPED) == 4
    for _, drawn, now, ratio, advantage, shown, gradient in CLIPPED:
        log_prob = torch.tensor([[float(now)]], requires_grad=True)
        old, value = torch.tensor([[float(drawn)]]), torch.tensor([[float(advantage)]])
        found = clipped_policy_loss(log_prob, old, value, *clip_ranges(MMMG))
        found.loss.sum().backward()
        assert f"{float(found.log_ratio.exp()):.3f}" == ratio
        assert f"{found.loss.item():.3f}" == shown
        pushed = float(log_prob.grad)
        assert gradient.partition(":")[0] == (
            "none" if not pushed else "makes it likelier" if pushed < 0 else "makes it rarer"
        )
