"""Names, merging and layout of exported weights, on bare safetensors without a pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from atelier.config.sections.export import ExportConfig
from atelier.config.sections.policy import LoraConfig
from atelier.errors import CheckpointError, ConfigError
from atelier.export.formats import require_survival
from atelier.export.lora import lora_pairs, lora_update, require_update
from atelier.export.merged import export_merged
from atelier.export.record import WrittenWeights
from atelier.export.sd3.base import WEIGHTS, BaseSD3

LORA = LoraConfig(rank=2, alpha=6, target_modules=["attn.to_q"])
SHARDS = [f"diffusion_pytorch_model-0000{i}-of-00002.safetensors" for i in (1, 2)]
INDEX = f"{WEIGHTS}.index.json"


@pytest.fixture
def base(tmp_path: Path) -> BaseSD3:
    """A sharded transformer stored in float16, with one other component."""
    root = tmp_path / "base"
    for name in ("transformer", "vae", "unrelated"):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text(f'{{"of": "{name}"}}')
    index = {"_class_name": "StableDiffusion3Pipeline", "transformer": ["diffusers", "A"]}
    (root / "model_index.json").write_text(json.dumps({**index, "vae": ["diffusers", "B"]}))
    (root / "LICENSE.md").write_text("licence")
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.randn(shape, generator=generator).half()
        for name, shape in {
            "block.0.attn.to_q.weight": (4, 3),
            "block.0.attn2.to_q.weight": (4, 3),
            "block.0.norm.weight": (4,),
        }.items()
    }
    names = sorted(tensors)
    shards = {SHARDS[0]: names[:1], SHARDS[1]: names[1:]}
    for file, held in shards.items():
        save_file({name: tensors[name] for name in held}, root / "transformer" / file)
    weight_map = {name: file for file, held in shards.items() for name in held}
    (root / "transformer" / INDEX).write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map})
    )
    return BaseSD3.open(str(root))


def stored(base: BaseSD3) -> dict[str, torch.Tensor]:
    return {name: tensor for file in base.weight_files() for name, tensor in base.tensors(file)}


def lora_tensors(b: float = 0.5) -> dict[str, torch.Tensor]:
    return {
        "block.0.attn.to_q.lora_A.default.weight": torch.arange(6.0).reshape(2, 3),
        "block.0.attn.to_q.lora_B.default.weight": torch.full((4, 2), b),
    }


def test_lora_is_merged_at_alpha_over_rank_in_float32_and_shards_stay(
    base: BaseSD3, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    output.mkdir()
    written = export_merged(base, lora_tensors(), LORA, torch.float32, output)
    before = stored(base)
    after = {k: v for file in SHARDS for k, v in load_file(output / "transformer" / file).items()}
    name = "block.0.attn.to_q.weight"
    update = 3 * torch.full((4, 2), 0.5) @ torch.arange(6.0).reshape(2, 3)
    assert torch.equal(after[name], before[name].float() + update)
    for other in set(before) - {name}:
        assert torch.equal(after[other], before[other].float())
    assert written.tensors == 3
    assert written.update_survival == pytest.approx(1, abs=1e-5)
    index = json.loads((output / "transformer" / INDEX).read_text())
    assert index["metadata"]["total_size"] == 4 * (12 + 12 + 4)
    assert (output / "LICENSE.md").read_text() == "licence"
    assert (output / "vae" / "config.json").exists()
    assert not (output / "unrelated").exists(), "not a component of the pipeline"


def test_merged_in_float32_and_rounded_once(base: BaseSD3, tmp_path: Path) -> None:
    """Rounding base or update first would give other bits."""
    tensors = {"block.0.norm.weight": torch.tensor([1 + 2**-9, 1 + 2**-12, 0.1, -3.3])}
    output = tmp_path / "out"
    output.mkdir()
    export_merged(base, tensors, None, torch.bfloat16, output)
    after = load_file(output / "transformer" / SHARDS[1])
    name = "block.0.norm.weight"
    assert torch.equal(after[name], tensors[name].bfloat16())
    assert {tensor.dtype for tensor in after.values()} == {torch.bfloat16}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({}, "no trained tensors"),
        ({"block.9.norm.weight": torch.ones(4)}, "no counterpart"),
        ({"block.0.norm.weight": torch.ones(5)}, "another base"),
        ({"block.0.norm.weight": torch.full((4,), torch.nan)}, "not finite"),
    ],
)
def test_tensors_of_another_base_or_a_diverged_run_are_refused(
    base: BaseSD3, tmp_path: Path, tensors: dict[str, torch.Tensor], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        export_merged(base, tensors, None, torch.float32, tmp_path)


def test_values_that_overflow_float16_are_refused(base: BaseSD3, tmp_path: Path) -> None:
    tensors = {"block.0.norm.weight": torch.full((4,), 1e5)}
    with pytest.raises(CheckpointError, match=r"not finite in torch\.float16"):
        export_merged(base, tensors, None, torch.float16, tmp_path)


def test_a_no_op_is_refused(base: BaseSD3, tmp_path: Path) -> None:
    name = "block.0.norm.weight"
    with pytest.raises(CheckpointError, match="nothing to export"):
        export_merged(base, {name: stored(base)[name].float()}, None, torch.float32, tmp_path)
    with pytest.raises(CheckpointError, match="equals the base"):
        require_update(lora_pairs(lora_tensors(b=0.0), LORA, stored(base)))


@pytest.mark.parametrize(
    "prefix", ["", "base_model.model."], ids=["transformer with adapter", "peft model"]
)
def test_names_of_peft_are_understood(base: BaseSD3, prefix: str) -> None:
    tensors = {prefix + name: tensor for name, tensor in lora_tensors().items()}
    pairs = lora_pairs(tensors, LORA, stored(base))
    assert list(pairs) == ["block.0.attn.to_q"]
    assert lora_update(pairs["block.0.attn.to_q"], LORA).shape == (4, 3)


def change(tensors: dict[str, torch.Tensor], old: str, new: str) -> dict[str, torch.Tensor]:
    return {name.replace(old, new): tensor for name, tensor in tensors.items()}


@pytest.mark.parametrize(
    ("tensors", "lora", "message"),
    [
        (change(lora_tensors(), "lora_A.default.", ""), LORA, "not a LoRA parameter"),
        (change(lora_tensors(), "block.0.", "blocks.0."), LORA, "have no trained tensors"),
        (dict(list(lora_tensors().items())[:1]), LORA, "expected A"),
        (lora_tensors(), LORA.model_copy(update={"rank": 4}), "rank"),
        (lora_tensors(), LORA.model_copy(update={"target_modules": ["to_q"]}), "1 of 2 adapted"),
        (lora_tensors(), LORA.model_copy(update={"target_modules": ["to_x"]}), "names no module"),
    ],
)
def test_an_adapter_of_another_shape_is_refused(
    base: BaseSD3, tensors: dict[str, torch.Tensor], lora: LoraConfig, message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        lora_pairs(tensors, lora, stored(base))


def test_a_base_must_be_a_pipeline_with_safetensors(base: BaseSD3, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"policy\.path"):
        BaseSD3.open(str(tmp_path))
    for file in (base.directory / "transformer").glob("*"):
        file.unlink()
    with pytest.raises(ConfigError, match=WEIGHTS):
        base.weight_files()


@pytest.mark.parametrize(("lora", "way"), [(True, "use the adapter"), (False, "float32, or train")])
def test_a_drowned_update_is_refused_with_the_way_out(lora: bool, way: str) -> None:
    weights = WrittenWeights(1, "", [], update_survival=0.899, elements_changed=0.5)
    config = ExportConfig(dtype="bfloat16")
    with pytest.raises(ConfigError, match=rf"export\.dtype: bfloat16 keeps 89\.9%.*{way}"):
        require_survival(weights, config, lora)
    require_survival(weights, config.model_copy(update={"dtype": "float32"}), lora)
    require_survival(weights, config.model_copy(update={"min_update_survival": 0.8}), lora)
