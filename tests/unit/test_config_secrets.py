"""No secret stands in a configuration, for it is kept with the run, and none is repeated."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from atelier.config.nodes_token import TOKEN_VARIABLE as NODES_TOKEN_VARIABLE
from atelier.config.plan import plan
from atelier.config.resolve import resolve
from atelier.config.secret_names import secret_parameters
from atelier.errors import ConfigError, PlanError
from atelier.rewards.service.protocol import MANAGED_TOKEN_VARIABLE, TOKEN_VARIABLE
from atelier.stages.servers.run_servers import RunServers
from atelier.tracking.run_directory import RunDirectory

SECRET = "sEcReT12345"
REMOTE = "placement: remote, urls: ['http://host/v1']"
JUDGE = f"judges.j={{model: m, {REMOTE}}}"
NODES = "launch.nodes=2"


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        resolve("tiny/base", overrides, Path(os.devnull))
    assert SECRET not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    "words",
    [
        f"env, ATELIER_NODES_TOKEN={SECRET}, srun",
        f"srun, '--export=ALL,ATELIER_NODES_TOKEN={SECRET}'",
        f"srun, '--export=ATELIER_REWARD_TOKEN={SECRET},ALL'",
        f"sh, -c, 'HF_TOKEN={SECRET} exec srun'",
        f"ssh, host, THE_JUDGE={SECRET}",
        f"start, --api-key, {SECRET}",
    ],
)
def test_a_launcher_that_is_told_a_token_is_refused(words: str) -> None:
    named = f"judges.j={{model: m, token_env: THE_JUDGE, {REMOTE}}}"
    said = refusal(NODES, named, f"launch.launcher=[{words}]")
    assert "launch.launcher: " in said
    assert "let the launcher pass the environment on" in said


def test_other_words_of_a_launcher_are_taken() -> None:
    words = "[env, TOKENIZERS_PARALLELISM=false, THE_JUDGE=1, srun, --nodes=3, --export=ALL]"
    launch = resolve("tiny/base", [NODES, f"launch.launcher={words}"], Path(os.devnull)).launch
    assert launch.launcher[1] == "TOKENIZERS_PARALLELISM=false"


@pytest.mark.parametrize(
    "parameters",
    [
        f"{{api_key: {SECRET}}}",
        f"{{temperature: 0, extra_headers: {{Authorization: 'Bearer {SECRET}'}}}}",
        f"{{extra_body: [{{x: {{X-API-Key: {SECRET}}}}}]}}",
        f"{{token: {SECRET}}}",
        f"{{password: {SECRET}}}",
    ],
)
def test_parameters_of_a_judge_hold_no_secret(parameters: str) -> None:
    said = refusal(JUDGE, f"judges.j.parameters={parameters}")
    assert "judges.j.parameters." in said
    assert "holds it in token_env" in said


@pytest.mark.parametrize(
    "override",
    [
        f"rewards.custom.r={{function: 'm:f', parameters: {{api_key: {SECRET}}}}}",
        f"judges.j.vllm.arguments=['--api-key={SECRET}']",
        f"judges.j.server.command=[env, A_TOKEN={SECRET}, serve, '{{port}}']",
        f"judges.j.server.variables={{A_TOKEN: {SECRET}}}",
    ],
)
def test_neither_do_other_keys(override: str) -> None:
    assert "looks like a secret" in refusal("judges.j={model: m}", override)


def test_parameters_that_are_none_are_taken() -> None:
    names = ("max_tokens", "stop_token_ids", "eos_token", "prompt_cache_key", "key", "min_tokens")
    assert not list(secret_parameters(dict.fromkeys(names, "x"), "parameters"))
    assert not list(secret_parameters({"api_key": None}, "parameters"))


@pytest.mark.parametrize(
    "override",
    [
        f"judges.j.token_env=sk-{SECRET}",
        f"judges.j={{model: m, placement: remot, token_env: sk-{SECRET}}}",
        f"judges.j.token_env=[sk-{SECRET}]",
        f"judges.j.urls=['http://u:{SECRET}@host/v1']",
        f"judges.j.urls='http://u:{SECRET}@host/v1'",
        f"judges.j.urls=['u:{SECRET}@host/v1']",
        f"judges.j.urls=['http://u:{SECRET}@[host/v1']",
        f"judges.j.urls=['http://u:{SECRET}@höst/v1']",
        f"judges.j.urls=['http://host/v1?key={SECRET}']",
        f"judges.j.api_key={SECRET}",
        f"judges.j.token_env='{SECRET}",
    ],
)
def test_a_refusal_repeats_no_secret(override: str) -> None:
    key = override.partition("=")[0]
    assert f"--set {key}: " in refusal(JUDGE, override)


@pytest.mark.parametrize("key", ["policy.path", "judges.j.model"])
def test_neither_does_a_plan(key: str) -> None:
    judge = "judges.j={model: m, placement: in_process}"
    asked = (judge, "rewards.yes_no={judge: j}", f"{key}='https://u:{SECRET}@host/x'")
    with pytest.raises(PlanError, match=r"https://\.\.\.@host/x is neither") as error:
        plan(resolve("tiny/base", asked, Path(os.devnull)))
    assert SECRET not in str(error.value)


def test_a_server_is_told_no_token_but_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Managed servers had the nodes' token, and those of judges that they never ask."""
    atelier = (TOKEN_VARIABLE, MANAGED_TOKEN_VARIABLE, NODES_TOKEN_VARIABLE)
    for name in (*atelier, "ASKED_KEY", "OTHER_KEY", "HF_TOKEN"):
        monkeypatch.setenv(name, f"{SECRET}-of-the-environment")
    config = resolve(
        "tiny/base",
        [
            f"judges.asked={{model: m, token_env: ASKED_KEY, {REMOTE}}}",
            f"judges.other={{model: m, token_env: OTHER_KEY, {REMOTE}}}",
            "judges.own={model: m, server: {command: [serve, '{port}']}}",
            "rewards.yes_no={judge: asked, placement: managed}",
        ],
        Path(os.devnull),
    )
    servers = RunServers(RunDirectory(tmp_path), config)

    def told(name: str, section: object) -> set[str]:
        environment = servers._server(name, section, 0).spec.environment  # type: ignore[arg-type]
        return {key for key, value in environment.items() if value.startswith(SECRET)}

    assert told("yes_no", config.rewards.yes_no) == {"ASKED_KEY", "HF_TOKEN"}
    assert told("judges.own", config.judges["own"]) == {"HF_TOKEN"}
