"""A real vLLM that draws a policy's completions: brought weights, probed, killed and back.

Needs its environment (`make test-vllm` makes it). Every start takes about half a minute.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.data.scenes import Scene, SceneObject, to_dict
from atelier.errors import Stopped
from atelier.policies.base import Rollout, Sample
from atelier.policies.language.draws import token_key
from atelier.policies.qwen.policy import QwenPolicy
from atelier.policies.qwen.served import answers, probe
from atelier.policies.qwen.served.files import encoder_files
from atelier.policies.qwen.served.sampler import ServedSampler
from atelier.policies.qwen.served.server import Passing, Server
from atelier.stages.servers.managed import ManagedServer
from atelier.stages.servers.served_models import sampler_serving
from atelier.stages.servers.specs import Place, vllm_spec
from tests.support.random_qwen import END, IMAGE, MARKS, SIDE, WIDE, save_pipeline
from tests.support.reward_services import wait_until

TOKEN = "sesam"
UP_SECONDS = 240
TOKENS = 24
MARK_TOKENS = set(range(256, 256 + len(MARKS))) - {END}
ROUNDING = 1e-4  # of a log-probability in float32
COLOURS = ("red", "blue", "green", "red")
PROMPTS = [
    Prompt(
        number,
        0,
        f"make the {colour} square yellow, and everything else {'very ' * 40 * number}dark",
        {"source_scene": to_dict(Scene((SceneObject("square", colour, (1, 1)),)))},
    )
    for number, colour in enumerate(COLOURS)
]


@dataclass(frozen=True)
class Served:
    """A policy of edits, and the server that draws for it."""

    policy: QwenPolicy
    sampler: ServedSampler
    managed: ManagedServer
    client: Server

    def brings(self) -> dict[str, float]:
        """The weights as they are now."""
        policy = self.policy
        weights = {name: one.detach().clone() for name, one in policy.trainable().items()}
        _, metrics = self.sampler.bring(weights, self.sampler.expected(policy.module))
        return metrics

    def learns(self, much: float = 0.1) -> None:
        """Other weights, as after an update."""
        with torch.no_grad():
            for one in self.policy.trainable().values():
                one += much * torch.randn_like(one) * (1 if one.dim() > 1 else 0)

    def writes(self, step: int = 1) -> Rollout:
        """A rollout without images."""
        samples = [Sample(index, index, prompt) for index, prompt in enumerate(PROMPTS)]
        prompts = self.policy.tools.read(PROMPTS)
        keys = [token_key(0, step, one) for one in samples]
        return self.policy._rollout(samples, prompts, self.sampler.write(prompts, keys))

    def gap(self, rollout: Rollout) -> float:
        """The largest between what the server said of its tokens, and the trainer's replay."""
        (part,) = self.policy.parts(rollout)
        with torch.no_grad():
            replayed = self.policy.replay(self.policy.module, rollout, part, False).log_prob
        return float((replayed - rollout.old_log_probs)[rollout.mask].abs().max())


# How completions are drawn: as published, and within what is likeliest.
DRAWING = {
    "lora": {"log_prob": "full"},
    "full": {"log_prob": "sampler", "temperature": 0.8, "top_k": 60, "top_p": 0.9},
}


def config_of(folder: Path, trainable: str) -> RunConfig:
    return RunConfig.model_validate(
        {
            "policy": {
                "family": "qwen",
                "path": str(folder),
                "resolution": SIDE,
                "trainable": trainable,
                "lora": {"rank": 4, "alpha": 8},
            },
            "rollout": {
                "kind": "edit",
                "num_inference_steps": 2,
                "completion": {"max_tokens": TOKENS, "backend": "vllm", **DRAWING[trainable]},
                "environment": {"condition_side": 64, "reference_side": 64},
                "old_log_prob": "recompute",
                "sampler": {
                    "tolerance": 1e-3,
                    "timeout": 60,
                    "deadline": 200,
                    "vllm": {"max_model_len": 2048},
                },
            },
            "algorithm": {"kl": "k3"},
            "launch": {"device": "cpu"},
        }
    )


@pytest.fixture(scope="module", params=["lora", "full"])
def served(request, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(request.param)
    pipeline = save_pipeline(folder / "pipeline", "edit", width=WIDE)
    config = config_of(pipeline, request.param)
    serving = sampler_serving(
        config, config.rollout.sampler, encoder_files(pipeline, folder / "model")
    )
    place = Place("rollout.sampler-0", folder / "server", folder / "record.json", TOKEN)
    managed = ManagedServer(vllm_spec(place, serving, config.rollout.sampler))
    managed.start()
    policy = QwenPolicy.load(config, "cpu")
    until_ready(managed)
    client = Server(managed.url, TOKEN, 60)
    yield Served(policy, policy.draw_at([client], 0, folder / "weights"), managed, client)
    client.close()
    managed.stop()


def until_ready(server: ManagedServer) -> None:
    wait_until(lambda: server.is_ready or server.problem is not None, UP_SECONDS)
    assert server.problem is None, server.problem


def test_completions_are_drawn_by_the_weights_that_were_brought(served: Served) -> None:
    """Source images and long prompts included, whose cached prefixes are of older weights."""
    drawn = []
    for _ in range(3):
        served.learns()
        assert served.brings()["sampler/probe_gap_max"] < ROUNDING
        rollout = served.writes()
        assert served.gap(rollout) < ROUNDING
        drawn.append(rollout.record["tokens"])
    assert len({tuple(one.flatten().tolist()) for one in drawn}) == 3
    again = served.writes()
    assert torch.equal(again.record["tokens"], drawn[-1])
    other = served.writes(step=2)
    assert not torch.equal(other.record["tokens"][:, :4], drawn[-1][:, :4])
    assert served.managed.restarts == 0


def test_stale_weights_stop_the_run(served: Served, monkeypatch) -> None:
    """The server is told that it has new ones, and is given the old ones."""
    served.brings()
    kept = served.sampler._version
    bring = served.sampler._delivery.bring
    monkeypatch.setattr(
        served.sampler._delivery,
        "bring",
        lambda server, version, folder: bring(server, version, kept.folder),
    )
    served.learns()
    with pytest.raises(Stopped, match=r"differ from the trainer's by .* other weights"):
        served.brings()


def test_a_version_that_is_over_answers_no_more(served: Served) -> None:
    served.brings()
    old = served.sampler._version
    served.learns()
    served.brings()
    served.sampler.follow(old)
    with pytest.raises(Passing, match=rf"{old.name}|other weights"):
        served.sampler._asked(old, *questions(served, old))


def questions(served: Served, version) -> tuple[list, list]:
    read = served.policy.tools.read(PROMPTS[:1])
    tokens = answers.unexpanded(read[0].chat.ids, IMAGE)
    image = served.sampler._image(read[0])
    model = served.sampler._delivery.model(version.name)
    return read, [answers.request(model, tokens, image, 7, served.policy.tools.writing)]


def test_marks_are_never_drawn(served: Served) -> None:
    """However likely: an image's placeholder in a completion would be taken for an image."""
    head = served.policy.module.encoder.lm_head
    rows = list(MARK_TOKENS)
    if head.weight.requires_grad:
        with torch.no_grad():
            head.weight[rows] = 3 * head.weight[rows] + head.weight[END] * 2
    served.brings()
    allowed = served.policy.tools.writing.never
    assert set(allowed) >= MARK_TOKENS
    tokens = [row for step in range(3) for row in served.writes(step).record["tokens"].tolist()]
    drawn = {token for row in tokens for token in row}
    assert not drawn & (MARK_TOKENS - {served.policy.tools.writing.pad})
    if head.weight.requires_grad:
        assert likeliest_mark(served) > 0.2


def likeliest_mark(served: Served) -> float:
    """How likely a mark would be after the probe's tokens, at most."""
    ids = torch.tensor([probe.probe_tokens(served.policy.tools.chat)])
    with torch.no_grad():
        chances = served.policy.module.encoder(input_ids=ids).logits.softmax(-1)
    return float(chances[0, :, list(MARK_TOKENS)].sum(-1).max())


# With an adapter: test_sampled_training.py.
@pytest.mark.parametrize("served", ["full"], indirect=True)
def test_killed_it_is_back_with_the_weights(served: Served) -> None:
    """Asked in the outage: no completion comes of the weights that it begins with."""
    served.learns()
    served.brings()
    before, restarts = served.writes().record["tokens"], served.managed.restarts
    root = psutil.Process(served.managed.pid)
    root.send_signal(signal.SIGKILL)
    rollout = served.writes()
    assert torch.equal(rollout.record["tokens"], before)
    assert served.gap(rollout) < ROUNDING
    assert served.managed.restarts == restarts + 1
