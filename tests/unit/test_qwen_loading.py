"""Pipelines that can be opened, and what is said of those that cannot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import QwenImagePipeline
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

from atelier.config.facts.qwen import QwenFacts, pipeline_kind, read_qwen, require_shifting
from atelier.config.schema import RunConfig
from atelier.errors import ConfigError
from atelier.policies.qwen.chat import Chat
from atelier.policies.qwen.conditioning import Conditioning
from atelier.policies.qwen.environment import Sampling
from atelier.policies.qwen.loading import (
    areas_of,
    load_encoder,
    load_pipeline,
    locate,
    open_environment,
)
from atelier.policies.qwen.templates import stock, template_of
from tests.support.random_qwen import SIDE, WIDTH, Kind, build_pipeline, save_pipeline

SMALL = {"condition_side": SIDE, "reference_side": SIDE}


def config(path: Path, **changes: Any) -> RunConfig:
    policy = {"path": str(path), "resolution": SIDE, **changes.pop("policy", {})}
    lora = policy.get("lora", {"target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]})
    rollout = {"environment": SMALL, **changes.pop("rollout", {})}
    return RunConfig(policy={**policy, "lora": lora}, rollout=rollout, **changes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    root = tmp_path_factory.mktemp("qwen")
    return {"text": save_pipeline(root / "text"), "edit": save_pipeline(root / "edit", "edit")}


@pytest.fixture
def copied(saved: dict[Kind, Path], tmp_path: Path) -> Callable[[Kind], Path]:
    return lambda kind: Path(shutil.copytree(saved[kind], tmp_path / "copy"))


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    held = json.loads(file.read_text())
    edit(held)
    file.write_text(json.dumps(held))


# What works -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "edit"])
def test_a_pipeline_comes_back_without_its_encoder(saved: dict[Kind, Path], kind: Kind) -> None:
    run = config(saved[kind])
    directory = locate(run.policy)
    pipeline, built = load_pipeline(directory, run), build_pipeline(kind)
    assert pipeline.text_encoder is None
    assert (getattr(pipeline, "processor", None) is not None) == (kind == "edit")
    for name in ("transformer", "vae"):
        expected = getattr(built, name).state_dict()
        for key, value in getattr(pipeline, name).state_dict().items():
            assert torch.equal(value, expected[key]), key
    encoder = load_encoder(directory, run.policy)
    assert not encoder.training
    for key, value in built.text_encoder.state_dict().items():
        assert torch.equal(encoder.state_dict()[key], value), key


def test_an_environment_is_what_a_configuration_says(saved: dict[Kind, Path]) -> None:
    run = config(
        saved["text"],
        rollout={"environment": {**SMALL, "preset": "lightning"}, "conditioning": {"window": 64}},
    )
    pipeline = load_pipeline(saved["text"], run)
    environment = open_environment(pipeline, run, "cpu")
    encoder = load_encoder(saved["text"], run.policy)
    chat = Chat(pipeline, template_of(run.rollout.conditioning, pipeline), areas_of(run))
    conditions = Conditioning(chat, run.rollout.conditioning.window)(encoder, [chat.words("a dog")])
    image = environment.images(conditions, [3], Sampling(2))[0]
    assert image.shape == environment.shape == (SIDE, SIDE, 3)
    assert pipeline.scheduler.config.base_shift == pytest.approx(1.098612)
    again = open_environment(load_pipeline(saved["text"], run), run, "cpu")
    assert again.digest == environment.digest
    assert np.array_equal(again.images(conditions, [3], Sampling(2))[0], image)


def test_parts_are_held_in_the_dtypes_of_the_configuration(saved: dict[Kind, Path]) -> None:
    run = config(
        saved["text"],
        policy={"trainable": "lora", "base_dtype": "bfloat16", "dtype": "bfloat16"},
        rollout={"environment": {**SMALL, "dtype": "bfloat16"}},
    )
    pipeline = load_pipeline(saved["text"], run)
    assert pipeline.transformer.dtype == torch.bfloat16
    assert pipeline.vae.dtype == torch.float32
    encoder = load_encoder(saved["text"], run.policy)
    assert encoder.dtype == torch.bfloat16
    full = config(saved["text"], policy={"trainable": "full"})
    assert load_encoder(saved["text"], full.policy).dtype == torch.float32
    environment = open_environment(pipeline, run, "cpu")
    chat = Chat(pipeline, stock(pipeline))
    conditions = Conditioning(chat, 1024)(encoder, [chat.words("a dog")])
    assert environment.images(conditions, [3], Sampling(2)).std() > 1


def test_loading_says_nothing(saved: dict[Kind, Path], capfd: pytest.CaptureFixture[str]) -> None:
    run = config(saved["edit"])
    load_pipeline(saved["edit"], run)
    load_encoder(saved["edit"], run.policy)
    assert capfd.readouterr() == ("", "")


def save_adapter(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A LoRA on queries as diffusers saves it, and what it adds to them."""
    transformer = build_pipeline().transformer
    lora = LoraConfig(r=4, lora_alpha=4, target_modules=["to_q"], init_lora_weights=False)
    transformer.add_adapter(lora)
    values = get_peft_model_state_dict(transformer)
    QwenImagePipeline.save_lora_weights(folder, transformer_lora_layers=values)
    blocks = [f"transformer_blocks.{index}.attn.to_q" for index in range(2)]
    added = {
        f"{one}.weight": values[f"{one}.lora_B.weight"] @ values[f"{one}.lora_A.weight"]
        for one in blocks
    }
    return folder / "pytorch_lora_weights.safetensors", added


def test_an_adapter_is_merged_into_the_frozen_transformer(
    saved: dict[Kind, Path], tmp_path: Path
) -> None:
    file, added = save_adapter(tmp_path)
    run = config(saved["text"], rollout={"environment": {**SMALL, "adapter": str(file)}})
    merged = load_pipeline(saved["text"], run).transformer.state_dict()
    before = build_pipeline().transformer.state_dict()
    assert merged.keys() == before.keys()
    for key, value in before.items():
        expected = value + added[key] if key in added else value
        torch.testing.assert_close(merged[key], expected)
        assert (key in added) != torch.equal(merged[key], value)


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (None, "there is no such file"),
        ({"weight": (2, 2)}, "is no LoRA of this pipeline's transformer: ValueError"),
        (
            {
                "transformer.nothing.lora_A.weight": (4, 64),
                "transformer.nothing.lora_B.weight": (64, 4),
            },
            "is no LoRA of this pipeline's transformer",
        ),
    ],
)
def test_what_is_no_adapter_is_told(
    saved: dict[Kind, Path], tmp_path: Path, tensors: dict[str, tuple[int, int]] | None, said: str
) -> None:
    file = tmp_path / "adapter.safetensors"
    if tensors is not None:
        save_file({name: torch.ones(shape) for name, shape in tensors.items()}, file)
    run = config(saved["text"], rollout={"environment": {**SMALL, "adapter": str(file)}})
    with pytest.raises(ConfigError, match=rf"environment\.adapter: .*{said}"):
        load_pipeline(saved["text"], run)


# What does not ----------------------------------------------------------------------------------


def test_dtypes_between_which_a_source_image_cannot_go_are_refused(
    saved: dict[Kind, Path],
) -> None:
    run = config(saved["edit"], rollout={"environment": {**SMALL, "dtype": "bfloat16"}})
    with pytest.raises(ConfigError, match=r"policy\.vae\.dtype: float32, and .* bfloat16"):
        load_pipeline(saved["edit"], run)


def test_no_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"policy\.path: .*nowhere.* at revision v1 is not a Qwen"
    ):
        locate(config(tmp_path / "nowhere", policy={"revision": "v1"}).policy)
    with pytest.raises(ConfigError, match=r"no model_index\.json"):
        pipeline_kind(tmp_path)


@pytest.mark.parametrize(
    ("kind", "edit", "said"),
    [
        ("text", {"_class_name": "QwenImageEditPipeline"}, "v1 of the edit model"),
        ("text", {"_class_name": "QwenImage21Pipeline"}, "_class_name is QwenImage21Pipeline"),
        (
            "text",
            {"_class_name": "StableDiffusion3Pipeline"},
            "QwenImagePipeline and QwenImageEdit",
        ),
        ("text", {"text_encoder": ["transformers", "T5EncoderModel"]}, "text_encoder is T5Encoder"),
        ("text", {"vae": ["diffusers", "AutoencoderKL"]}, "vae is AutoencoderKL, not Autoencoder"),
        ("text", {"transformer": [None, None]}, "has no transformer, which QwenImagePipeline"),
        ("text", {"scheduler": "x"}, "has no scheduler"),
        ("edit", {"processor": [None, None]}, "has no processor, which QwenImageEditPlusPipeline"),
        ("edit", {"processor": ["transformers", "CLIPProcessor"]}, "processor is CLIPProcessor"),
    ],
)
def test_other_pipelines_are_named(
    copied: Callable[[Kind], Path], kind: Kind, edit: dict[str, Any], said: str
) -> None:
    folder = copied(kind)
    change(folder / "model_index.json", lambda held: held.update(edit))
    for read in (pipeline_kind, lambda root: locate(config(root).policy)):
        with pytest.raises(ConfigError, match=rf"model_index\.json: .*{said}"):
            read(folder)


def test_an_edit_needs_its_processor(copied: Callable[[Kind], Path]) -> None:
    folder = copied("edit")
    change(folder / "model_index.json", lambda held: held.pop("processor"))
    with pytest.raises(ConfigError, match="has no processor"):
        pipeline_kind(folder)


@pytest.mark.parametrize("value", [False, None])
def test_fault_shift_is_ignored_without_dynamic_shifting(
    copied: Callable[[Kind], Path], value: bool | None
) -> None:
    folder = copied("text")
    file = folder / "scheduler" / "scheduler_config.json"
    change(file, lambda held: held.update(use_dynamic_shifting=value))
    for read in (require_shifting, lambda root: locate(config(root).policy)):
        with pytest.raises(ConfigError, match=r"scheduler_config\.json: use_dynamic_shifting is"):
            read(folder)


@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder"])
def test_weights_that_are_no_numbers_or_not_used_are_told(
    copied: Callable[[Kind], Path], part: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copied("text")
    run = config(folder)

    def opened(weights: dict[str, torch.Tensor]) -> None:
        save_file(weights, file, {"format": "pt"})
        load_encoder(folder, run.policy) if part == "text_encoder" else load_pipeline(folder, run)

    (file,) = (folder / part).glob("*.safetensors")
    weights = load_file(file)
    opened({**weights, "odd": torch.ones(2)})
    assert f"{part}: 1 weights of its files are not used, such as odd" in caplog.text
    next(iter(weights.values())).fill_(torch.nan)
    with pytest.raises(ConfigError, match=rf"{part}: .*has values that are no numbers"):
        opened(weights)


@pytest.mark.parametrize("part", ["transformer", "vae", "text_encoder"])
def test_missing_weights_are_told(copied: Callable[[Kind], Path], part: str) -> None:
    folder = copied("text")
    (file,) = (folder / part).glob("*.safetensors")
    weights = load_file(file)
    del weights[sorted(weights)[3]]
    save_file(weights, file, {"format": "pt"})
    run = config(folder)
    with pytest.raises(ConfigError, match=rf"{part}: 1 of the model's weights are not there"):
        load_encoder(folder, run.policy) if part == "text_encoder" else load_pipeline(folder, run)


@pytest.mark.parametrize(
    "name",
    [
        "transformer/config.json",
        "vae/diffusion_pytorch_model.safetensors",
        "text_encoder/model.safetensors",
        "text_encoder/config.json",
        "tokenizer/tokenizer.json",
        "processor/processor_config.json",
    ],
)
def test_damaged_files_are_told(copied: Callable[[Kind], Path], name: str) -> None:
    folder = copied("edit")
    file = folder / name
    file.write_bytes(file.read_bytes()[:50])
    run = config(folder)
    with pytest.raises(ConfigError, match=r"policy\.path: .*not a Qwen-Image pipeline"):
        load_encoder(folder, run.policy) if "encoder" in name else load_pipeline(folder, run)


# Facts ------------------------------------------------------------------------------------------


def facts(folder: Path, **policy: Any) -> QwenFacts:
    return read_qwen(folder, config(folder, policy=policy))


@pytest.mark.parametrize("kind", ["text", "edit"])
def test_sizes_are_those_of_the_loaded_parts(saved: dict[Kind, Path], kind: Kind) -> None:
    found, built = facts(saved[kind]), build_pipeline(kind)
    counts = {
        name: sum(one.numel() for one in getattr(built, name).parameters())
        for name in ("text_encoder", "transformer", "vae")
    }
    assert found.kind == kind
    assert found.parameters + found.vision_parameters == counts["text_encoder"]
    visual = sum(one.numel() for one in built.text_encoder.model.visual.parameters())
    assert found.vision_parameters == visual
    painter = found.painter
    assert painter.transformer_parameters == counts["transformer"]
    assert painter.vae_parameters == counts["vae"]
    frozen = found.vision_parameters + painter.transformer_parameters + painter.vae_parameters
    assert found.frozen_bytes == 4 * frozen
    text = built.text_encoder.config.text_config
    assert (found.layers, found.width) == (2, WIDTH)
    assert (found.vocabulary, found.feed_forward) == (text.vocab_size, 2 * WIDTH)
    assert found.key_value_width == WIDTH // 2
    assert (painter.layers, painter.width, painter.text_width) == (2, 64, WIDTH)
    assert (painter.image_tokens, painter.pixels) == (16, SIDE**2)


def test_an_adapter_is_counted_in_the_language_model_alone(saved: dict[Kind, Path]) -> None:
    lora = {"rank": 4, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}
    found = facts(saved["edit"], trainable="lora", lora=lora)
    assert found.adapter_parameters == 2 * 4 * (2 * (WIDTH + WIDTH) + 2 * (WIDTH + WIDTH // 2))
    assert not found.unknown_targets
    vision = {"rank": 4, "target_modules": ["q_proj", "qkv"]}
    assert facts(saved["edit"], trainable="lora", lora=vision).unknown_targets == ("qkv",)


def test_sizes_for_which_there_is_no_place_are_told(saved: dict[Kind, Path]) -> None:
    with pytest.raises(ConfigError, match=r"policy\.resolution: 72 pixels; .* multiple of 16"):
        facts(saved["text"], resolution=72)


def test_parts_of_other_pipelines_are_told(copied: Callable[[Kind], Path]) -> None:
    folder = copied("text")
    change(folder / "transformer" / "config.json", lambda held: held.update(joint_attention_dim=48))
    with pytest.raises(ConfigError, match="32 wide, and its transformer is conditioned with 48"):
        facts(folder)
    change(folder / "transformer" / "config.json", lambda held: held.pop("joint_attention_dim"))
    with pytest.raises(ConfigError, match="not those of a Qwen-Image pipeline: KeyError"):
        facts(folder)
    shutil.rmtree(folder / "vae")
    with pytest.raises(ConfigError, match="vae: no safetensors"):
        facts(folder)


# The configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rollout", "said"),
    [
        ({"conditioning": {"template": "own"}}, r"conditioning\.system: is required"),
        (
            {"conditioning": {"template": "own", "system": " "}},
            r"conditioning\.system: is required",
        ),
        ({"conditioning": {"system": "Paint."}}, "is for template own, and template is stock"),
        (
            {"environment": {"preset": "lightning"}, "guidance_scale": 4},
            r"rollout\.guidance_scale: is 1 with rollout\.environment\.preset: lightning",
        ),
        ({"conditioning": {"window": 5000}}, "less than or equal to 4096"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(rollout: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        RunConfig(rollout=rollout)
