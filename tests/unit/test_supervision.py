"""The supervised loss beside that of the rewards: its gradient, its mix, its draws."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from atelier.algorithms.registry import make_algorithm
from atelier.algorithms.supervised import flow_matching_loss
from atelier.config.schema import RunConfig
from atelier.config.sections.rewards import JpegConfig
from atelier.data.captioned import captioned_table
from atelier.data.ground_truth import ground_truth_image
from atelier.data.keys import key, uniform
from atelier.data.prompts import Prompt, PromptSet
from atelier.dynamics.schedules import training_level
from atelier.errors import DataError, PlanError
from atelier.policies.base import Captioned, LearnsFromPictures
from atelier.policies.sd3.encoder import ImageEncoder
from atelier.policies.sd3.policy import SD3Policy
from atelier.policies.sd3.tiny import build_pipeline
from atelier.rewards.reward_set import Reward, RewardSet
from atelier.rewards.scorers.jpeg import JpegCompressibility
from atelier.tracking.run_directory import RunDirectory
from atelier.training.distributed import World
from atelier.training.engines import DdpEngine
from atelier.training.experience import Collector, Experience
from atelier.training.journal import Journal
from atelier.training.measures import Stopwatch
from atelier.training.session import Session
from atelier.training.supervision import Supervision
from atelier.training.updates import Learner
from tests.support.runs import SMALLEST, untrained_pipeline
from tests.support.toy_token_policy import ToyTokenPolicy

WORLD = World(0, 1, torch.device("cpu"))
PROMPTS = [Prompt(i, 0, f'the word "{word}" in red', {}) for i, word in enumerate(("ABE", "KEM"))]


def configured(**sft) -> RunConfig:
    micro_batch = sft.pop("micro_batch_size", 4)
    return RunConfig.model_validate(
        {
            "data": {"sft": {"source": "scenes", "scenes": 24}},
            "policy": {
                "path": str(untrained_pipeline()),
                "max_sequence_length": 16,
                "text": {"disk_gigabytes": 0},
            },
            "rollout": {
                "group_size": 4,
                "micro_batch_size": micro_batch,
                "num_inference_steps": 4,
                "noise_level": 0.8,
            },
            "algorithm": {"advantage_from": "gdpo", "advantage_ddof": 1},
            "train": {"prompts_per_step": 2, "updates_per_step": 1, "sft": sft},
            "rewards": {"jpeg_compressibility": {"weight": 1.0}},
        }
    )


@functools.cache
def policy() -> SD3Policy:
    torch.set_num_threads(1)
    return SD3Policy.load(configured(), "cpu")


@functools.cache
def table() -> PromptSet:
    found = captioned_table(configured().data)
    assert found is not None
    return found


def supervision(rank: int = 0, size: int = 1, **sft) -> Supervision:
    config = configured(**{"coefficient": 0.3, "pictures_per_update": 8, **sft})
    return Supervision(config, table(), policy(), World(rank, size, torch.device("cpu")))


def losses_of(batch: Sequence[Captioned]) -> Tensor:
    pixels = np.stack([policy().pixels(one) for one in batch])
    return policy().picture_losses(policy().module, batch, pixels)


# What is drawn ------------------------------------------------------------------------------------


def test_ranks_share_the_micro_batches_that_one_would_have() -> None:
    whole = supervision().batches(3, 1)
    assert [len(batch) for batch in whole] == [4, 4]
    shared = [supervision(rank, 2).batches(3, 1) for rank in range(2)]
    assert [one for batches in shared for one in batches] == list(whole)


def test_updates_have_pictures_and_draws_of_their_own() -> None:
    seen = [one for step in (1, 2, 3) for batch in supervision().batches(step, 0) for one in batch]
    assert len({one.key for one in seen}) == 24
    assert len({one.prompt.prompt_id for one in seen}) == 24, "an epoch meets every picture once"
    assert supervision().batches(2, 0) == supervision().batches(2, 0)


def test_only_every_so_many_steps_have_it_and_no_picture_is_passed_over() -> None:
    third = supervision(every=3)
    assert [bool(third.batches(step, 0)) for step in range(1, 7)] == [0, 0, 1, 0, 0, 1]
    drawn = [one.prompt for step in (3, 6, 9) for batch in third.batches(step, 0) for one in batch]
    assert len({one.prompt_id for one in drawn}) == 24
    assert third.policy_share(third.batches(1, 0)) == 1.0
    assert third.policy_share(third.batches(3, 0)) == 0.7


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0), (1.0, 800), (0.1, 80)])
def test_a_share_of_the_captions_is_dropped(share: float, expected: int) -> None:
    one = supervision(caption_dropout=share)
    shown = [each for step in range(1, 101) for batch in one.batches(step, 0) for each in batch]
    counted = Counter(each.caption == "" for each in shown)
    assert counted[True] == pytest.approx(expected, abs=0 if share in (0, 1) else 25)
    assert all(each.caption in ("", each.prompt.text) for each in shown)


def test_too_few_pictures_are_refused() -> None:
    with pytest.raises(PlanError, match="25 exceeds the 24"):
        supervision(pictures_per_update=25).batches(1, 0)


# What is computed ---------------------------------------------------------------------------------


def test_the_loss_of_a_picture_is_flow_matching_at_its_own_level() -> None:
    """Written out by hand for two pictures, one of them without a caption."""
    batch = [Captioned(table()[0], table()[0].text, 11), Captioned(table()[1], "", 12)]
    losses = losses_of(batch)
    shift = policy()._schedules.training_shift
    for place, one in enumerate(batch):
        image = ground_truth_image(one.prompt, policy().image_side)
        assert image is not None
        pixels = np.array(image)[None]
        clean = policy().latents(pixels, [key("encoding", one.key)])
        noise = policy().noise([key("noise", one.key)])[:, 0]
        sigma = training_level(uniform("level", one.key), shift)
        noisy = (1 - sigma) * clean + sigma * noise
        timestep = torch.tensor([1000 * sigma])
        conditions = policy().encode_texts([one.caption])
        velocity = policy().velocity(policy().module, noisy, timestep, conditions, 1.0)
        alone = flow_matching_loss(velocity, clean, noise)
        assert losses[place].item() == pytest.approx(alone.item(), rel=1e-5)


def test_a_picture_of_any_size_is_its_middle_square(tmp_path: Path) -> None:
    """Left and right of the middle, and of what is mixed with it in resizing, there may be
    anything."""
    middle = np.full((100, 400, 3), 200, np.uint8)
    middle[:, :100], middle[:, 300:] = 0, 90
    other = np.full((100, 100, 3), 200, np.uint8)
    batch = []
    for name, pixels in (("wide", middle), ("square", other)):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
        prompt = Prompt(0, 0, "grey", {"image": str(tmp_path / f"{name}.png")})
        batch.append(Captioned(prompt, "grey", 5))
    losses = losses_of(batch)
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)
    (tmp_path / "wide.png").unlink()
    with pytest.raises(DataError, match=r"'grey'.*wide\.png"):
        losses_of(batch)


def test_encoding_is_the_way_back_of_decoding() -> None:
    """Of the autoencoder of the embedded model, which was trained."""
    config = configured()
    trained = config.policy.model_copy(update={"path": "assets/tiny-sd3"})
    own = SD3Policy.load(config.model_copy(update={"policy": trained}), "cpu")
    image = ground_truth_image(table()[0], own.image_side)
    assert image is not None
    pixels = np.array(image)[None]
    again = own.decode(own.latents(pixels, [1])).wait()
    assert again.shape == pixels.shape == (1, 64, 64, 3)
    assert np.abs(again.astype(int) - pixels).mean() < 8


def test_latents_are_drawn_shifted_and_scaled() -> None:
    vae = build_pipeline(SMALLEST, seed=3).vae
    vae.register_to_config(shift_factor=0.5, scaling_factor=2.0)
    images = np.random.default_rng(1).integers(0, 256, (2, 64, 64, 3), np.uint8)
    found = vae.encode(torch.tensor(images).permute(0, 3, 1, 2) / 127.5 - 1).latent_dist
    noise = torch.randn(found.mean.shape, generator=torch.Generator().manual_seed(2))
    latents = ImageEncoder(vae).encode(images, noise)
    assert torch.allclose(latents / 2 + 0.5, found.mean + found.std * noise, atol=1e-5)
    assert not torch.allclose(latents / 2 + 0.5, found.mean, atol=1e-2)


def test_what_learns_from_pictures() -> None:
    assert isinstance(policy(), LearnsFromPictures)
    assert not isinstance(ToyTokenPolicy(1), LearnsFromPictures)


class Recording(DdpEngine):
    """Keeps the gradients of an update, and changes no weight."""

    gradients: Mapping[str, Tensor]

    def step(self, learning_rate: float) -> float:
        self.gradients = {
            name: one.grad.clone() for name, one in self._trainable.items() if one.grad is not None
        }
        self._optimizer.zero_grad()
        return 1.0


@pytest.fixture(scope="module", name="experience")
def _experience() -> Experience:
    config = configured()
    with RewardSet([Reward(JpegCompressibility(JpegConfig()))]) as rewards:
        collector = Collector(config, policy(), rewards, WORLD, PROMPTS)
        return collector.collect(collector.roll_out(1, 0, Stopwatch()), Stopwatch())


@pytest.fixture(name="update")
def _update(experience: Experience, tmp_path: Path):
    """Gradients and metrics of an update under some train.sft."""
    journal = Journal(RunDirectory(tmp_path), WORLD)

    def update(**sft) -> tuple[Mapping[str, Tensor], dict[str, float]]:
        config = configured(**sft)
        engine = Recording(
            policy().module,
            policy().trainable(),
            torch.optim.AdamW(policy().trainable().values()),
            config.train,
            WORLD,
        )
        session = Session(config, "digest", WORLD)
        parts = (config, policy(), make_algorithm(config), engine, session, journal, WORLD)
        own = Supervision(config, table(), policy(), WORLD) if config.train.sft.enabled else None
        metrics = Learner(*parts, own).learn(experience)
        return engine.gradients, metrics

    yield update
    journal.close()


def mixed(first, second, shares: tuple[float, float]) -> dict[str, Tensor]:
    return {name: shares[0] * first[name] + shares[1] * second[name] for name in first}


def assert_close(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        scale = theirs[name].abs().max()
        assert (value - theirs[name]).abs().max() <= 1e-4 * scale + 1e-8, name


def test_gradients_are_mixed_as_the_formula_has_it(update) -> None:
    rewards, plain = update()
    pictures, alone = update(coefficient=1.0, pictures_per_update=8)
    assert max(one.abs().max() for one in rewards.values()) > 0
    assert max(one.abs().max() for one in pictures.values()) > 0
    convex, metrics = update(coefficient=0.3, pictures_per_update=8)
    assert_close(convex, mixed(rewards, pictures, (0.7, 0.3)))
    additive, _ = update(coefficient=0.3, pictures_per_update=8, mix="additive")
    assert_close(additive, mixed(rewards, pictures, (1.0, 0.3)))
    assert "loss/sft" not in plain
    assert metrics["loss/sft"] == pytest.approx(alone["loss/sft"])
    assert metrics["loss/policy"] == pytest.approx(plain["loss/policy"])
    other, _ = update(coefficient=0.3, pictures_per_update=8, every=2)
    assert_close(other, rewards)


def test_pictures_are_read_beside_the_replays(update, monkeypatch: pytest.MonkeyPatch) -> None:
    """By another thread, and never more than two micro-batches ahead of what is learned."""
    read, learned, ahead, threads = [], [], [], set()
    pixels, losses, own = policy().pixels, policy().picture_losses, policy().replay
    plenty = threading.Event()

    def noted(one: Captioned) -> np.ndarray:
        threads.add(threading.current_thread().name.split("_")[0])
        read.append(one.prompt.prompt_id)
        ahead.append(len(read) - len(learned))
        if len(read) == 4:
            plenty.set()
        return pixels(one)

    def learning(module, batch: Sequence[Captioned], given: np.ndarray) -> Tensor:
        learned.extend(one.prompt.prompt_id for one in batch)
        return losses(module, batch, given)

    def replay(*parts):
        assert plenty.wait(20), "nothing is read while samples are replayed"
        return own(*parts)

    monkeypatch.setattr(policy(), "pixels", noted)
    monkeypatch.setattr(policy(), "picture_losses", learning)
    monkeypatch.setattr(policy(), "replay", replay)
    update(coefficient=1.0, pictures_per_update=12, micro_batch_size=2)
    assert threads == {"pictures"}
    assert learned == read
    assert len(read) == 12
    assert max(ahead) <= 4 + 2, "and those of the micro-batch that is taken"


def test_micro_batches_of_pictures_are_added_up(update) -> None:
    """One micro-batch of 4, or of 8 in two: the same mean over the same pictures."""
    for size in (4, 8):
        losses = [
            losses_of(batch).detach() for batch in supervision(micro_batch_size=size).batches(1, 0)
        ]
        assert len(losses) == 8 // size
        mean = torch.cat(losses).mean().item()
        _, metrics = update(coefficient=1.0, pictures_per_update=8)
        assert metrics["loss/sft"] == pytest.approx(mean, rel=1e-5)
