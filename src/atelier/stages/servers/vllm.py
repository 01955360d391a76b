"""vLLM as a managed server: its command line, and when it is ready.

It shows its port, lists its model and answers health checks long before it can compute: the first
request compiles for many seconds. So it is ready when a golden one was answered.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
from packaging.version import Version

from atelier.config.paths import from_root
from atelier.config.sections.servers import VllmConfig
from atelier.errors import ConfigError

# Before it, limits of images were written otherwise, and every request was logged.
OLDEST = Version("0.10")
GOLDEN_SECONDS = 300.0
_SAID = 300  # characters of a refusal


@dataclass(frozen=True)
class Golden:
    """A request that proves that a server computes, and what it is called."""

    path: str
    body: Mapping[str, Any]
    what: str


@dataclass(frozen=True)
class Serving:
    """What one vLLM server serves.

    Attributes:
        key: where it is configured, such as `judges.scene`.
        identity: its name among what the server computes.
        name: what requests call the model.
        model: directory or hub id.
        title: the model, for people.
        arguments: of its command line, besides those of every server.
        gpu_arguments: the same, where it computes on GPUs.
        variables: of its environment, likewise.
        oldest: version of vLLM that serves it.
    """

    key: str
    identity: str
    name: str
    model: str
    title: str
    dtype: str
    vllm: VllmConfig
    golden: Golden
    arguments: Sequence[str] = ()
    gpu_arguments: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    oldest: Version = OLDEST

    @property
    def source(self) -> str:
        """The model as vLLM is given it."""
        folder = from_root(self.model)
        return str(folder) if folder.is_dir() else self.model


class VllmKind:
    """One life of a vLLM server, or of another one that answers alike."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._proof: _Proof | None = None

    def not_ready(self, client: httpx.Client, url: str) -> str | None:
        health = client.get(f"{url}/health")
        if health.status_code not in (200, 404):  # 404: another server, which has none
            return f"/health says {health.status_code}"
        models = client.get(f"{url}/v1/models")
        if models.status_code != 200:
            return f"/v1/models says {models.status_code}"
        served = [one.get("id") for one in models.json().get("data", [])]
        if self._serving.name not in served:
            raise ConfigError(
                f"{self._serving.key}: {url} serves {', '.join(map(str, served)) or 'nothing'} "
                f"and not {self._serving.name}"
            )
        return self._not_proven(url, dict(client.headers))

    def identities(self, client: httpx.Client, url: str) -> Mapping[str, Mapping[str, Any]]:
        answer = client.get(f"{url}/version")
        said = answer.json() if answer.status_code == 200 else {}
        identity = {
            "version": f"vllm-{said.get('version', 'unknown')}",
            "model": self._serving.title,
            "weights": weights_digest(from_root(self._serving.model)),
        }
        return {self._serving.identity: identity}

    def drain(self, client: httpx.Client, url: str, seconds: float) -> None:
        """Nothing to say: on SIGTERM it ends what it has begun."""

    def _not_proven(self, url: str, headers: Mapping[str, str]) -> str | None:
        if self._proof is None:
            self._proof = _Proof(url, headers, self._serving.golden)
        if self._proof.running:
            return f"{self._serving.golden.what} is under way"
        problem = self._proof.problem
        if problem is not None:
            self._proof = None  # ask again
        return problem


class _Proof:
    """One golden request, in a thread: it may take longer than a health check."""

    def __init__(self, url: str, headers: Mapping[str, str], golden: Golden) -> None:
        self.problem: str | None = None
        self._url, self._headers, self._golden = url, headers, golden
        self._thread = threading.Thread(target=self._ask, name="golden", daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    def _ask(self) -> None:
        try:
            answer = httpx.post(
                f"{self._url}{self._golden.path}",
                json=self._golden.body,
                headers={k: v for k, v in self._headers.items() if k == "authorization"},
                timeout=GOLDEN_SECONDS,
                trust_env=False,
            )
        except httpx.HTTPError as error:
            self.problem = f"{self._golden.what} was not answered: {type(error).__name__}"
            return
        if answer.status_code != 200:
            said = answer.text[:_SAID]
            self.problem = f"{self._golden.what} was answered {answer.status_code}: {said}"


def command(serving: Serving, python: Path, port: int, on_gpu: bool) -> list[str]:
    """How vLLM is started, on loopback.

    `vllm serve`, or the module, which later versions deprecate: the CPU build's wheel has no
    `vllm` program that works.
    """
    own = serving.vllm
    words = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", serving.source]
    if _distribution(python) == "vllm":
        words = [str(python.with_name("vllm")), "serve", serving.source]
    words += ["--served-model-name", serving.name]
    words += ["--host", "127.0.0.1", "--port", str(port), "--dtype", serving.dtype]
    words += ["--uvicorn-log-level", "warning"]
    if own.max_model_len is not None:
        words += ["--max-model-len", str(own.max_model_len)]
    words += serving.arguments
    if on_gpu:
        words += ["--gpu-memory-utilization", f"{own.gpu_memory_share:g}"]
        words += ["--tensor-parallel-size", str(own.tensor_parallel), *serving.gpu_arguments]
    else:
        words.append("--enforce-eager")  # compiling takes longer there than it saves
    return [*words, *own.arguments]


def variables(serving: Serving, token: str, on_gpu: bool) -> dict[str, str]:
    """What its environment holds besides this process's."""
    found = {"VLLM_API_KEY": token, "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    found |= serving.variables
    if not on_gpu:
        found["VLLM_CPU_KVCACHE_SPACE"] = "1"  # GiB
    if from_root(serving.model).is_dir():
        found["HF_HUB_OFFLINE"] = "1"
    return found


def installed_version(python: Path, oldest: Version = OLDEST) -> Version:
    """The vLLM of an environment, by its metadata: starting it to ask takes half a minute.

    Raises:
        ConfigError: there is none, or it is older than `oldest`.
    """
    found = [version for _, version in _distributions(python)]
    if not found:
        raise ConfigError(
            f"{python.parent.parent}: holds no vllm; `atelier environments create vllm` makes an "
            "environment that does, or name yours in server.environment"
        )
    version = Version(found[0])
    if version < oldest:
        raise ConfigError(f"{python.parent.parent}: vllm {version} is older than {oldest}")
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
