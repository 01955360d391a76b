"""Images by the frozen pipeline."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from diffusers.pipelines.qwenimage.pipeline_qwenimage import calculate_shift
from PIL import Image

from atelier.data.prompts import Prompt
from atelier.dynamics.schedules import exponential_shift, resolution_mu
from atelier.errors import ConfigError
from atelier.policies.base import Sample
from atelier.policies.qwen.areas import Areas
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.conditioning import Conditioned, Conditioning
from atelier.policies.qwen.environment import Environment, Sampling, Settings, batches
from atelier.policies.qwen.negative import Negative
from atelier.policies.qwen.noise import latents, noise_keys, packed
from atelier.policies.qwen.presets import PRESETS, scheduler_of
from atelier.policies.qwen.templates import stock
from tests.support.random_qwen import RELEASED, SIDE, WIDTH, Kind, build_pipeline

SMALL = Areas(SIDE**2, SIDE**2)
WORDS = ("a red dog", "two blue cats and a sign that says KEM", "x", "nine yellow pears")
KEYS = (11, 11, 13, 2**64 - 1)  # two of them the same: what differs then is the text
PLAIN, GUIDED = Sampling(3), Sampling(3, 4.0)
ONE_GREY_LEVEL = 1  # float32 sums in another order, rounded to one of two neighbours
SEEN = 5  # grey levels; a difference that is none of rounding


class World:
    def __init__(self, kind: Kind, **settings: Any) -> None:
        self.pipeline: Any = build_pipeline(kind)
        self.encoder = self.pipeline.text_encoder
        self.edits = kind == "edit"
        self.chat = Chat(self.pipeline, stock(self.pipeline), SMALL)
        given = {"side": SIDE, "batch": 8, "areas": SMALL, **settings}
        self.environment = Environment(self.pipeline, Settings(**given), "cpu")
        window = given.get("window", 1024)
        self.condition = Conditioning(self.chat, window)
        frozen = copy.deepcopy(self.encoder)
        self.negative = Negative(self.chat, lambda prompts: self.condition(frozen, prompts))

    def sources(self) -> list[Image.Image] | None:
        return [picture(index) for index in range(len(WORDS))] if self.edits else None

    def conditions(self) -> Conditioned:
        sources = self.sources() or [None] * len(WORDS)
        prompts = [self.chat.words(*both) for both in zip(WORDS, sources, strict=True)]
        return self.condition(self.encoder, prompts)

    def images(self, sampling: Sampling, rows: list[int] | None = None) -> np.ndarray:
        rows = rows if rows is not None else list(range(len(WORDS)))
        sources = self.sources()
        return self.environment.images(
            self.conditions().rows(rows),
            [KEYS[row] for row in rows],
            sampling,
            self.negative,
            None if sources is None else [sources[row] for row in rows],
        )


def picture(index: int) -> Image.Image:
    generator = torch.Generator().manual_seed(index)
    pixels = torch.randint(0, 256, (SIDE, SIDE, 3), generator=generator)
    return Image.fromarray(pixels.to(torch.uint8).numpy())


def distance(first: np.ndarray, second: np.ndarray) -> int:
    return int(np.abs(first.astype(int) - second.astype(int)).max())


@contextmanager
def hooked(module: Any, hook: Callable[..., Any]) -> Iterator[None]:
    handle = module.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def widths_of(world: World, run: Callable[[], Any]) -> list[tuple[int, int]]:
    """Rows and tokens of the text of every call of the transformer."""
    seen = []

    def note(_: Any, args: Any, given: Any) -> None:
        seen.append(tuple(given["encoder_hidden_states"].shape[:2]))

    with hooked(world.pipeline.transformer, note):
        run()
    return seen


# Images -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sampling", [PLAIN, GUIDED])
def test_images_are_those_of_the_pipeline_itself(sampling: Sampling) -> None:
    world = World("text")
    painted = world.images(sampling)
    assert painted.shape == (4, SIDE, SIDE, 3)
    assert painted.dtype == np.uint8
    for row, words in enumerate(WORDS):
        theirs = world.pipeline(
            words,
            negative_prompt=" ",
            true_cfg_scale=sampling.guidance_scale,
            num_inference_steps=sampling.num_inference_steps,
            height=SIDE,
            width=SIDE,
            generator=torch.Generator().manual_seed(KEYS[row]),
        ).images[0]
        assert distance(painted[row], np.asarray(theirs)) <= ONE_GREY_LEVEL
    assert distance(painted[0], painted[1]) > SEEN


@pytest.mark.parametrize("sampling", [PLAIN, GUIDED])
def test_edits_are_those_of_the_pipeline_itself(sampling: Sampling) -> None:
    """Given where the image is in the text, which diffusers 0.42 leaves out."""
    world = World("edit")
    painted = world.images(sampling)

    def with_kinds(_: Any, args: Any, given: Any) -> Any:
        kinds = (given["input_ids"] == world.chat.image_pad).long()
        return args, {**given, "mm_token_type_ids": kinds}

    for row, words in enumerate(WORDS):
        with SMALL.applied(), hooked(world.encoder, with_kinds):
            theirs = world.pipeline(
                picture(row),
                words,
                negative_prompt=" ",
                true_cfg_scale=sampling.guidance_scale,
                num_inference_steps=sampling.num_inference_steps,
                height=SIDE,
                width=SIDE,
                generator=torch.Generator().manual_seed(KEYS[row]),
            ).images[0]
        assert distance(painted[row], np.asarray(theirs)) <= ONE_GREY_LEVEL
    assert distance(painted[0], painted[1]) > SEEN


@pytest.mark.parametrize("kind", ["text", "edit"])
@pytest.mark.parametrize("sampling", [PLAIN, GUIDED])
def test_batches_by_length_give_the_images_made_one_by_one(kind: Kind, sampling: Sampling) -> None:
    world = World(kind, batch=3)
    together = world.images(sampling)
    for row in range(len(WORDS)):
        assert distance(together[row], world.images(sampling, [row])[0]) <= ONE_GREY_LEVEL


def test_rows_that_are_about_as_long_are_painted_together() -> None:
    assert list(batches((5, 90, 7, 80, 6), 2)) == [[1, 3], [2, 4], [0]]
    assert list(batches((3, 3, 3), 8)) == [[0, 1, 2]]


def test_fault_images_land_on_other_samples() -> None:
    """Whatever the order they are painted in: each is its own row's."""
    world = World("text", batch=2)
    forward, backward = world.images(PLAIN), world.images(PLAIN, [3, 2, 1, 0])
    for row in range(4):
        assert distance(forward[row], backward[3 - row]) <= ONE_GREY_LEVEL
        others = [distance(forward[row], forward[other]) for other in range(4) if other != row]
        assert min(others) > SEEN


def test_fault_sub_batches_keep_the_padding_of_the_whole() -> None:
    world = World("text", batch=2)
    lengths = world.conditions().lengths
    longest = sorted(lengths, reverse=True)
    assert widths_of(world, lambda: world.images(Sampling(1 + 1))) == [
        *[(2, longest[0])] * 2,
        *[(2, longest[2])] * 2,
    ]


def test_fault_default_of_512_tokens_leaves_a_completions_end_without_effect() -> None:
    world = World("text")
    # They differ behind what is read by default alone.
    completions = [[65] * 510 + [letter] * 400 for letter in (66, 67)]
    two = world.condition(world.encoder, [world.chat.words("a red dog")] * 2, completions)
    keys = [1] * 2
    red, blue = world.environment.images(two, keys, PLAIN)
    assert distance(red, blue) > SEEN
    by_default = world.pipeline(
        prompt_embeds=two.embeds,
        prompt_embeds_mask=two.mask,
        true_cfg_scale=1.0,
        num_inference_steps=3,
        height=SIDE,
        width=SIDE,
        latents=latents(keys, 16, SIDE // 8, SIDE // 8),
        output_type="np",
    ).images
    assert np.array_equal(by_default[0], by_default[1])


def test_a_row_beyond_the_window_is_refused() -> None:
    world = World("text", window=40)
    mask = torch.ones(1, 41, dtype=torch.bool)
    with pytest.raises(ValueError, match="a row of 41 tokens, and 40 reach"):
        world.environment.images(Conditioned(torch.zeros(1, 41, WIDTH), mask, (41,)), [1], PLAIN)


def test_fault_several_images_a_prompt_get_each_others_masks() -> None:
    """diffusers 0.42 puts embeddings in the order p0 p0 p1 p1, and their masks m0 m1 m0 m1."""
    world = World("text")
    two = world.conditions().rows([0, 1])
    embeds, mask = world.pipeline.encode_prompt(
        prompt=None, prompt_embeds=two.embeds, prompt_embeds_mask=two.mask, num_images_per_prompt=2
    )
    assert torch.equal(embeds[0], embeds[1])
    assert torch.equal(mask[1], two.mask[1])  # beside the embeddings of the first prompt
    group = world.environment.images(two.rows([0, 0, 1, 1]), [1, 2, 1, 2], PLAIN)
    for row, (prompt, key) in enumerate([(0, 1), (0, 2), (1, 1), (1, 2)]):
        alone = world.environment.images(two.rows([prompt]), [key], PLAIN)
        assert distance(group[row], alone[0]) <= ONE_GREY_LEVEL


def test_halves_are_painted_where_there_is_no_memory_for_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World("text", batch=4)
    expected = world.images(GUIDED)

    def small_device(_: Any, args: Any, given: Any) -> None:
        if len(given["hidden_states"]) > 1:
            raise torch.OutOfMemoryError("out of memory")

    with hooked(world.pipeline.transformer, small_device), caplog.at_level(logging.WARNING):
        found = world.images(GUIDED)
    assert distance(found, expected) <= ONE_GREY_LEVEL
    assert "no memory to paint 4 images together, so 2 are" in caplog.text

    def no_device(_: Any, args: Any, given: Any) -> None:
        raise torch.OutOfMemoryError("out of memory")

    with (
        hooked(world.pipeline.transformer, no_device),
        pytest.raises(torch.OutOfMemoryError),
    ):
        world.images(PLAIN)


def test_images_do_not_depend_on_the_callers_autocast() -> None:
    world = World("text")
    expected = world.images(PLAIN, [0])
    conditions = world.conditions().rows([0])
    with torch.autocast("cpu", torch.bfloat16):
        found = world.environment.images(conditions, KEYS[:1], PLAIN)
    assert np.array_equal(found, expected)


def test_what_is_needed_has_to_be_there() -> None:
    text, edit = World("text"), World("edit")
    one = text.conditions().rows([0])
    images = text.environment.images
    with pytest.raises(ValueError, match="1 rows have 2 keys"):
        images(one, [1, 2], PLAIN)
    with pytest.raises(ValueError, match="guidance needs a negative prompt"):
        images(one, [1], GUIDED)
    with pytest.raises(ValueError, match="text to image has none"):
        images(one, [1], PLAIN, sources=[picture(0)])
    with pytest.raises(ValueError, match="edits have source images"):
        edit.environment.images(one, [1], PLAIN)
    with pytest.raises(ValueError, match="1 rows have 2 source images"):
        edit.environment.images(one, [1], PLAIN, sources=[picture(0)] * 2)


@pytest.mark.parametrize("side", [72, 70])
def test_sizes_that_would_be_cut_are_refused(side: int) -> None:
    with pytest.raises(ConfigError, match=rf"policy\.resolution: {side} .* multiple of 16"):
        World("text", side=side)


@pytest.mark.parametrize(("kind", "most"), [("text", 1024), ("edit", 4094)])
def test_windows_wider_than_the_transformers_positions_are_refused(kind: Kind, most: int) -> None:
    assert World(kind, window=most).environment.side == SIDE
    with pytest.raises(ConfigError, match=rf"window: {most + 1}, and {most} tokens reach"):
        World(kind, window=most + 1)


def test_the_widest_window_of_edits_is_what_the_transformer_takes() -> None:
    world = World("edit", window=4094)
    mask = torch.ones(1, 4094, dtype=torch.bool)
    embeds = torch.randn(1, 4094, WIDTH, generator=torch.Generator().manual_seed(1))
    wide = Conditioned(embeds, mask, (4094,))
    assert world.environment.images(wide, [1], Sampling(2), sources=[picture(0)]).any()
    # One more has no position.
    with pytest.raises(RuntimeError):
        world.pipeline.transformer(
            hidden_states=torch.zeros(1, 16, 64),
            encoder_hidden_states=torch.zeros(1, 4095, WIDTH),
            timestep=torch.ones(1),
            img_shapes=[[(1, 4, 4)]],
        )


# Edits ------------------------------------------------------------------------------------------


def test_fault_list_of_images_is_several_references_of_one_edit() -> None:
    world = World("edit")
    conditions = world.conditions().rows([0])
    two = world.environment.images(
        conditions.rows([0, 0]), [1, 1], PLAIN, sources=[picture(0), picture(1)]
    )
    for row in range(2):
        alone = world.environment.images(conditions, [1], PLAIN, sources=[picture(row)])
        assert np.array_equal(two[row], alone[0])
    assert distance(two[0], two[1]) > SEEN
    with SMALL.applied():
        mixed = world.pipeline(
            [picture(0), picture(1)],
            prompt_embeds=conditions.embeds,
            prompt_embeds_mask=conditions.mask,
            true_cfg_scale=1.0,
            num_inference_steps=3,
            height=SIDE,
            width=SIDE,
            latents=latents([1], 16, SIDE // 8, SIDE // 8),
        ).images
    assert len(mixed) == 1
    assert distance(np.asarray(mixed[0]), two[0]) > SEEN


def test_the_areas_of_source_images_are_set_in_one_place_and_restored() -> None:
    published = edit_plus.CONDITION_IMAGE_SIZE, edit_plus.VAE_IMAGE_SIZE
    assert published == (384 * 384, 1024 * 1024)
    assert Areas() == Areas(*published)
    with SMALL.applied():
        assert (edit_plus.CONDITION_IMAGE_SIZE, edit_plus.VAE_IMAGE_SIZE) == (SIDE**2, SIDE**2)
    with pytest.raises(ZeroDivisionError), SMALL.applied():
        raise ZeroDivisionError
    assert published == (edit_plus.CONDITION_IMAGE_SIZE, edit_plus.VAE_IMAGE_SIZE)
    seen = []

    def note(_: Any, args: Any, given: Any) -> None:
        seen.append(given["img_shapes"][0])

    world = World("edit", areas=Areas(SIDE**2, (2 * SIDE) ** 2))
    with hooked(world.pipeline.transformer, note):
        world.images(PLAIN, [0])
    assert seen[0] == [(1, 4, 4), (1, 8, 8)]  # what is painted, and the source image
    assert published == (edit_plus.CONDITION_IMAGE_SIZE, edit_plus.VAE_IMAGE_SIZE)


# What is frozen ---------------------------------------------------------------------------------


def test_the_transformer_is_not_changed_and_a_change_is_noticed() -> None:
    world = World("text")
    environment, transformer = world.environment, world.pipeline.transformer
    assert not any(one.requires_grad for one in transformer.parameters())
    assert not any(one.requires_grad for one in world.pipeline.vae.parameters())
    assert not transformer.training
    world.images(GUIDED)
    environment.require_unchanged()
    assert len(environment.digest) == 64
    weight = transformer.transformer_blocks[1].attn.to_q.weight
    with torch.no_grad():
        weight[0, 0] += 1e-3
    with pytest.raises(RuntimeError, match=rf"has changed: its sha256 was {environment.digest}"):
        environment.require_unchanged()
    with torch.no_grad():
        weight[0, 0] -= 1e-3


def test_a_transformer_of_16_bits_has_a_digest_too() -> None:
    transformer = build_pipeline().transformer.to(torch.bfloat16)
    pipeline = build_pipeline()
    pipeline.register_modules(transformer=transformer, vae=pipeline.vae)
    environment = Environment(pipeline, Settings(side=SIDE), "cpu")
    assert environment.digest != World("text").environment.digest
    mask = torch.ones(1, 7, dtype=torch.bool)
    conditions = Conditioned(torch.randn(1, 7, WIDTH), mask, (7,))
    assert environment.images(conditions, [1], PLAIN).std() > 1


# Noise (T8) -------------------------------------------------------------------------------------


def samples(group: int) -> list[Sample]:
    return [Sample(4 * group + index, group, Prompt(group, 0, "a")) for index in range(4)]


def test_keys_of_a_group_are_one_or_as_many_as_its_samples() -> None:
    assert len({*noise_keys(0, 5, samples(1), shared=True)}) == 1
    assert len({*noise_keys(0, 5, samples(1), shared=False)}) == 4
    assert noise_keys(0, 5, samples(1), True)[0] != noise_keys(0, 5, samples(2), True)[0]


def test_fault_noise_that_never_changes_over_a_training() -> None:
    for shared in (True, False):
        first, second = (noise_keys(0, step, samples(1), shared) for step in (1, 2))
        assert not {*first} & {*second}
        assert first == noise_keys(0, 1, samples(1), shared)
        assert first != noise_keys(1, 1, samples(1), shared)


def drawn(world: World, count: int, generator: Any) -> torch.Tensor:
    """By diffusers."""
    return world.pipeline.prepare_latents(
        count, 16, SIDE, SIDE, torch.float32, torch.device("cpu"), generator
    )


def test_noise_is_that_of_a_list_of_generators() -> None:
    world = World("text")
    generators = [torch.Generator().manual_seed(key) for key in (7, 7, 2**64 - 1)]
    theirs, ours = drawn(world, 3, generators), latents([7, 7, 2**64 - 1], 16, 8, 8)
    assert torch.equal(ours, theirs)
    assert torch.equal(ours[0], ours[1])
    assert not torch.equal(ours[0], ours[2])


def test_fault_one_generator_is_no_common_noise() -> None:
    world = World("text")
    one = drawn(world, 3, torch.Generator().manual_seed(7))
    repeated = drawn(world, 3, [torch.Generator().manual_seed(7)] * 3)
    for theirs in (one, repeated):
        assert not torch.equal(theirs[0], theirs[1])
    common = latents([7] * 3, 16, 8, 8)
    assert torch.equal(common[0], common[1])
    assert torch.equal(common[0], latents([1, 7], 16, 8, 8)[1])  # whatever its place
    two = world.conditions().rows([0, 0])
    same = world.environment.images(two, [7, 7], PLAIN)
    assert distance(same[0], same[1]) <= ONE_GREY_LEVEL
    other = world.environment.images(two, [7, 8], PLAIN)
    assert distance(other[0], other[1]) > SEEN


# Golden values -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scale", "expected"),
    [(4.0, (2.451306, 4.357878)), (2.0, (2.649995, 4.239992)), (1.0, (3.0, 4.0))],
)
def test_golden_true_guidance(scale: float, expected: tuple[float, float]) -> None:
    """No. 1: a constant velocity takes the pipeline from its noise as far as it is long."""
    world = World("text")
    calls = []

    def constant(_: Any, args: Any, given: Any, output: Any) -> Any:
        calls.append(given["encoder_hidden_states"])
        velocity = torch.zeros_like(output[0])
        is_conditional = scale == 1 or len(calls) % 2 == 1
        velocity[..., :2] = torch.tensor((3.0, 4.0) if is_conditional else (1.0, 0.0))
        return (velocity,)

    start = latents([1], 16, SIDE // 8, SIDE // 8)
    one, without = world.conditions().rows([0]), world.negative.of()
    handle = world.pipeline.transformer.register_forward_hook(constant, with_kwargs=True)
    try:
        end = world.pipeline(
            prompt_embeds=one.embeds,
            prompt_embeds_mask=one.mask,
            negative_prompt_embeds=without.embeds,
            negative_prompt_embeds_mask=without.mask,
            true_cfg_scale=scale,
            num_inference_steps=4,
            height=SIDE,
            width=SIDE,
            latents=start,
            output_type="latent",
        ).images
    finally:
        handle.remove()
    assert len(calls) == (4 if scale == 1 else 8)
    found = (start - end)[..., :2]
    torch.testing.assert_close(found, torch.tensor(expected).expand_as(found), atol=1e-5, rtol=0)


ANCHORS = {"base_tokens": 256, "max_tokens": 8192, "base_shift": 0.5, "max_shift": 0.9}


@pytest.mark.parametrize(
    ("tokens", "released", "by_class"),
    [(256, 0.5, 0.5), (1024, 0.538710, 0.63), (4096, 0.693548, 1.15), (8192, 0.9, None)],
)
def test_golden_shift(tokens: int, released: float, by_class: float | None) -> None:
    """No. 2."""
    config = scheduler_of("released", build_pipeline().scheduler).config
    anchors = [config[name] for name in ("base_image_seq_len", "max_image_seq_len")]
    shifts = [config[name] for name in ("base_shift", "max_shift")]
    assert calculate_shift(tokens, *anchors, *shifts) == pytest.approx(released, abs=1e-6)
    assert resolution_mu(tokens, **ANCHORS) == pytest.approx(released, abs=1e-6)
    if by_class is not None:
        assert calculate_shift(tokens) == pytest.approx(by_class, abs=1e-6)
        assert resolution_mu(tokens) == pytest.approx(by_class, abs=1e-6)


SIGMAS = {
    ("released", 4): (1, 0.766709, 0.455614, 0.02, 0),
    ("released", 8): (1, 0.916024, 0.820046, 0.709295, 0.580075, 0.427347, 0.244054, 0.02, 0),
    ("lightning", 8): (1, 0.954545, 0.9, 0.833333, 0.75, 0.642857, 0.5, 0.3, 0),
}


@pytest.mark.parametrize(("preset", "steps"), list(SIGMAS))
def test_golden_noise_levels(preset: Any, steps: int) -> None:
    """No. 3 and 4, of 4096 tokens: diffusers' scheduler as the pipeline sets it, and our own."""
    expected = SIGMAS[preset, steps]
    scheduler = scheduler_of(preset, build_pipeline().scheduler)
    config = scheduler.config
    mu = calculate_shift(
        4096,
        config.base_image_seq_len,
        config.max_image_seq_len,
        config.base_shift,
        config.max_shift,
    )
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / steps, steps), mu=mu)
    assert scheduler.sigmas.tolist() == pytest.approx(expected, abs=1e-6)
    ours = exponential_shift(steps, mu, config.shift_terminal)
    assert ours == pytest.approx(expected, abs=1e-6)


def test_golden_packing() -> None:
    """No. 5."""
    x = torch.zeros(1, 16, 8, 8)
    x[0, 0] = torch.arange(64.0).view(8, 8)
    tokens = packed(x)
    assert tokens.shape == (1, 16, 64)
    assert tokens[0, 0, :4].tolist() == [0, 1, 8, 9]
    noise = torch.randn(2, 16, 8, 6)
    theirs = build_pipeline()._pack_latents(noise, 2, 16, 8, 6)
    assert torch.equal(packed(noise), theirs)


# Presets ----------------------------------------------------------------------------------------


def test_presets_are_the_published_ones() -> None:
    assert PRESETS["released"].scheduler == RELEASED
    assert (PRESETS["released"].num_inference_steps, PRESETS["released"].guidance_scale) == (50, 4)
    assert (PRESETS["lightning"].num_inference_steps, PRESETS["lightning"].guidance_scale) == (8, 1)


def test_fault_distilled_adapter_with_the_default_scheduler() -> None:
    """The levels that images are really made at are the preset's."""
    world = World("text", preset="lightning")
    world.images(Sampling(8), [0])
    found = world.pipeline.scheduler.sigmas.tolist()
    assert found == pytest.approx(SIGMAS["lightning", 8], abs=1e-6)
    own = World("text")
    own.images(Sampling(8), [0])
    assert own.pipeline.scheduler.sigmas.tolist()[-2] == pytest.approx(0.02, abs=1e-6)


def test_the_pipelines_own_levels_stay_as_they_are() -> None:
    pipeline = build_pipeline()
    pipeline.scheduler.register_to_config(max_shift=2.0)
    assert scheduler_of("pipeline", pipeline.scheduler).config.max_shift == 2.0
    assert scheduler_of("released", pipeline.scheduler).config.max_shift == 0.9
