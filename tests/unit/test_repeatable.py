"""Runs repeat bit for bit, or say which operation forbids it."""

from __future__ import annotations

import pytest
import torch

from atelier.config.sections.launch import LaunchConfig
from atelier.errors import PlanError
from atelier.training.repeatable import repeatable


def test_operations_with_a_fixed_order_are_chosen_and_the_choice_ends_with_the_run(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    with repeatable(LaunchConfig()):
        assert torch.are_deterministic_algorithms_enabled()
    assert not torch.are_deterministic_algorithms_enabled()
    with repeatable(LaunchConfig(deterministic=False)):
        assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_without_one_names_the_key_to_set():
    with (
        pytest.raises(PlanError, match=r"launch\.deterministic: put_.*deterministic=false"),
        repeatable(LaunchConfig()),
    ):
        torch.zeros(4).put_(torch.tensor([1, 1]), torch.tensor([1.0, 2.0]))


def test_other_errors_keep_their_words():
    with pytest.raises(RuntimeError, match="mine"), repeatable(LaunchConfig()):
        raise RuntimeError("mine")
