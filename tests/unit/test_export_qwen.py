"""What an exported Qwen-Image text encoder holds, and that plain libraries write and paint with it
as the trainer does, or are caught. The family's part of the clean process runs in this one here."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as edit_plus
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from PIL import Image
from safetensors.torch import load_file, save_file

from atelier.config.schema import RunConfig
from atelier.errors import CheckpointError, ConfigError
from atelier.export.adapter import export_adapter
from atelier.export.clean_process import of_qwen
from atelier.export.clean_process.arrived import arrived
from atelier.export.clean_process.digests import tensors_digest
from atelier.export.families import family_of
from atelier.export.formats import ExportRequest
from atelier.export.merged import export_merged
from atelier.export.qwen.base import BaseQwen
from atelier.export.qwen.reference import WritingReference, make_reference
from atelier.export.record import ExportRecord, Format, WrittenWeights
from atelier.export.reference import Difference, Differences
from atelier.export.reload import Exported, Outcome, judge
from atelier.export.tolerances import require_same
from tests.support.exports import (
    ALPHA,
    PROMPTS,
    RANK,
    nudged,
    request_for,
    rewrite,
    stored,
    trained,
)
from tests.support.qwen_exports import TOKENS, WEIGHTS, run_config, save_base
from tests.support.random_qwen import END, SIDE, Kind, build_transformer

QUERY = "layers.0.self_attn.q_proj"
TRANSFORMER = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """The clean process has its process for itself, and sets sizes for all of it."""
    monkeypatch.setattr(edit_plus, "VAE_IMAGE_SIZE", edit_plus.VAE_IMAGE_SIZE)
    monkeypatch.setattr(edit_plus, "CONDITION_IMAGE_SIZE", edit_plus.CONDITION_IMAGE_SIZE)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@dataclass(frozen=True)
class Case:
    """An export in a directory, and what it was made of."""

    request: ExportRequest
    weights: WrittenWeights
    folder: Path

    @property
    def base(self) -> Path:
        return self.request.base.directory

    @property
    def reference(self) -> WritingReference:
        assert isinstance(self.request.reference, WritingReference)
        return self.request.reference

    @property
    def kind(self) -> Format:
        return "adapter" if self.weights.scaling else "merged"

    @property
    def record(self) -> ExportRecord:
        effect = self.reference.effect
        return ExportRecord.new(self.kind, "float32", self.request.base, self.weights, effect)

    def job(self, folder: Path | None = None) -> dict[str, Any]:
        """As reload.py writes it."""
        folder = folder or self.folder
        return {
            "format": self.kind,
            "directory": str(folder),
            "base": str(self.base),
            "reference": str(folder / "reference.safetensors"),
            "dtype": "float32",
            "device": "cpu",
            "root": str(folder),
        }

    def reproduced(self, folder: Path | None = None) -> dict[str, np.ndarray]:
        job = self.job(folder)
        with torch.no_grad():
            return of_qwen.reproduce(of_qwen.load(job), job["reference"])

    def copied(self, target: Path) -> Path:
        return Path(shutil.copytree(self.folder, target))


def write(config: RunConfig, folder: Path, adapter: bool = False) -> Case:
    request = request_for(config)
    folder.mkdir(parents=True)
    if adapter:
        assert request.lora is not None
        weights = export_adapter(request.base, request.tensors, request.lora, folder)
    else:
        weights = export_merged(request.base, request.tensors, request.lora, torch.float32, folder)
    request.reference.save(folder / "reference.safetensors")
    return Case(request, weights, folder)


CASES: dict[str, tuple[Kind, str, bool]] = {
    "full": ("text", "full", False),
    "lora": ("text", "lora", False),
    "adapter": ("text", "lora", True),
    "edit": ("edit", "full", False),
    "edit adapter": ("edit", "lora", True),
}


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[Kind, Path]:
    root = tmp_path_factory.mktemp("bases")
    kinds: tuple[Kind, ...] = ("text", "edit")
    return {kind: save_base(root / kind, kind) for kind in kinds}


@pytest.fixture(scope="module")
def cases(bases: dict[Kind, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    root, found = tmp_path_factory.mktemp("exports"), {}
    for name, (kind, how, adapter) in CASES.items():
        config = run_config(
            bases[kind], how, rollout={"kind": "edit" if kind == "edit" else "draw"}
        )
        found[name] = write(config, root / name, adapter)
    return found


# What is written ----------------------------------------------------------------------------------


def merge(config: RunConfig, output: Path, dtype: torch.dtype = torch.float32) -> WrittenWeights:
    output.mkdir()
    named = family_of("qwen").base_names(trained(config))
    lora = config.policy.lora if config.policy.trainable == "lora" else None
    return export_merged(BaseQwen.of(config), named, lora, dtype, output)


def test_merged_is_the_text_encoder_alone(cases: dict[str, Case]) -> None:
    folder = cases["full"].folder
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    of_encoder = {"config.json", "generation_config.json", "model.safetensors"}
    expected = {f"text_encoder/{name}" for name in of_encoder}
    assert names == expected | {"LICENSE", "BASE_README.md", "reference.safetensors"}
    for name in ("text_encoder/config.json", "LICENSE"):
        assert (folder / name).read_bytes() == (cases["full"].base / name).read_bytes()


def test_trained_tensors_go_where_files_keep_them(cases: dict[str, Case]) -> None:
    """Files have names of transformers 4; the vision tower stays."""
    case = cases["full"]
    before, after = stored(case.base / "text_encoder"), stored(case.folder / "text_encoder")
    assert before.keys() == after.keys()
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {name for name in before if not name.startswith("visual.")}
    moved = case.request.tensors[f"model.language_model.{QUERY}.weight"]
    assert torch.equal(after[f"model.{QUERY}.weight"], moved)


def test_a_lora_is_added_at_its_scale(cases: dict[str, Case]) -> None:
    case = cases["lora"]
    before, after = stored(case.base / "text_encoder"), stored(case.folder / "text_encoder")
    pair = [
        case.request.tensors[f"model.language_model.{QUERY}.lora_{side}.default.weight"]
        for side in "BA"
    ]
    expected = before[f"model.{QUERY}.weight"] + ALPHA / RANK * pair[0] @ pair[1]
    torch.testing.assert_close(after[f"model.{QUERY}.weight"], expected, atol=1e-6, rtol=0)
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert len(changed) == 2 * 4, "two layers of four"


def test_names_of_transformers_5_stay_too(bases: dict[Kind, Path], tmp_path: Path) -> None:
    base = Path(shutil.copytree(bases["text"], tmp_path / "base"))
    loaded = BaseQwen.open(str(base)).loaded_name
    tensors = {loaded(name): one for name, one in load_file(base / WEIGHTS).items()}
    save_file(tensors, base / WEIGHTS, {"format": "pt"})
    written = merge(run_config(base, "lora"), tmp_path / "out")
    after = load_file(tmp_path / "out" / WEIGHTS)
    assert after.keys() == tensors.keys()
    assert "model.language_model.embed_tokens.weight" in after
    assert written.digest == tensors_digest(after)


def test_sixteen_bit_is_told_to_who_loads_it(bases: dict[Kind, Path], tmp_path: Path) -> None:
    merge(run_config(bases["text"], "full"), tmp_path / "out", torch.bfloat16)
    assert {one.dtype for one in stored(tmp_path / "out/text_encoder").values()} == {torch.bfloat16}
    said = json.loads((tmp_path / "out/text_encoder/config.json").read_text())
    assert said["dtype"] == "bfloat16"


def test_the_whole_pipeline_is_there_when_it_is_asked_for(
    bases: dict[Kind, Path], tmp_path: Path
) -> None:
    """Byte for byte but for what was trained, and plain diffusers opens it."""
    base, out = bases["edit"], tmp_path / "out"
    config = run_config(base, "full", rollout={"kind": "edit"}, export={"whole_pipeline": True})
    merge(config, out)
    names = [path.relative_to(base) for path in base.rglob("*.*")]
    others = [one for one in names if one.as_posix() not in (WEIGHTS, "README.md")]
    assert len(others) > 12
    for name in others:
        assert (out / name).read_bytes() == (base / name).read_bytes(), name
    pipe = DiffusionPipeline.from_pretrained(out)
    found = pipe.text_encoder.state_dict()[f"model.language_model.{QUERY}.weight"]
    assert torch.equal(found, trained(config)[f"encoder.model.language_model.{QUERY}.weight"])


@pytest.mark.parametrize(
    ("whole", "scale", "beside"), [(True, 1.0, False), (True, 2.0, True), (False, 1.0, True)]
)
def test_what_is_loaded_beside_the_base(
    bases: dict[Kind, Path], whole: bool, scale: float, beside: bool
) -> None:
    """The negative prompt is what the encoder saw before it was trained."""
    config = run_config(
        bases["text"],
        "full",
        export={"whole_pipeline": whole},
        evaluation={"guidance_scale": scale},
    )
    assert BaseQwen.of(config).stays_beside is beside


def test_a_pipeline_of_another_family_is_refused(bases: dict[Kind, Path], tmp_path: Path) -> None:
    base = Path(shutil.copytree(bases["text"], tmp_path / "base"))
    index = json.loads((base / "model_index.json").read_text())
    said = {**index, "_class_name": "QwenImageEditPipeline"}
    (base / "model_index.json").write_text(json.dumps(said))
    with pytest.raises(ConfigError, match="v1 of the edit model"):
        BaseQwen.open(str(base))


# The trainer's side -------------------------------------------------------------------------------


def test_training_shows_in_images_and_log_probs(cases: dict[str, Case]) -> None:
    for case in cases.values():
        reference = case.reference
        assert reference.written.shape == reference.log_probs.shape == (2, TOKENS)
        assert reference.images.shape == (2, SIDE, SIDE, 3)
        effect = reference.effect
        assert effect.images.mean > 1 / 255
        assert effect.log_probs is not None
        assert effect.log_probs.mean > 0.05
        assert (reference.sources is not None) == BaseQwen.open(str(case.base)).edits


def test_some_completions_end_and_some_are_cut_off(cases: dict[str, Case]) -> None:
    """Drawn ones and the likeliest: what is proven holds for both."""
    reference = cases["lora"].reference
    for tokens in (reference.written, reference.greedy):
        assert (tokens == END).any(1).tolist() == [False, True]


def test_a_reference_comes_back_as_it_was(cases: dict[str, Case]) -> None:
    for name in ("lora", "edit"):
        reference = cases[name].reference
        again = WritingReference.load(cases[name].folder / "reference.safetensors")
        for one in ("prompts", "read", "settings", "call"):
            assert getattr(again, one) == getattr(reference, one)
        for one in ("written", "log_probs", "greedy", "latents", "images", "sources"):
            assert np.array_equal(getattr(again, one), getattr(reference, one)), one


def test_what_the_encoder_trained_in_does_not_matter(
    bases: dict[Kind, Path], cases: dict[str, Case]
) -> None:
    half = {"dtype": "bfloat16", "base_dtype": "bfloat16", "gradient_checkpointing": True}
    config = run_config(bases["text"], "lora", policy=half)
    tensors = trained(run_config(bases["text"], "lora"))
    found, expected = make_reference(config, tensors, PROMPTS, "cpu"), cases["lora"].reference
    assert np.array_equal(found.written, expected.written)
    assert np.array_equal(found.log_probs, expected.log_probs)


# Plain libraries ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_plain_libraries_reproduce_the_trainer(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    loaded = of_qwen.load(case.job())
    tensors, scaling = arrived(of_qwen, loaded, case.kind)
    assert (len(tensors), scaling) == (case.weights.tensors, case.weights.scaling)
    assert tensors_digest(tensors) == case.weights.digest
    frozen = {part: tensors_digest(held) for part, held in of_qwen.frozen(loaded).items()}
    assert frozen == case.request.base.frozen()
    with torch.no_grad():
        made = of_qwen.reproduce(loaded, case.job()["reference"])
    found = case.reference.compare(made)
    require_same(case.folder, case.record, found)
    assert found.log_probs is not None
    assert found.log_probs.max < 1e-5
    assert found.greedy == 1


def lightning(folder: Path) -> str:
    """A LoRA of the transformer, as diffusers loads it."""
    transformer = build_transformer()
    transformer.add_adapter(LoraConfig(r=2, lora_alpha=4, target_modules=["to_q"]))
    generator = torch.Generator().manual_seed(2)
    held = {
        f"transformer.{name}": 0.1 * torch.randn(value.shape, generator=generator)
        for name, value in get_peft_model_state_dict(transformer).items()
    }
    save_file(held, folder / "lightning.safetensors")
    return str(folder / "lightning.safetensors")


@pytest.fixture(scope="module")
def painted_otherwise(bases: dict[Kind, Path], tmp_path_factory: pytest.TempPathFactory) -> Case:
    """With another schedule, a LoRA in the transformer, a sentence of its own, no guidance."""
    folder = tmp_path_factory.mktemp("lightning")
    config = run_config(
        bases["text"],
        "lora",
        rollout={
            "environment": {"preset": "lightning", "adapter": lightning(folder)},
            "conditioning": {"template": "planning"},
        },
        evaluation={"guidance_scale": 1.0},
    )
    return write(config, folder / "out")


def test_settings_of_the_painter_are_followed(
    painted_otherwise: Case, cases: dict[str, Case]
) -> None:
    case = painted_otherwise
    found = case.reference.compare(case.reproduced())
    require_same(case.folder, case.record, found)
    assert not np.array_equal(case.reference.images, cases["lora"].reference.images)


def settings_without(name: str, value: Any) -> Callable[[Path], object]:
    """As if the export had forgotten one of them."""

    def change(folder: Path) -> None:
        def forget(_: object, header: dict[str, str]) -> None:
            header["settings"] = json.dumps({**json.loads(header["settings"]), name: value})

        rewrite(folder / "reference.safetensors", forget)

    return change


@pytest.mark.parametrize(("name", "value"), [("adapter", None), ("scheduler", {})])
def test_a_setting_that_is_lost_is_seen(
    painted_otherwise: Case, tmp_path: Path, name: str, value: object
) -> None:
    copy = painted_otherwise.copied(tmp_path / "copy")
    settings_without(name, value)(copy)
    found = painted_otherwise.reference.compare(painted_otherwise.reproduced(copy))
    with pytest.raises(CheckpointError, match="images differ from the trainer's"):
        require_same(copy, painted_otherwise.record, found)


def test_sixteen_bit_of_the_painter_is_no_error_of_the_weights(
    bases: dict[Kind, Path], tmp_path: Path
) -> None:
    config = run_config(bases["text"], "lora", rollout={"environment": {"dtype": "bfloat16"}})
    case = write(config, tmp_path / "out")
    found = case.reference.compare(case.reproduced())
    assert not found.exact_images
    require_same(case.folder, case.record, found)
    far = replace(found, images=Difference(1.0, 9 / 255))
    with pytest.raises(CheckpointError, match=r"9\.00/255 in the mean; at most 8/255 is rounding"):
        require_same(case.folder, case.record, far)
    exact = Differences(Difference(2 / 255, 0.0))
    with pytest.raises(CheckpointError, match="at most 1/255"):
        require_same(case.folder, case.record, exact)


# What is caught -----------------------------------------------------------------------------------


def the_base(folder: Path, base: Path) -> None:
    """In place of the export."""
    shutil.copy(base / WEIGHTS, folder / WEIGHTS)


def embedding_of_the_prompt(folder: Path, base: Path) -> None:
    """Of the letter "r", which both prompts have."""
    row = ord("r") - ord("!")
    name = "model.embed_tokens.weight"
    rewrite(folder / WEIGHTS, lambda tensors, _: tensors[name][row].add_(0.05))


@pytest.mark.parametrize("change", [the_base, embedding_of_the_prompt])
def test_other_weights_are_caught(
    cases: dict[str, Case], tmp_path: Path, change: Callable[[Path, Path], None]
) -> None:
    case = cases["full"]
    copy = case.copied(tmp_path / "copy")
    change(copy, case.base)
    found = case.reference.compare(case.reproduced(copy))
    with pytest.raises(CheckpointError, match="images differ from the trainer's"):
        require_same(copy, case.record, found)
    with pytest.raises(CheckpointError, match=r"log-probabilities .* differ from the trainer's"):
        require_same(copy, case.record, replace(found, images=Difference(0, 0)))


def test_another_painter_is_caught(cases: dict[str, Case], tmp_path: Path) -> None:
    """By its weights, before anything is painted."""
    case = cases["lora"]
    base = Path(shutil.copytree(case.base, tmp_path / "base"))
    nudged(TRANSFORMER)(base)
    loaded = of_qwen.load({**case.job(), "base": str(base)})
    frozen = {part: tensors_digest(held) for part, held in of_qwen.frozen(loaded).items()}
    weights, exported = case.weights, Exported(case.folder, case.record, base)
    outcome = Outcome(None, weights.tensors, weights.digest, frozen=frozen)
    with pytest.raises(CheckpointError, match="the transformer that is loaded with it is not"):
        judge(exported, outcome)


def test_a_tokenizer_that_reads_otherwise_is_told(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases["full"]
    copy = case.copied(tmp_path / "copy")
    rewrite(
        copy / "reference.safetensors",
        lambda _, header: header.update(prompts=json.dumps(["a red square", "a blue square"])),
    )
    with pytest.raises(ValueError, match="'a red square' is read as other tokens than by"):
        case.reproduced(copy)


# The card -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["full", "adapter", "edit", "edit adapter", "lightning"])
def test_the_lines_of_the_card_write_and_paint(
    cases: dict[str, Case],
    painted_otherwise: Case,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    """Without chance they write what the trainer writes."""
    case = painted_otherwise if name == "lightning" else cases[name]
    monkeypatch.chdir(tmp_path)
    case.reference.save_source(case.folder)
    lines = family_of("qwen").loading_lines(case.record, case.request.base, case.reference)
    code = "\n".join(lines).replace("path/to/this/directory", str(case.folder))
    assert all(line == line.rstrip() for line in lines)
    names: dict[str, Any] = {}
    exec(code.replace("do_sample=True", "do_sample=False"), names)
    assert isinstance(names["image"], Image.Image)
    assert names["image"].size == (SIDE, SIDE)
    assert Path("image.png").is_file()
    assert "generator=torch.Generator().manual_seed(0)," in code
    expected = [token for token in case.reference.greedy[0].tolist() if token != 256]
    assert names["completion"][0].tolist() == [*expected, *([END] if expected[-1] != END else [])]
