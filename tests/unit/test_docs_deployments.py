"""Commands of the docs that start a deployment give what its flow takes."""

import importlib
import json
import re
import shlex
from itertools import pairwise

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools import validate

from atelier.config.paths import repository_root

FLOWS = {
    "grpo/full": "grpo",
    "rewards/serve": "rewards",
    "node/run": "node",
    **{f"{name}/run": name for name in ("prepare", "train", "evaluate", "export", "compare")},
}
NAMES = ("flows", "many-machines", "platform", "rewards", "tutorial")
PAGES = ("README.md", *(f"docs/{name}.md" for name in NAMES))


def commands():
    """(page, deployment, parameters as Prefect reads them)"""
    for page in PAGES:
        text = (repository_root() / page).read_text().replace("\\\n", " ")
        for line in re.findall(r"prefect deployment run (.*)", text):
            words = shlex.split(line.partition("  #")[0].partition("`")[0], comments=True)
            yield page, words[0], _parameters(words[1:])


def _parameters(words):
    found = {}
    for option, value in pairwise(words):
        if option == "--params":
            found |= json.loads(value)
        elif option == "--param":
            name, _, text = value.partition("=")
            try:
                found[name] = json.loads(text)
            except ValueError:
                found[name] = text
    return found


def problem_of(deployment, parameters):
    """What Prefect refuses, None where nothing."""
    name = FLOWS[deployment]
    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    schema = parameter_schema(flow).model_dump_for_openapi()
    try:
        validate(parameters, schema, raise_on_error=True)
    except Exception as error:
        return str(error)
    return None


@pytest.mark.parametrize(("page", "deployment", "parameters"), list(commands()))
def test_a_command_of_the_docs_is_accepted(page, deployment, parameters):
    assert problem_of(deployment, parameters) is None


def test_a_list_that_is_none_is_refused():
    """As the docs say."""
    assert problem_of("grpo/full", {"overrides": "train.seed=2"})
    assert problem_of("grpo/full", {"overrides": ["train.seed=2"]}) is None
    assert len(list(commands())) >= 5
