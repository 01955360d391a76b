"""`~` in paths of a configuration, wherever there is one."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from atelier.config.path_keys import PATH_KEYS, expand_home
from atelier.config.resolve import resolve
from atelier.config.schema import RunConfig

# Words of descriptions that say of a text that it is a path.
SAYS = re.compile(r"\b([Ff]iles?|[Ff]older|[Dd]irectory|path|As data\.\w*path)\b")


def texts(section: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Key and description of every text of a section, with a star for names of users."""
    for name, field in section.model_fields.items():
        inner = list(sections_in(field.annotation))
        for one, star in inner:
            yield from texts(one, f"{prefix}{name}{star}.")
        if not inner and str in (field.annotation, *typing.get_args(field.annotation)):
            yield f"{prefix}{name}", field.description or ""


def sections_in(annotation: object) -> Iterator[tuple[type[BaseModel], str]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation, ""
    star = ".*" if typing.get_origin(annotation) is dict else ""
    for one in typing.get_args(annotation):
        for section, more in sections_in(one):
            yield section, star + more


def is_listed(key: str) -> bool:
    patterns = (re.escape(one).replace(r"\*", r"[^.]+") for one in PATH_KEYS)
    return any(re.fullmatch(one, key) for one in patterns)


def test_every_key_that_is_said_to_hold_a_path_is_in_the_list() -> None:
    found = {key for key, description in texts(RunConfig) if SAYS.search(description)}
    assert len(found) > 20
    # "Which score of that file": not itself a path.
    assert {key for key in found if not is_listed(key)} == {"data.curriculum.score"}


def test_every_key_in_the_list_is_there() -> None:
    keys = [key for key, _ in texts(RunConfig)]
    patterns = [re.escape(one).replace(r"\*", r"[^.]+") for one in PATH_KEYS]
    assert [one for one in patterns if not any(re.fullmatch(one, key) for key in keys)] == []


def test_the_home_directory_is_put_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/people/someone")
    config = resolve(
        "tiny/flow-grpo-fast",
        [
            "policy.bases.vlm=~/vlm",
            "rewards.clip_similarity={path: ~/clip}",
            "data.sft={source: files, files: {own: {path: ~/own.jsonl}}}",
            "judges.j={model: ~/judge, ledger: ~/ledger.jsonl, cache: {folder: ~/answers}}",
        ],
        Path(os.devnull),
    )
    assert config.policy.bases.vlm == "/people/someone/vlm"
    assert config.rewards.clip_similarity is not None
    assert config.rewards.clip_similarity.path == "/people/someone/clip"
    assert config.data.sft.files["own"].path == "/people/someone/own.jsonl"
    judge = config.judges["j"]
    assert (judge.model, judge.ledger, judge.cache.folder) == tuple(
        f"/people/someone/{name}" for name in ("judge", "ledger.jsonl", "answers")
    )


def test_what_is_no_section_is_left_for_the_schema_to_refuse() -> None:
    values = {"data": 3, "policy": {"bases": "~"}, "judges": [{"model": "~"}]}
    expand_home(values)
    assert values == {"data": 3, "policy": {"bases": "~"}, "judges": [{"model": "~"}]}
