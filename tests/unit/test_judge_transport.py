"""What reaches a judge's endpoint, and what is made of answers no judge should send."""

import asyncio
import gzip
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from fastapi.responses import Response, StreamingResponse

from atelier.config.sections.judge import JudgeConfig, PricesConfig
from atelier.errors import ConfigError
from atelier.judge import JudgeClient, NumberForm, Question
from tests.support.forks import in_a_fork
from tests.support.judge_endpoint import error, judge_endpoint, said

TOKEN = "sk-ThisTokenMustNotBeWritten0123456789"
SCORE = "Final Score: 4"
FORM = NumberForm("Final Score", 1, 5)
ASKED = [Question("number 1", FORM)]


@pytest.fixture(scope="module")
def endpoint():
    with judge_endpoint() as judge:
        yield judge


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch):
    monkeypatch.setattr("atelier.judge.client._FIRST_PAUSE", 0.02)


def client(endpoint, **values):
    return JudgeClient(
        JudgeConfig(
            **{"placement": "remote", "urls": [endpoint.url], "model": "m", "retries": 0, **values}
        )
    )


def always(make):
    async def script(call):
        return make()

    return script


# The environment --------------------------------------------------------------------------------

FROM_THE_ENVIRONMENT = "from-the-environment"
CUSTOM_HEADERS = ("X-Other", "authorization", "Authorization", "Host", "user-agent", "User-Agent")
CUSTOM_HEADERS += ("content-type", "Content-Type", "accept", "Content-Length", "Transfer-Encoding")
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def variables_of_the_package():
    """Every variable that the installed package names: a later one may read more of them."""
    (folder,) = find_spec("openai").submodule_search_locations
    texts = (path.read_text() for path in Path(folder).rglob("*.py"))
    return {name for text in texts for name in re.findall(r"\b[A-Z_]*OPENAI_[A-Z_]+\b", text)}


def fill_environment(monkeypatch, tmp_path, elsewhere):
    known = {"OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"}
    found = variables_of_the_package()
    assert known | {"OPENAI_BASE_URL", "OPENAI_CUSTOM_HEADERS"} <= found
    for name in found:
        monkeypatch.setenv(name, FROM_THE_ENVIRONMENT)
    monkeypatch.setenv("OPENAI_BASE_URL", elsewhere.url)
    headers = "\n".join(f"{name}: {FROM_THE_ENVIRONMENT}" for name in CUSTOM_HEADERS)
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", headers)
    for name in PROXIES:
        monkeypatch.setenv(name, elsewhere.url)
        monkeypatch.setenv(name.lower(), elsewhere.url)
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    netrc = f"default login {FROM_THE_ENVIRONMENT} password {FROM_THE_ENVIRONMENT}\n"
    (tmp_path / ".netrc").write_text(netrc)
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize("token", [TOKEN, None])
def test_nothing_of_the_environment_reaches_an_endpoint(endpoint, monkeypatch, tmp_path, token):
    endpoint.acts(always(lambda: said(SCORE)))
    with judge_endpoint() as elsewhere:
        elsewhere.acts(always(lambda: said(SCORE)))
        fill_environment(monkeypatch, tmp_path, elsewhere)
        if token:
            monkeypatch.setenv("JUDGE_TOKEN", token)
        with client(endpoint, token_env="JUDGE_TOKEN" if token else None) as judge:
            assert judge.ask(ASKED)[0].numbers == {"score": 4.0}
        assert elsewhere.calls == []
    (call,) = endpoint.calls
    sent = dict(call.headers)
    assert not any(FROM_THE_ENVIRONMENT in value for value in sent.values())
    assert sent.pop("host") == endpoint.url.split("/")[2]
    assert sent.pop("authorization", None) == (f"Bearer {token}" if token else None)
    assert sent.pop("user-agent").startswith("AsyncOpenAI/Python ")
    assert int(sent.pop("content-length")) > 0
    assert "gzip" in sent.pop("accept-encoding")
    assert sent == {
        "accept": "application/json",
        "content-type": "application/json",
        "connection": "keep-alive",
        "x-stainless-raw-response": "true",
    }


def test_importing_the_judge_imports_no_client():
    script = (
        "import sys, atelier.judge\n"
        "heavy = {'openai', 'httpx', 'httpx2', 'torch'} & sys.modules.keys()\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_certificates_that_cannot_be_read_are_refused(endpoint, monkeypatch, tmp_path):
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    with pytest.raises(ConfigError, match=r"SSL_CERT_FILE: .*missing\.pem cannot be used"):
        client(endpoint)


# Answers ----------------------------------------------------------------------------------------


def long(status):
    async def parts():
        for _ in range(1000):
            yield b" " * 1000
            await asyncio.sleep(0.001)

    return StreamingResponse(parts(), status)


def compressed(content, status=200):
    headers = {"content-encoding": "gzip"}
    return Response(gzip.compress(content), status, headers, "application/json")


TOO_LONG = {
    "long": lambda: long(200),
    "a long refusal": lambda: long(500),
    "a long refusal for good": lambda: long(401),
    "compressed": lambda: compressed(b" " * 10**6),
    "a compressed refusal": lambda: compressed(b" " * 10**6, 400),
}


@pytest.mark.parametrize("answer", TOO_LONG)
def test_no_answer_is_read_beyond_the_bound(endpoint, monkeypatch, answer):
    monkeypatch.setattr("atelier.judge.transport._LONGEST_ANSWER", 10_000)
    endpoint.acts(always(TOO_LONG[answer]))
    with client(endpoint, retries=1) as judge:
        (missing,) = judge.ask(ASKED)
        assert "more than 10000 bytes" in missing.missing
        assert missing.retryable
        assert len(endpoint.calls) == 2
        endpoint.acts(always(lambda: said(SCORE)))
        assert judge.ask(ASKED)[0].numbers == {"score": 4.0}


def test_a_compressed_answer_is_read(endpoint):
    endpoint.acts(always(lambda: compressed(said(SCORE).body)))
    with client(endpoint) as judge:
        assert judge.ask(ASKED)[0].numbers == {"score": 4.0}


def test_a_status_that_is_no_answer_is_a_refusal(endpoint):
    endpoint.acts(always(lambda: Response(status_code=204)))
    with client(endpoint) as judge, pytest.raises(ConfigError, match="status 204: no reason given"):
        judge.ask(ASKED)


def test_half_a_character_costs_its_own_question_only(endpoint):
    endpoint.acts(always(lambda: said(SCORE)))
    with client(endpoint) as judge:
        half, whole = judge.ask([Question("\ud800", FORM), *ASKED])
    assert "cannot be sent" in half.missing
    assert half.missing.isprintable()
    assert not half.retryable
    assert whole.numbers == {"score": 4.0}


def test_what_was_never_sent_is_free(tmp_path):
    values = {"ledger": str(tmp_path / "ledger.jsonl"), "prices": PricesConfig(input=5.0)}
    config = JudgeConfig(
        placement="remote", urls=["http://127.0.0.1:9/v1"], model="m", retries=1, **values
    )
    with JudgeClient(config) as judge:
        assert "no connection" in judge.ask(ASKED)[0].missing
        assert judge.ledger.spent().calls == 0


REFUSALS = {
    "text": lambda: error(401, f"Incorrect API key {TOKEN}"),
    "redirection": lambda: Response(status_code=307, headers={"location": f"/{TOKEN}"}),
}


@pytest.mark.parametrize("refusal", REFUSALS)
def test_no_error_behind_an_error_holds_the_token(endpoint, monkeypatch, refusal):
    monkeypatch.setenv("JUDGE_TOKEN", TOKEN)
    endpoint.acts(always(REFUSALS[refusal]))
    with client(endpoint, token_env="JUDGE_TOKEN") as judge, pytest.raises(ConfigError) as raised:
        judge.ask(ASKED)
    pending, texts = [raised.value], []
    while pending:
        one = pending.pop()
        texts.append(repr(one) + str(one))
        pending += [other for other in (one.__cause__, one.__context__) if other is not None]
    assert len(texts) > 1
    assert not any(TOKEN in text for text in texts)


def test_its_connections_end_with_it(endpoint):
    endpoint.acts(always(lambda: said(SCORE)))
    with client(endpoint) as judge:
        judge.ask(ASKED)
        assert not judge._endpoints._all[0].transport._client.is_closed()
    assert judge._endpoints._all[0].transport._client.is_closed()


def test_a_judge_in_a_fork_says_so_and_ends(endpoint):
    endpoint.acts(always(lambda: said(SCORE)))
    with client(endpoint) as judge:
        assert judge.ask(ASKED)[0].missing is None
        assert "forked" in in_a_fork(lambda: judge.ask(ASKED)[0].missing)
