"""vLLM as a managed server: its command line, and when it is ready to judge.

It shows its port, lists its model and answers health checks long before it can answer a question:
the first one compiles for many seconds. So it is ready when one about an image was answered.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
from packaging.version import Version

from atelier.config.judge import JudgeConfig
from atelier.config.paths import from_root
from atelier.errors import ConfigError
from atelier.judge.pictures import data_uri
from atelier.rewards.scorers.judged import red_circle

# Before it, limits of images were written otherwise, and every request was logged.
OLDEST = Version("0.10")
GOLDEN_SECONDS = 300.0
_SAID = 300  # characters of a refusal


class VllmKind:
    """One life of a vLLM server, or another one that speaks OpenAI's chat completions.

    Args:
        judge: what it serves.
        name: the judge's, for the record.
    """

    def __init__(self, judge: JudgeConfig, name: str) -> None:
        self._judge = judge
        self._name = name
        self._golden: _Golden | None = None

    def not_ready(self, client: httpx.Client, url: str) -> str | None:
        health = client.get(f"{url}/health")
        if health.status_code not in (200, 404):  # 404: another server, which has none
            return f"/health says {health.status_code}"
        models = client.get(f"{url}/v1/models")
        if models.status_code != 200:
            return f"/v1/models says {models.status_code}"
        served = [one.get("id") for one in models.json().get("data", [])]
        if self._judge.name_at_endpoint not in served:
            raise ConfigError(
                f"judges.{self._name}: {url} serves {', '.join(map(str, served)) or 'nothing'} "
                f"and not {self._judge.name_at_endpoint}"
            )
        return self._not_proven(url, dict(client.headers))

    def identities(self, client: httpx.Client, url: str) -> Mapping[str, Mapping[str, Any]]:
        answer = client.get(f"{url}/version")
        said = answer.json() if answer.status_code == 200 else {}
        identity = {
            "version": f"vllm-{said.get('version', 'unknown')}",
            "model": self._judge.model,
            "weights": weights_digest(from_root(self._judge.model)),
        }
        return {self._name: identity}

    def drain(self, client: httpx.Client, url: str, seconds: float) -> None:
        """Nothing to say: on SIGTERM it ends what it has begun."""

    def _not_proven(self, url: str, headers: Mapping[str, str]) -> str | None:
        if self._golden is None:
            self._golden = _Golden(url, headers, self._judge)
        if self._golden.running:
            return "its first answer about an image is under way"
        problem = self._golden.problem
        if problem is not None:
            self._golden = None  # ask again
        return problem


class _Golden:
    """One question about an image, asked in a thread: it may take longer than a health check."""

    def __init__(self, url: str, headers: Mapping[str, str], judge: JudgeConfig) -> None:
        self.problem: str | None = None
        self._url, self._headers, self._judge = url, headers, judge
        self._thread = threading.Thread(target=self._ask, name="golden", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _ask(self) -> None:
        image = {"type": "image_url", "image_url": {"url": data_uri(red_circle())}}
        text = {"type": "text", "text": "Is there a red circle? Answer yes or no."}
        body = {
            "model": self._judge.name_at_endpoint,
            "messages": [{"role": "user", "content": [image, text]}],
            "max_tokens": 1,
            "logprobs": True,
            "top_logprobs": self._judge.top_logprobs,
        }
        try:
            answer = httpx.post(
                f"{self._url}/v1/chat/completions",
                json=body,
                headers={k: v for k, v in self._headers.items() if k == "authorization"},
                timeout=GOLDEN_SECONDS,
                trust_env=False,
            )
        except httpx.HTTPError as error:
            self.problem = f"no answer about an image: {type(error).__name__}"
            return
        if answer.status_code != 200:
            said = answer.text[:_SAID]
            self.problem = f"asked about an image it says {answer.status_code}: {said}"


def command(judge: JudgeConfig, python: Path, port: int, on_gpu: bool) -> list[str]:
    """How vLLM is started, on loopback.

    `vllm serve`, or the module, which later versions deprecate: the CPU build's wheel has no
    `vllm` program that works.
    """
    own = judge.vllm
    words = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", _model(judge)]
    if _distribution(python) == "vllm":
        words = [str(python.with_name("vllm")), "serve", _model(judge)]
    words += ["--served-model-name", judge.name_at_endpoint]
    words += ["--host", "127.0.0.1", "--port", str(port), "--dtype", judge.dtype]
    words += ["--limit-mm-per-prompt", json.dumps({"image": own.max_images, "video": 0})]
    words += ["--uvicorn-log-level", "warning"]
    if own.max_model_len is not None:
        words += ["--max-model-len", str(own.max_model_len)]
    if on_gpu:
        words += ["--gpu-memory-utilization", f"{own.gpu_memory_share:g}"]
        words += ["--tensor-parallel-size", str(own.tensor_parallel)]
        words += ["--data-parallel-size", str(own.data_parallel)]
    else:
        words.append("--enforce-eager")  # compiling takes longer there than it saves
    if own.sleep and on_gpu:
        words.append("--enable-sleep-mode")
    return [*words, *own.arguments]


def variables(judge: JudgeConfig, token: str, on_gpu: bool) -> dict[str, str]:
    """What its environment holds besides this process's."""
    found = {"VLLM_API_KEY": token, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if judge.vllm.sleep:
        found["VLLM_SERVER_DEV_MODE"] = "1"  # without it there is no way to ask for it
    if not on_gpu:
        found["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
    if from_root(judge.model).is_dir():
        found["HF_HUB_OFFLINE"] = "1"
    return found


def installed_version(python: Path) -> Version:
    """The vLLM of an environment, by its metadata: starting it to ask takes half a minute.

    Raises:
        ConfigError: there is none, or it is older than `OLDEST`.
    """
    found = [version for _, version in _distributions(python)]
    if not found:
        raise ConfigError(
            f"{python.parent.parent}: holds no vllm; `atelier environments create vllm` makes an "
            "environment that does, or name yours in judges.NAME.server.environment"
        )
    version = Version(found[0])
    if version < OLDEST:
        raise ConfigError(f"{python.parent.parent}: vllm {version} is older than {OLDEST}")
    return version


def _distribution(python: Path) -> str | None:
    return next((name for name, _ in _distributions(python)), None)


def _distributions(python: Path) -> list[tuple[str, str]]:
    """Name (vllm, vllm_cpu) and version of what is installed there."""
    folders = (python.parent.parent / "lib").glob("python3.*/site-packages/vllm*.dist-info")
    matches = (re.fullmatch(r"(vllm(?:_cpu)?)-(.+)\.dist-info", one.name) for one in folders)
    return [(match[1], match[2]) for match in matches if match]


def weights_digest(folder: Path) -> str | None:
    """sha256 of a local checkpoint's weights; None for a hub id."""
    files: Sequence[Path] = sorted(folder.glob("*.safetensors")) if folder.is_dir() else ()
    digest = sha256()
    for path in files:
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest() if files else None


def _model(judge: JudgeConfig) -> str:
    folder = from_root(judge.model)
    return str(folder) if folder.is_dir() else judge.model
