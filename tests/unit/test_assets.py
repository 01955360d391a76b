"""The embedded models say nothing of the machine that made them."""

from __future__ import annotations

import json

import pytest

from atelier.config.paths import repository_root
from atelier.policies.pretraining.snapshots import PLACES

CONFIGURATIONS = sorted((repository_root() / "assets").glob("*/**/*config.json"))


@pytest.mark.parametrize("file", CONFIGURATIONS, ids=lambda file: "/".join(file.parts[-3:]))
def test_a_configuration_names_no_place(file) -> None:
    assert not set(PLACES) & json.loads(file.read_text()).keys()
