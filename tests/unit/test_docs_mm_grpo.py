"""docs/coming-from-mm-grpo.md names every key of MM-GRPO's guide, and keys of ours that exist."""

import os
import re
from pathlib import Path

import pytest

from atelier.config.resolve import resolve
from tests.support.coming_from import PageTests, rows

GUIDE = Path(__file__).resolve().parents[3] / "shared" / "seeds" / "mm-grpo.md"
PAGE = "docs/coming-from-mm-grpo.md"

needs_guide = pytest.mark.skipif(
    not GUIDE.is_file(), reason="MM-GRPO's guide is not beside this checkout"
)


def their_keys() -> set[str]:
    """The first cells of the page's tables."""
    return {cells[0].strip("`") for cells in rows(PAGE)}


def commands() -> list[dict[str, str]]:
    """The `key=value` arguments of every training command of the guide."""
    found = []
    for block in re.findall(r"```bash\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL):
        if "main_flowgrpo" in block:
            pairs = re.findall(r"^\s+([a-z_.0-9]+)=(\S+)", block, re.MULTILINE)
            found.append({key: value.strip("'\"") for key, value in pairs})
    return found


@needs_guide
def test_every_key_of_the_guide_is_in_the_table() -> None:
    named = their_keys()
    assert len(commands()) == 2
    for command in commands():
        assert len(command) > 30
        assert set(command) <= named


@needs_guide
def test_every_reward_of_the_guide_is_in_the_table() -> None:
    section = GUIDE.read_text(encoding="utf-8").partition("Supported rewards:")[2]
    rewards = re.findall(r'^- "([\w-]+)"', section, re.MULTILINE)
    assert len(rewards) == 3
    assert set(rewards) <= their_keys()


class TestPage(PageTests):
    page, fewest, prose_is_ours = PAGE, 30, False


@needs_guide
@pytest.mark.parametrize(
    ("recipe", "place"), [("sd35m/flow-grpo-fast", 0), ("sd35m/flow-grpo-fast-1gpu", 1)]
)
def test_recipes_have_the_numbers_of_the_guide(recipe: str, place: int) -> None:
    theirs = commands()[place]
    ours = resolve(recipe, params_file=Path(os.devnull))
    actor, rollout = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
    prompts = int(theirs["data.train_batch_size"])
    low, high = ours.rollout.window.range or (None, None)
    expected: dict[str, str | float | None] = {
        "data.train_batch_size": ours.train.prompts_per_step,
        "data.val_max_samples": ours.evaluation.periodic_prompts,
        "data.max_prompt_length": ours.policy.max_sequence_length,
        "actor_rollout_ref.model.path": ours.policy.path,
        "actor_rollout_ref.model.lora_rank": ours.policy.lora.rank,
        "actor_rollout_ref.model.lora_alpha": ours.policy.lora.alpha,
        f"{actor}clip_ratio": ours.algorithm.clip_range,
        f"{actor}optim.lr": ours.train.learning_rate,
        f"{actor}optim.weight_decay": ours.train.weight_decay,
        f"{actor}ppo_mini_batch_size": prompts // ours.train.updates_per_step,
        f"{actor}ppo_micro_batch_size_per_gpu": ours.rollout.micro_batch_size,
        f"{actor}kl_loss_coef": ours.algorithm.beta,
        f"{actor}fsdp_config.dtype": ours.policy.dtype,
        f"{rollout}n": ours.rollout.group_size,
        f"{rollout}guidance_scale": ours.rollout.guidance_scale,
        f"{rollout}noise_level": ours.rollout.noise_level,
        f"{rollout}sde_type": ours.rollout.dynamics,
        f"{rollout}sde_window_size": ours.rollout.window.size,
        f"{rollout}sde_window_range": f"[{low},{high}]",
        "trainer.n_gpus_per_node": ours.launch.processes,
        "trainer.save_freq": ours.train.checkpoint_every,
        "trainer.test_freq": ours.train.evaluate_every,
    }
    for key, value in expected.items():
        if isinstance(value, str):
            assert theirs[key] == value, key
        else:
            assert value is not None
            assert float(theirs[key]) == float(value), key
