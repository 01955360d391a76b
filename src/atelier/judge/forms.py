"""The form a question's answer has: what is asked of the endpoint, and how the reply is read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args, get_origin

from pydantic import BaseModel

from atelier.config.sections.judge import JudgeConfig
from atelier.judge import answers
from atelier.judge.probability import read_yes
from atelier.judge.replies import Failure, Parsed, Reply


class Form(Protocol):
    """What an answer looks like. Adding one is a class with these three."""

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        """Fields of the request body that the form needs."""
        ...

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        """The value in a reply; never raises."""
        ...

    def numbers(self, value: Any) -> dict[str, float]:
        """The numbers in a value, by name: what is averaged over measurements."""
        ...


@dataclass(frozen=True)
class JsonForm:
    """A JSON object of a pydantic model. Numbers: its fields that are numbers, or literals of
    text that are (Literal["0", ..., "10"])."""

    model: type[BaseModel]

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        if config.structured == "none":
            return {}
        if config.structured == "json_object":
            return {"response_format": {"type": "json_object"}}
        schema = {
            "name": re.sub(r"[^A-Za-z0-9_-]", "_", self.model.__name__)[:64],
            "strict": True,
            "schema": _closed(self.model.model_json_schema()),
        }
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        return answers.read_json(reply, self.model)

    def numbers(self, value: Any) -> dict[str, float]:
        found = {}
        for name, info in self.model.model_fields.items():
            number = _number(getattr(value, name), info.annotation)
            if number is not None:
                found[name] = number
        return found


@dataclass(frozen=True)
class NumberForm:
    """A number in [low, high] after a label: "Final Score: 4.5". Numbers: `score`."""

    label: str
    low: float
    high: float

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        return {}

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        return answers.read_number(reply, self.label, self.low, self.high)

    def numbers(self, value: Any) -> dict[str, float]:
        return {"score": value}


@dataclass(frozen=True)
class DimensionsForm:
    """A number in [low, high] after each label: "Style Score (1-5): 4". Numbers: by label."""

    labels: Sequence[str]
    low: float
    high: float

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        return {}

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        return answers.read_dimensions(reply, self.labels, self.low, self.high)

    def numbers(self, value: Any) -> dict[str, float]:
        return dict(value)


@dataclass(frozen=True)
class TextForm:
    """Any text: the whole answer, without thoughts before it. Numbers: none; see `values`."""

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        return {}

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        return answers.read_text(reply)

    def numbers(self, value: Any) -> dict[str, float]:
        return {}


@dataclass(frozen=True)
class VerdictForm:
    """Which of two images is better, in answer tags. Numbers: `first_is_better`, 1 or 0; a half for
    a tie."""

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        return {}

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        return answers.read_verdict(reply)

    def numbers(self, value: Any) -> dict[str, float]:
        return {"first_is_better": 0.5 if value == "tie" else float(value == 1)}


@dataclass(frozen=True)
class YesNoForm:
    """P(yes) of the first token. Numbers: `p_yes`. One token is enough: parameters.max_tokens 1."""

    minimum_mass: float = 0.01

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        return {"logprobs": True, "top_logprobs": config.top_logprobs}

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        return read_yes(reply, self.minimum_mass)

    def numbers(self, value: Any) -> dict[str, float]:
        return {"p_yes": value}


def _closed(schema: Any) -> Any:
    """A JSON schema as strict endpoints want it: every key required, no other one allowed."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    # `default` is a keyword here, unless it is the name of a property.
    closed = {key: _closed(value) for key, value in schema.items() if key != "default"}
    if isinstance(properties := schema.get("properties"), dict):
        closed["properties"] = {name: _closed(value) for name, value in properties.items()}
        closed["required"] = list(properties)
        closed["additionalProperties"] = False
    return closed


def _number(value: Any, annotation: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value)
    if isinstance(value, str) and get_origin(annotation) is Literal:
        texts = get_args(annotation)
        if all(isinstance(text, str) and re.fullmatch(r"-?\d+(\.\d+)?", text) for text in texts):
            return float(value)
    return None
