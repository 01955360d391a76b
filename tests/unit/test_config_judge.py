"""The section of a judge: what cannot be used is refused by the key's name."""

import pytest
from pydantic import ValidationError

from atelier.config.sections.judge import BudgetConfig, JudgeConfig, PricesConfig

SOUND = {"model": "m"}
REMOTE = {"placement": "remote", "urls": ["http://host/v1"]}


def test_the_defaults_fit_each_other():
    assert not list(JudgeConfig(**SOUND).conflicts())


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"placement": "remote", "urls": ["host:8000"]}, "urls"),
        ({"placement": "remote", "urls": ["http://host/v1?key=1"]}, "urls"),
        ({**REMOTE, "token_env": "sk-ThisIsAToken"}, "token_env"),
        ({**REMOTE, "token_env": "hf_ThisIsAToken"}, "token_env"),
        ({"token_env": "TOKEN"}, "token_env"),
        ({"placement": "remote"}, "urls"),
        ({"vllm": {"sleep": True}}, "vllm.sleep"),
        ({"vllm": {"tensor_parallel": 2}, "server": {"gpus": 1}}, "server.gpus"),
        ({"server": {"gpus": 1, "share_gpus": True}}, "server.share_gpus"),
        ({"server": {"command": ["serve"]}}, "server.command"),
        ({"server": {"variables": {"HF_TOKEN": "hf_ThisIsAToken"}}}, "server.variables.HF_TOKEN"),
        ({"parameters": {"model": "x"}}, "parameters.model"),
        ({"parameters": {"n": 4}}, "parameters.n"),
        ({"parameters": {"response_format": {}}}, "parameters.response_format"),
        (
            {"parameters": {"max_tokens": 1, "max_completion_tokens": 1}},
            "parameters.max_tokens",
        ),
        ({"parameters": {"temperature": float("nan")}}, "parameters"),
        ({"timeout": 10.0, "deadline": 5.0}, "timeout"),
        ({"measurements": 2, "choices": 3}, "choices"),
        ({"budget": BudgetConfig(), "ledger": "x"}, "budget"),
        ({"budget": BudgetConfig(money=1.0), "ledger": "x"}, "budget.money"),
        ({"budget": BudgetConfig(calls=1)}, "ledger"),
    ],
)
def test_what_does_not_fit_is_named(values, key):
    ((found, problem),) = JudgeConfig(**SOUND, **values).conflicts()
    assert found == key
    assert "ThisIsAToken" not in problem


@pytest.mark.parametrize(
    "values",
    [
        {"model": ""},
        {"temperature": 0},
        {"concurrency": 0},
        {"timeout": float("inf")},
        {"measurements": 0},
        {"choices": 0},
        {"image_detail": "hi"},
        {"min_measured_share": 0.0},
        {"structured": "xml"},
        {"prices": {"input": -1.0}},
        {"top_logprobs": 1},
    ],
)
def test_a_value_that_cannot_be_is_refused(values):
    with pytest.raises(ValidationError, match=next(iter(values))):
        JudgeConfig(**{**SOUND, **values})


def test_only_what_may_change_an_answer_shapes_a_digest():
    shape = JudgeConfig(**SOUND).shape()
    assert shape.keys() == {
        "model",
        "dtype",
        "parameters",
        "structured",
        "top_logprobs",
        "longest_side",
        "image_detail",
        "measurements",
        "min_measured_share",
    }
    other = JudgeConfig(
        placement="remote",
        urls=["http://b/v1"],
        token_env="A",
        concurrency=1,
        choices=1,
        prices=PricesConfig(input=1.0),
        ledger="x",
        budget=BudgetConfig(calls=1),
        **SOUND,
    )
    assert other.shape() == shape
