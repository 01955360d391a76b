"""A token policy of a few hundred weights: proof that the loop is not a diffusion loop.

It writes LENGTH tokens one after the other, each from a table that looks at the prompt and the
token before; the tokens are painted as grey pixels. An action is a token, and one forward pass
replays all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from atelier.data.keys import key
from atelier.data.prompts import Prompt
from atelier.policies.base import Generated, Part, Replay, Rollout, Sample, scored_rollout
from atelier.rewards.base import Score, ScoreBatch, Scores

LENGTH, VOCABULARY = 6, 4


class TokenTable(nn.Module):
    """Logits of the next token given the one before (VOCABULARY stands for the beginning)."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCABULARY + 1, 8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, previous: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(previous)))


class ToyTokenPolicy:
    """See policies.base.Policy."""

    kl_forms = frozenset({"k3"})

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._step = 0
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.module: nn.Module = TokenTable()
        self._reference: nn.Module | None = None

    def prepare_reference(self) -> None:
        self._reference = TokenTable().requires_grad_(False)
        self._reference.load_state_dict(self.module.state_dict())

    def begin_step(self, step: int) -> Mapping[str, float]:
        self._step = step
        return {}

    @torch.no_grad()
    def rollout(self, module: nn.Module, samples: Sequence[Sample]) -> Rollout:
        tokens = torch.stack(
            [self._write(module, key("toy", self._seed, self._step, s.index)) for s in samples]
        )
        images = np.repeat(tokens.numpy().astype(np.uint8)[:, None, :, None] * 80, 3, axis=3)
        log_probs = self._log_probs(module, tokens)
        return Rollout(samples, LENGTH, log_probs, images, {"tokens": tokens})

    def _write(self, module: nn.Module, noise_key: int) -> Tensor:
        generator = torch.Generator().manual_seed(noise_key)
        tokens = [VOCABULARY]
        for _ in range(LENGTH):
            probabilities = module(torch.tensor([tokens[-1]])).softmax(-1)
            tokens.append(int(torch.multinomial(probabilities, 1, generator=generator)))
        return torch.tensor(tokens[1:])

    @staticmethod
    def _log_probs(module: nn.Module, tokens: Tensor) -> Tensor:
        start = torch.full((len(tokens), 1), VOCABULARY)
        logits = module(torch.cat([start, tokens[:, :-1]], dim=1))
        return logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]

    def parts(self, rollout: Rollout) -> Iterator[Part]:
        yield Part(slice(0, LENGTH))

    def replay(
        self, module: nn.Module, rollout: Rollout, part: Part, with_reference: bool
    ) -> Replay:
        tokens = rollout.record["tokens"]
        log_prob = self._log_probs(module, tokens)[:, part.actions]
        if not with_reference:
            return Replay(log_prob)
        assert self._reference is not None
        with torch.no_grad():
            reference = self._log_probs(self._reference, tokens)[:, part.actions]
        return Replay(log_prob, {"log_prob": log_prob, "reference_log_prob": reference})

    def pack(self, rollout: Rollout) -> Mapping[str, Tensor]:
        assert rollout.old_log_probs is not None
        return {"tokens": rollout.record["tokens"], "old_log_probs": rollout.old_log_probs}

    def unpack(self, samples: Sequence[Sample], tensors: Mapping[str, Tensor]) -> Rollout:
        record = {"tokens": tensors["tokens"]}
        return scored_rollout(samples, LENGTH, tensors["old_log_probs"], record)

    def generate(
        self, module: nn.Module, prompts: Sequence[Prompt], noise_keys: Sequence[int]
    ) -> Generated:
        tokens = torch.stack([self._write(module, one) for one in noise_keys])
        pixels = tokens.numpy().astype(np.uint8)[:, None, :, None] * 80
        return Generated(np.repeat(pixels, 3, axis=3))

    def trainable(self) -> dict[str, nn.Parameter]:
        return dict(self.module.named_parameters())

    def fresh_module(self) -> nn.Module:
        return TokenTable()

    def close(self) -> None: ...


class Brightness:
    """A toy reward: mean brightness. One image in `missing_every` has no score."""

    name = "brightness"
    direction = "higher_is_better"
    value_range = (0.0, 1.0)
    version = "1"

    def __init__(self, missing_every: int = 0) -> None:
        self._missing_every = missing_every

    def score(self, batch: ScoreBatch) -> Scores:
        from atelier.rewards.base import Missing

        values: list[Score] = []
        for number, image in enumerate(batch.images):
            if self._missing_every and number % self._missing_every == 0:
                values.append(Missing("the toy reward is out"))
            else:
                values.append(float(np.asarray(image).mean()) / 255)
        return Scores(self.name, values)

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        return ScoreBatch([], [], [], []), [], 0.0
