"""Tokens that the environment lacks are told before a run, and never shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier.config.access_tokens import bearer_token, token_of
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.errors import ConfigError

REMOTE = "placement: remote, urls: ['http://host/v1']"
JUDGE = f"judges.j={{model: m, token_env: JUDGE_KEY, {REMOTE}}}"
EVALUATED = ("evaluation.suite=yes_no", "evaluation.yes_no.judge=j")
REWARDED = ("rewards.yes_no={judge: j}",)


def warned(*overrides: str, recipe: str = "tiny/flow-grpo-fast") -> list[str]:
    warnings = plan(resolve(recipe, overrides, Path(os.devnull))).warnings
    return [one for one in warnings if "token_env" in one]


@pytest.mark.parametrize("asked", [EVALUATED, REWARDED])
def test_a_judge_without_its_token_is_warned_of(
    asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    (warning,) = warned(JUDGE, *asked)
    assert warning.startswith("judges.j.token_env: JUDGE_KEY is not set in this environment")
    monkeypatch.setenv("JUDGE_KEY", "")
    assert warned(JUDGE, *asked) == [warning]
    for wrong in (" ", "two words"):
        monkeypatch.setenv("JUDGE_KEY", wrong)
        (told,) = warned(JUDGE, *asked)
        assert told.startswith("judges.j.token_env: JUDGE_KEY: what it holds is no token")
        assert "two words" not in told
    monkeypatch.setenv("JUDGE_KEY", "word-of-secrecy")
    assert warned(JUDGE, *asked) == []


def test_who_is_not_asked_from_here_needs_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    assert warned(JUDGE) == []
    elsewhere = "rewards.yes_no={judge: j, placement: remote, urls: ['http://host:8400']}"
    assert warned(JUDGE, elsewhere) == []


def test_servers_that_draw_completions_have_a_token_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DRAWING_KEY", raising=False)
    served = (
        "rollout.completion.backend=vllm",
        "rollout.sampler={placement: remote, urls: ['http://host:8000'], token_env: DRAWING_KEY}",
    )
    (warning,) = warned(*served, recipe="tiny-qwen/mmmg-lora")
    assert warning.startswith("rollout.sampler.token_env: DRAWING_KEY is not set")


def test_all_servers_tokens_are_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """What surrounds one is no part of it; of several words it is none, whoever wants it."""
    monkeypatch.setenv("JUDGE_KEY", " secret\n")
    assert bearer_token("JUDGE_KEY") == token_of("JUDGE_KEY", "judges.j") == "secret"
    assert token_of(None, "judges.j") is None
    monkeypatch.setenv("JUDGE_KEY", "two words")
    with pytest.raises(ConfigError, match=r"^JUDGE_KEY: what it holds is no token"):
        bearer_token("JUDGE_KEY")
    with pytest.raises(ConfigError, match=r"^judges\.j\.token_env: JUDGE_KEY: what it holds is no"):
        token_of("JUDGE_KEY", "judges.j")
    monkeypatch.setenv("JUDGE_KEY", "")
    assert bearer_token("JUDGE_KEY") is None
    with pytest.raises(ConfigError, match="JUDGE_KEY is not set in the environment, or is empty"):
        token_of("JUDGE_KEY", "judges.j")
