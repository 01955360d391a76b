"""Settings of the policy objective: published methods, what is refused, what does nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier.config.log_probs import clip_ranges
from atelier.config.plan import Plan, plan
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig
from atelier.config.theirs import TRL_KEYS, VARIANTS_PAGE
from atelier.errors import ConfigError, PlanError
from tests.support.coming_from import ours_in, quoted, rows

TOKENS = "tiny-janus/introspective-v1"
UPDATES = "train.updates_per_step=2"


def planned(recipe: str, *overrides: str) -> Plan:
    return plan(resolve(recipe, overrides, Path(os.devnull)))


METHODS = {cells[0]: quoted(cells[1]) for cells in rows(VARIANTS_PAGE) if len(cells) == 3}
METHODS = {name: own for name, own in METHODS.items() if own and "=" in own[0]}


def test_the_page_has_every_method() -> None:
    for name in ("GRPO", "Dr.GRPO", "BNPO", "DAPO", "GSPO", "LUSPO", "CISPO", "SAPO", "VESPO"):
        assert METHODS[name]
    assert "algorithm.advantage_std=none" in METHODS["Dr.GRPO"]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_s_settings_work_and_have_an_effect(method: str) -> None:
    found = planned(TOKENS, UPDATES, "rollout.old_log_prob=rollout", *METHODS[method])
    assert not [one for one in found.warnings if one.startswith("algorithm.")]


def test_names_of_trl_are_told_ours() -> None:
    said = {
        key: tuple(ours_in(cells[:1])) for cells in rows(VARIANTS_PAGE) for key in quoted(cells[1])
    }
    for key, ours in TRL_KEYS.items():
        assert set(ours) & set(said[key]), key
        with pytest.raises(ConfigError) as caught:
            resolve(TOKENS, [f"algorithm.{key}=1"], Path(os.devnull))
        assert f"did you mean {' and '.join(ours)}? ({VARIANTS_PAGE})" in str(caught.value)


@pytest.mark.parametrize(
    ("override", "ours"),
    [
        ("algorithm.name=dapo", "grpo with algorithm.loss_mean: token"),
        ("algorithm.name=gspo", "grpo with algorithm.ratio_level: sequence"),
        ("algorithm.loss_mean=dr_grpo", "constant"),
    ],
)
def test_names_of_methods_are_told_ours(override: str, ours: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(TOKENS, [override], Path(os.devnull))
    assert f"; did you mean {ours}" in str(caught.value)
    assert VARIANTS_PAGE in str(caught.value)


@pytest.mark.parametrize(
    ("recipe", "override", "reason"),
    [
        ("tiny/flow-grpo", "algorithm.ratio_level=sequence", "ratio_level: sequence is for token"),
        ("tiny/flow-grpo", "algorithm.surrogate=sapo", "surrogate: sapo is for token policies"),
        ("tiny/flow-grpo", "algorithm.loss_mean=token", "loss_mean: token is for token policies"),
        ("tiny/flow-grpo", "algorithm.mask_truncated=true", "mask_truncated: true is for token"),
        ("tiny/flow-grpo", "algorithm.kl_correction=true", "kl_correction: true is for token"),
        ("tiny/flow-grpo", "algorithm.clip_delta=1.00001", "clip_delta: 1.00001 is a ratio"),
        ("tiny/nft", "algorithm.clip_delta=2", "clip_delta: algorithm.name nft has no ratio"),
        ("tiny/nft", "algorithm.surrogate=cispo", "surrogate: cispo is for token policies"),
        ("tiny-janus/grpo", "algorithm.mask_truncated=true", "mask_truncated: images always come"),
        ("tiny-janus/grpo", "algorithm.clip_delta=1.2", "clip_delta: 1.2 is a ratio"),
        ("tiny-janus/pair-grpo", "algorithm.surrogate=cispo", "surrogate: cispo: ground truth has"),
        (
            "tiny-janus/pair-grpo",
            "algorithm.ratio_level=sequence",
            "ratio_level: sequence: ground truth has",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(recipe: str, override: str, reason: str) -> None:
    with pytest.raises(PlanError) as caught:
        planned(recipe, override)
    assert f"algorithm.{reason}" in str(caught.value)


def test_a_flow_policy_may_have_a_two_sided_clip() -> None:
    assert planned("tiny/flow-grpo", "algorithm.clip_delta=2").updates > 0


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        ([UPDATES, "algorithm.surrogate=cispo", "algorithm.clip_delta=4"], "clip_delta: does noth"),
        ([UPDATES, "algorithm.surrogate=sapo", "algorithm.clip_range_high=1"], "clip_range_high: "),
        ([UPDATES, "algorithm.sapo.temperature_negative=2"], "sapo: does nothing here"),
        ([UPDATES, "algorithm.beta=0", "algorithm.kl_correction=true"], "kl_correction: does noth"),
        (
            ["train.updates_per_step=1", "algorithm.surrogate=cispo"],
            "surrogate: does nothing here: it needs a ratio other",
        ),
        ([UPDATES, "algorithm.ratio_level=sequence"], "clip_range: 0.2 clips hardly anything of"),
    ],
)
def test_what_does_nothing_is_said(overrides: list[str], warning: str) -> None:
    found = planned(TOKENS, *overrides).warnings
    assert any(one.startswith(f"algorithm.{warning}") for one in found), found


def test_the_usual_clip_range_is_that_of_the_ratio() -> None:
    token, sequence = (
        clip_ranges(RunConfig.model_validate({"policy": {"family": "janus"}, "algorithm": own}))
        for own in ({}, {"ratio_level": "sequence"})
    )
    assert (token, sequence) == ((0.2, 0.2), (3e-4, 3e-4))
