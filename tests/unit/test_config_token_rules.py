"""Settings of token policies that cannot work, each refused with its key and what to do."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.errors import ConfigError, PlanError
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.rewards.unit_range import require_unit_range

GRPO, PAIR, V1, EDIT = (
    f"janus-pro-1b/{name}" for name in ("grpo", "pair-grpo", "introspective-v1", "edit")
)
REFUSED = [
    (GRPO, ["algorithm.name=nft"], "algorithm.name: nft is for policy.family sd3"),
    (GRPO, ["algorithm.kl=velocity"], "algorithm.kl: velocity is for policy.family sd3"),
    (GRPO, ["algorithm.kl_placement=reward"], "algorithm.kl_placement: the KL of tokens"),
    (GRPO, ["policy.resolution=384"], "policy.resolution: janus draws images of one size"),
    (GRPO, ["launch.device=cpu"], "rollout.tokens.execution: cuda_graph is for GPUs"),
    (GRPO, ["policy.path=somewhere/model.pth"], "policy.layout: somewhere/model.pth holds"),
    (GRPO, ["launch.engine=deepspeed", "launch.zero_stage=3"], "launch.zero_stage: 3 would gather"),
    (GRPO, ["rollout.kind=edit"], "rollout.kind: edit needs training prompts that are edits"),
    (GRPO, ["algorithm.advantage_over=pair"], "algorithm.advantage_over: needs pairs"),
    (GRPO, ["algorithm.ground_truth.enabled=true"], "algorithm.ground_truth.enabled: needs pairs"),
    (GRPO, ["train.steps=200"], "train.schedule.convert_updates: 300 is not before the last"),
    (GRPO, ["train.schedule.warm_up_updates=400"], "train.schedule.convert_updates: is not before"),
    (PAIR, ["rollout.group_size=3", "rollout.micro_batch_size=3"], "rollout.group_size: 3, of wh"),
    (PAIR, ["algorithm.ground_truth.low_updates=2000"], "algorithm.ground_truth.low_updates: lies"),
    (PAIR, ["algorithm.ground_truth.start=0.1"], "algorithm.ground_truth.low: is at most start"),
    (PAIR, ["train.prompts_per_step=7"], "train.prompts_per_step: 7 must be even"),
    (V1, ["rewards.yes_no.weight=2"], "rollout.kind: introspect rewards an answer by"),
    (V1, ["rewards.yes_no.weight=-1"], "rollout.kind: introspect rewards an answer by"),
    (V1, ["algorithm.advantage_from=gdpo"], "algorithm.advantage_from: gdpo: rewards of answers"),
    (V1, ["train.resample_rounds=1"], "train.resample_rounds: other prompts"),
    (
        V1,
        ["rollout.introspection.version=v2", "rollout.old_log_prob=rollout"],
        "rollout.old_log_prob: v2 trains on accepted images",
    ),
    (EDIT, ["rollout.kind=draw"], "data.scene_task: its prompts ask for changes of images"),
    (EDIT, ["data.scene_pairs=0.5"], "data.scene_pairs: edits do not come in pairs"),
    ("tiny/flow-grpo-fast", ["rollout.kind=introspect"], "rollout.kind: introspect is for"),
    ("tiny/flow-grpo-fast", ["policy.layout=x/y"], "policy.layout: is for policy.family janus"),
]


@pytest.mark.parametrize(("recipe", "overrides", "reason"), REFUSED)
def test_what_cannot_work_is_refused(recipe: str, overrides: list[str], reason: str) -> None:
    with pytest.raises((PlanError, ConfigError)) as caught:
        plan(resolve(recipe, overrides))
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("def mine(images, prompts, metadata):\n    return [0.5] * len(images)\n", True),
        (
            "from atelier.rewards import reward\n@reward(value_range=(0, 1))\n"
            "def mine(images, prompts, metadata):\n    return [0.5] * len(images)\n",
            False,
        ),
        ("from elsewhere import mine\n", False),
    ],
)
def test_a_reward_of_ones_own_says_its_range_where_answers_are_rewarded_by_it(
    text: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_range.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    own = ["rewards.yes_no=null", "rewards.custom.mine.function=own_range:mine"]
    assert plan(resolve(GRPO, own)).updates, "elsewhere any range will do"
    if expected:
        with pytest.raises(PlanError, match=r"mine\.function: own_range:mine says no range"):
            plan(resolve(V1, own))
    else:
        assert plan(resolve(V1, own)).updates


class Ranged:
    """A scorer of which nothing but its range is asked."""

    def __init__(self, name: str, low: float, high: float) -> None:
        self.name, self.value_range = name, (low, high)


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"yes_no": (1.0, 0, 1)}, None),
        ({"yes_no": (0.5, 0, 1), "mine": (0.5, 0, 1)}, None),
        ({"mine": (1.0, -1, 1)}, r"custom\.mine\.function: .* value_range is \(-1, 1\)"),
        ({"mine": (1.0, -math.inf, math.inf)}, r"custom\.mine\.function: .* \(-inf, inf\)"),
        ({"mine": (0.0, -math.inf, math.inf), "yes_no": (1.0, 0, 1)}, None),
        ({"clip": (1.0, -1, 1)}, None),
        ({"marks": (1.0, 1, 5)}, r"it may be 5 \(marks up to 5\)"),
    ],
)
def test_a_sum_that_may_pass_one_is_refused_before_training(
    ranges: dict[str, tuple[float, float, float]], words: str | None
) -> None:
    rewards: Any = [Reward(Ranged(name, *own[1:]), own[0]) for name, own in ranges.items()]
    with RewardSet(rewards) as found:
        if words is None:
            require_unit_range(found, {"mine"})
            return
        with pytest.raises(ConfigError, match=words):
            require_unit_range(found, {"mine"})


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        (["rollout.noise_level=0.3"], "rollout.noise_level"),
        (["rollout.window.size=3"], "rollout.window"),
        (["policy.vae.slicing=true"], "policy.vae"),
        (["rollout.introspection.rounds=3"], "rollout.introspection"),
        (["algorithm.ground_truth.low=0.1"], "algorithm.ground_truth.low"),
        (["rollout.editing.wish=Go."], "rollout.editing"),
    ],
)
def test_what_does_nothing_is_said(overrides: list[str], key: str) -> None:
    warnings = plan(resolve(GRPO, overrides)).warnings
    assert any(one.startswith(f"{key}: does nothing here") for one in warnings), warnings
