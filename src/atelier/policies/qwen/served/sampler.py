"""Completions by vLLM servers, which are brought the trained weights before each rollout.

Weights have a version, requests ask for it, and answers bear it (weights.py): a server that was
restarted meanwhile, and so has lost them, is found out by its first answer, is brought them again,
and asked again. Source: the Qwen vision GRPO guide.
"""

from __future__ import annotations

import logging
import secrets
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from atelier.config.schema import RunConfig
from atelier.errors import Stopped
from atelier.judge.pictures import data_uri
from atelier.policies.qwen.generation import Completions, completed
from atelier.policies.qwen.parts import Parts
from atelier.policies.qwen.reading import Read
from atelier.policies.qwen.served import answers, probe
from atelier.policies.qwen.served.patience import KEY, patiently
from atelier.policies.qwen.served.server import Passing, Server
from atelier.policies.qwen.served.weights import delivery_of
from atelier.processes.locks import waiting_for

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Version:
    """Weights that servers are to have.

    Attributes:
        name: used for no others.
        folder: of the files that they are read from.
        expected: what the trainer says of the probe.
    """

    name: str
    folder: Path
    expected: Tensor


class ServedSampler:
    """Draws a policy's completions.

    Args:
        servers: all of them.
        own: which of them this rank asks.
        folder: for weights; the servers see it under the same path.
        parts: what reads prompts, how completions are drawn, and where they are wanted.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        own: int,
        folder: Path,
        config: RunConfig,
        parts: Parts,
    ) -> None:
        self._servers = servers
        self._own = servers[own]
        self._folder = folder
        self._config = config.rollout.sampler
        self._delivery = delivery_of(config.policy)
        self._parts = parts
        self._probe = probe.probe_tokens(parts.chat)
        self._version: Version | None = None
        self._brought = 0
        # Whether this rank's server may have been restarted since it answered.
        self._is_lost = False

    # Weights -------------------------------------------------------------------------------------

    def expected(self, module: nn.Module) -> Tensor:
        """What the trainer says of the probe. Collective where its weights are not whole."""
        with self._parts.autocast():
            return probe.expected(module, self._parts.chat, self._probe, self._parts.device)

    def bring(
        self, weights: Mapping[str, Tensor], expected: Tensor
    ) -> tuple[Version, dict[str, float]]:
        """Bring weights to all servers, and prove that these answer with them. By one rank.

        Returns:
            The version, for the other ranks, and the probe's gaps: of log-probs, over all servers.

        Raises:
            Stopped: a server answers with other weights, or not at all.
        """
        version, before = self._written(weights, expected), self._version
        with ThreadPoolExecutor(len(self._servers)) as pool:
            brought = partial(self._bring_patiently, version)
            gaps = torch.stack(list(pool.map(brought, self._servers)))
        self.follow(version)
        if before is not None:
            self._forget(before)
        return version, {
            "sampler/probe_gap_mean": float(gaps.mean(1).max()),
            "sampler/probe_gap_max": float(gaps.max()),
        }

    def follow(self, version: Version) -> None:
        """Ask for these weights from now on."""
        self._version = version

    def close(self) -> None:
        for server in self._servers:
            server.close()

    def _written(self, weights: Mapping[str, Tensor], expected: Tensor) -> Version:
        self._brought += 1
        name = f"policy-{self._brought:06d}-{secrets.token_hex(4)}"
        folder = self._folder / name
        folder.mkdir(parents=True)
        self._delivery.write(weights, folder)
        return Version(name, folder.resolve(), expected)

    def _forget(self, version: Version) -> None:
        """Servers that cannot be told were restarted, and have forgotten it."""
        for server in self._servers:
            try:
                self._delivery.drop(server, version.name)
            except Passing as problem:
                logger.debug("%s: %s", KEY, problem)
        shutil.rmtree(version.folder, ignore_errors=True)

    def _bring_patiently(self, version: Version, server: Server) -> Tensor:
        return patiently(partial(self._bring_to, version, server), self._config.deadline)

    def _bring_to(self, version: Version, server: Server) -> Tensor:
        """Have a server answer with a version. Returns the probe's gaps [N]."""
        # Ranks that share it find out together that it was restarted.
        with waiting_for(self._folder / f"{self._servers.index(server)}.lock"):
            if not self._delivery.has(server, version.name):
                self._delivery.bring(server, version.name, version.folder)
        model = self._delivery.model(version.name)
        answer = server.post(answers.PATH, probe.question(model, self._probe))
        self._require_version(answer, version)
        gaps = (probe.said(answer, self._probe) - version.expected).abs()
        if not float(gaps.mean()) <= self._config.tolerance:  # nor is NaN a pass
            raise Stopped(
                f"{KEY}: after weights were brought to {server.url}, its log-probabilities of the "
                f"probe differ from the trainer's by {float(gaps.mean()):.2e} a token, at most "
                f"{float(gaps.max()):.2e}, above {KEY}.tolerance={self._config.tolerance:g}. It "
                "answers with other weights (stale ones, another model), or computes otherwise "
                "(another dtype). No weight was changed since the last step"
            )
        return gaps

    def _require_version(self, answer: Mapping[str, object], version: Version) -> None:
        if not self._delivery.answered(dict(answer), version.name):
            raise Passing(f"an answer by other weights than {version.name}")

    # Completions ---------------------------------------------------------------------------------

    def write(self, prompts: Sequence[Read], keys: Sequence[int]) -> Completions:
        """A completion of each prompt, by the weights that were brought last.

        Args:
            keys: one a row. The same key draws the same where the server batches alike.

        Raises:
            Stopped: there was no answer for `deadline` seconds, or none by these weights.
            ConfigError: the server reads prompts otherwise.
        """
        assert self._version is not None  # brought before every rollout
        version = self._version
        model = self._delivery.model(version.name)
        images = {id(one.source): self._image(one) for one in prompts}
        placeholder = self._parts.chat.image_pad
        bodies = [
            answers.request(
                model,
                answers.unexpanded(one.chat.ids, placeholder),
                images[id(one.source)],
                key,
                self._parts.writing,
            )
            for one, key in zip(prompts, keys, strict=True)
        ]
        attempt = partial(self._asked, version, prompts, bodies)
        return self._completions(patiently(attempt, self._config.deadline))

    def _asked(
        self, version: Version, prompts: Sequence[Read], bodies: Sequence[Mapping[str, object]]
    ) -> list[answers.Written]:
        if self._is_lost:
            self._bring_to(version, self._own)
        self._is_lost = True
        found = self._own.post_all(answers.PATH, bodies)
        for answer in found:
            self._require_version(answer, version)
        read = [
            answers.written(answer, one.chat, self._parts.writing)
            for answer, one in zip(found, prompts, strict=True)
        ]
        self._is_lost = False
        return read

    def _image(self, prompt: Read) -> str | None:
        return None if prompt.source is None else data_uri(self._parts.chat.seen(prompt.source))

    def _completions(self, found: Sequence[answers.Written]) -> Completions:
        """Padded on the right."""
        tokens = nn.utils.rnn.pad_sequence(
            [torch.tensor(one.tokens) for one in found], True, self._parts.writing.pad
        )
        log_probs = nn.utils.rnn.pad_sequence([torch.tensor(one.log_probs) for one in found], True)
        there = tokens.to(self._parts.device), log_probs.to(self._parts.device)
        return completed(*there, self._parts.writing.end)
