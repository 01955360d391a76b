"""Steps of pairs: which samples are compared, and which are ground truth."""

from __future__ import annotations

from collections import Counter

import pytest

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.training.batches import step_samples


def table(pairs: int, singles: int) -> list[Prompt]:
    prompts = []
    for pair in range(pairs):
        for caption in (1, 2):
            metadata = {"pair": pair, "caption": caption, "image": f"{pair}-{caption}.png"}
            prompts.append(Prompt(2 * pair + caption - 1, 0, f"pair {pair} {caption}", metadata))
    return prompts + [Prompt(1000 + at, 0, f"single {at}") for at in range(singles)]


def configured(**settings) -> RunConfig:
    sections = {
        "policy": {"family": "janus"},
        "rollout": {"group_size": 7},
        "algorithm": {"advantage_over": "pair", "ground_truth": {"enabled": True}},
        "train": {"prompts_per_step": 4, "steps": 2000, "updates_per_step": 1},
    }
    for name, values in settings.items():
        sections[name] = {**sections[name], **values}
    return RunConfig.model_validate(sections)


def test_both_groups_of_a_pair_are_one_pool() -> None:
    samples = step_samples(table(6, 0), 1, configured())
    assert len(samples) == 28
    assert [one.index for one in samples] == list(range(28))
    assert [one.group_id for one in samples] == [group for group in range(4) for _ in range(7)]
    assert [one.pool for one in samples] == [0] * 14 + [2] * 14
    alone = step_samples(table(6, 0), 1, configured(algorithm={"advantage_over": "prompt"}))
    assert [one.pool for one in alone] == [one.group_id for one in alone]


def test_the_last_two_of_a_group_are_its_own_truth_and_its_partners() -> None:
    samples = step_samples(table(6, 0), 1, configured())
    for start in range(0, 28, 7):
        group = samples[start : start + 7]
        assert [one.truth is None for one in group] == [True] * 5 + [False] * 2
        own, partner = group[5].truth, group[6].truth
        assert own is group[0].prompt
        assert partner.metadata["pair"] == own.metadata["pair"]
        assert partner.metadata["caption"] != own.metadata["caption"]
        assert all(one.prompt is own for one in group)


def test_prompts_without_a_partner_are_alone_and_without_truth() -> None:
    samples = step_samples(table(0, 9), 3, configured())
    assert all(one.truth is None and one.pair is None for one in samples)
    assert len({one.pool for one in samples}) == 4


def test_truth_is_shown_as_often_as_the_schedule_says() -> None:
    """Steps, and so updates: always up to 51, in half of the cases about 317, never after 1200."""
    prompts, config = table(40, 0), configured()

    def shown(steps: range) -> float:
        found = [
            any(one.truth for one in step_samples(prompts, step, config)[:14]) for step in steps
        ]
        return sum(found) / len(found)

    assert shown(range(1, 52)) == 1
    assert shown(range(290, 345)) == pytest.approx(0.5, abs=0.2)
    assert shown(range(1202, 1300)) == 0
    assert step_samples(prompts, 300, config) == step_samples(prompts, 300, config)


def test_every_pair_and_every_single_prompt_is_used() -> None:
    """The original leaves out half of the pairs."""
    prompts, config = table(10, 8), configured()
    seen = Counter(
        one.prompt.text for step in range(1, 8) for one in step_samples(prompts, step, config)[::7]
    )
    assert set(seen) == {one.text for one in prompts}
    assert max(seen.values()) == 1


def test_mixed_rows_keep_pairs_together() -> None:
    for step in range(1, 8):
        groups = step_samples(table(10, 8), step, configured())[::7]
        for first, second in zip(groups[::2], groups[1::2], strict=True):
            pairs = {one.prompt.metadata.get("pair") for one in (first, second)}
            assert len(pairs) == 1
            assert (first.pool == second.pool) == (pairs != {None})


def test_a_pair_without_images_has_no_truth() -> None:
    prompts = table(4, 0)
    del prompts[1].metadata["image"]
    samples = [one for step in range(1, 3) for one in step_samples(prompts, step, configured())]
    shown = {one.prompt.metadata["pair"] for one in samples if one.truth is not None}
    assert shown == {1, 2, 3}
