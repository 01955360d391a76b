"""Exports of a tiny SD3 pipeline, proven and sabotaged (issue "Must show" 4)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from atelier.config.schema import (
    EvaluationConfig,
    ExportConfig,
    LaunchConfig,
    LoraConfig,
    PolicyConfig,
    RolloutConfig,
    RunConfig,
)
from atelier.data.prompts import Prompt, write_prompts
from atelier.errors import CheckpointError, ConfigError
from atelier.export.card import Provenance
from atelier.export.formats import ExportReport, ExportRequest, export_formats
from atelier.export.manifest import MANIFEST, write_manifest
from atelier.export.record import read_record
from atelier.export.reload import Exported, Outcome, judge, reload_all
from atelier.export.run import export_run
from atelier.export.sd3.base import BasePipeline, open_base
from atelier.export.sd3.reference import ImageReference, load_reference
from atelier.export.summary import summarize
from atelier.export.verify import verify
from atelier.policies.sd3.policy import SD3Policy
from atelier.policies.sd3.tiny import TinySD3Sizes, build_pipeline
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import ALWAYS, Checkpoint, LoopState, save_checkpoint
from atelier.training.engines import OptimizerState

LORA = LoraConfig(rank=4, alpha=16)
PROMPTS = ['the word "cat"', 'the word "dog"', "a red circle"]
STEPS = 4
LORA_FILE = "pytorch_lora_weights.safetensors"
WEIGHT = "transformer_blocks.0.attn.to_q.weight"
TRANSFORMER_FILE = "transformer/diffusion_pytorch_model.safetensors"


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BasePipeline:
    """Two layers, random weights, stored in fp16 as the embedded model is."""
    pipeline = build_pipeline(TinySD3Sizes(layers=2, heads=2, vae_channels=(8, 8, 8)))
    generator = torch.Generator().manual_seed(0)
    for parameter in pipeline.transformer.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data.add_(0.05 * noise)  # the output starts at zero: let it depend on the weights
    directory = tmp_path_factory.mktemp("base") / "pipeline"
    pipeline.to(torch.float16).save_pretrained(directory)
    (directory / "README.md").write_text("---\nlicense: apache-2.0\n---\n# base\n")
    return open_base(str(directory))


def request_for(
    base: BasePipeline, trainable: str, config: ExportConfig, scale: float
) -> ExportRequest:
    """What a run would hand over: `scale` is how far training moved each value."""
    policy = SD3Policy.load(
        PolicyConfig(path=str(base.directory), trainable=trainable, lora=LORA),  # type: ignore[arg-type]
        RolloutConfig(),
        EvaluationConfig(num_inference_steps=STEPS),
        seed=0,
        device="cpu",
    )
    latents = policy.noise(list(range(len(PROMPTS))))[:, 0]
    before = policy.generate_from(policy.module, PROMPTS, latents)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return ExportRequest(
        base=base,
        tensors={name: value.detach().clone() for name, value in policy.trainable().items()},
        lora=LORA if trainable == "lora" else None,
        config=config,
        reference=ImageReference(
            latents=latents,
            images=policy.generate_from(policy.module, PROMPTS, latents),
            base_images=before,
            prompts=PROMPTS,
            call={"num_inference_steps": STEPS, "guidance_scale": 1.0, "max_sequence_length": 256},
        ),
        provenance=Provenance(recipe="tiny/test", seed=0, results={"similarity": (0.5, 0.75)}),
    )


@pytest.fixture(scope="module")
def exports(base: BasePipeline, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    """Both formats of a LoRA run, float32: one clean process."""
    config = ExportConfig(formats=["adapter", "merged"])
    output = tmp_path_factory.mktemp("lora") / "export"
    return export_formats(request_for(base, "lora", config, 0.02), output, "cpu")


def directory_of(report: ExportReport, kind: str) -> Path:
    return next(one.directory for one in report.published if one.record.format == kind)


def test_both_formats_reproduce_the_images_of_the_trainer(exports: ExportReport) -> None:
    assert not exports.refused
    for one in exports.published:
        assert one.record.difference is not None
        assert one.record.difference.max <= 1 / 255 + 1e-9
        assert one.record.effect.max > 10 / 255, "the test's update must be visible"
    adapter, merged = (one.record.weights for one in exports.published)
    assert adapter.tensors == 2 * 15, "two layers of eight targets, one of them absent in the last"
    assert adapter.scaling == [4.0]
    assert merged.update_survival == pytest.approx(1, abs=1e-3)


def test_merged_copies_the_rest_of_the_base_byte_for_byte(
    base: BasePipeline, exports: ExportReport
) -> None:
    merged = directory_of(exports, "merged")
    names = [path.relative_to(base.directory) for path in base.directory.rglob("*.*")]
    others = [n for n in names if n.as_posix() not in (TRANSFORMER_FILE, "README.md")]
    assert len(others) > 8
    for name in others:
        assert (merged / name).read_bytes() == (base.directory / name).read_bytes()
    stored, saved = load_file(base.weight_files()[0]), load_file(merged / TRANSFORMER_FILE)
    assert set(stored) == set(saved)
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


def test_the_card_tells_base_numbers_licence_and_how_to_load(exports: ExportReport) -> None:
    card = (directory_of(exports, "adapter") / "README.md").read_text()
    for expected in ("license: apache-2.0", "load_lora_weights", "| similarity | 0.5 | 0.75 |"):
        assert expected in card
    assert json.dumps(summarize(exports))


def test_verify_works_where_the_directory_was_moved_to(
    base: BasePipeline, exports: ExportReport, tmp_path: Path
) -> None:
    root = directory_of(exports, "merged").parent
    shutil.copytree(root, tmp_path / "moved")
    report = verify(tmp_path / "moved", base=str(base.directory), device="cpu")
    assert [one.record.format for one in report.directories] == ["adapter", "merged"]
    assert "30 tensors loaded" in report.describe()


# Sabotage -----------------------------------------------------------------------------------


def rewrite(
    path: Path, change: Callable[[dict[str, torch.Tensor], dict[str, str]], object]
) -> None:
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata())
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    change(tensors, metadata)
    save_file(tensors, path, metadata=metadata)


def rename_prefix(path: Path) -> None:
    def change(tensors: dict[str, torch.Tensor], _: dict[str, str]) -> None:
        for name in list(tensors):
            tensors[name.replace("transformer.", "model.", 1)] = tensors.pop(name)

    rewrite(path / LORA_FILE, change)


def drop_one_key(path: Path) -> None:
    rewrite(path / LORA_FILE, lambda tensors, _: tensors.pop(min(tensors)))


def drop_alpha(path: Path) -> None:
    rewrite(path / LORA_FILE, lambda _, metadata: metadata.pop("lora_adapter_metadata"))


def nudge_adapter(path: Path) -> None:
    rewrite(path / LORA_FILE, lambda tensors, _: tensors[min(tensors)][0, 0].add_(1e-4))


def nudge_merged(path: Path) -> None:
    rewrite(path / TRANSFORMER_FILE, lambda tensors, _: tensors[WEIGHT][0, 0].add_(1e-3))


def drop_weight(path: Path) -> None:
    rewrite(path / TRANSFORMER_FILE, lambda tensors, _: tensors.pop(WEIGHT))


def flip_byte(path: Path) -> None:
    file = path / TRANSFORMER_FILE
    data = bytearray(file.read_bytes())
    data[-100] ^= 0x10
    file.write_bytes(data)


def truncate(path: Path) -> None:
    file = path / TRANSFORMER_FILE
    file.write_bytes(file.read_bytes()[:-64])


def delete_vae(path: Path) -> None:
    (path / "vae" / "config.json").unlink()


SABOTAGE = {
    rename_prefix: ("adapter", "prefix"),
    drop_one_key: ("adapter", "does not load"),
    drop_alpha: ("adapter", "alpha"),
    nudge_adapter: ("adapter", "weights are not those"),
    nudge_merged: ("merged", "weights are not those"),
    drop_weight: ("merged", "does not load"),
    flip_byte: ("merged", "weights are not those"),
    truncate: ("merged", "does not load"),
    delete_vae: ("merged", "does not load"),
}


@pytest.fixture(scope="module")
def sabotaged(exports: ExportReport, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A copy of an export for every kind of sabotage."""
    root = tmp_path_factory.mktemp("sabotaged")
    copies = {}
    for sabotage, (kind, _) in SABOTAGE.items():
        copies[sabotage.__name__] = root / sabotage.__name__
        shutil.copytree(directory_of(exports, kind), copies[sabotage.__name__])
        sabotage(copies[sabotage.__name__])
    return copies


@pytest.mark.parametrize("name", [sabotage.__name__ for sabotage in SABOTAGE])
def test_the_manifest_catches_every_sabotage(sabotaged: dict[str, Path], name: str) -> None:
    with pytest.raises(CheckpointError, match=MANIFEST):
        verify(sabotaged[name])


def test_the_clean_process_catches_every_sabotage_on_its_own(
    base: BasePipeline, sabotaged: dict[str, Path]
) -> None:
    """As if the exporter itself had written it so: no manifest, no look at keys or metadata."""
    copies = list(sabotaged.values())
    exported = [Exported(copy, read_record(copy), base.directory) for copy in copies]
    for one, outcome, (_, message) in zip(
        exported, reload_all(exported, "cpu"), SABOTAGE.values(), strict=True
    ):
        with pytest.raises(CheckpointError, match=message):
            judge(one, outcome)


@pytest.mark.parametrize("sabotage", [rename_prefix, drop_one_key, drop_alpha])
def test_keys_and_alpha_are_checked_before_anything_is_loaded(
    exports: ExportReport, tmp_path: Path, sabotage: Callable[[Path], None]
) -> None:
    shutil.copytree(directory_of(exports, "adapter"), tmp_path / "copy")
    sabotage(tmp_path / "copy")
    write_manifest(tmp_path / "copy")
    with pytest.raises(CheckpointError, match="silently"):
        verify(tmp_path / "copy")


def test_other_images_are_caught_where_the_weights_are_right(
    base: BasePipeline, exports: ExportReport, tmp_path: Path
) -> None:
    """A changed component that is not trained: only the images tell."""
    merged = directory_of(exports, "merged")
    record = read_record(merged)
    images = load_reference(merged / "verification" / "reference.safetensors").images.copy()
    images[0, 0, 0, 0] ^= 0x08
    outcome = Outcome(None, record.weights.tensors, record.weights.digest, (), {"images": images})
    with pytest.raises(CheckpointError, match="8/255"):
        judge(Exported(merged, record), outcome)


def test_an_adapter_is_not_verified_on_another_base(
    base: BasePipeline, exports: ExportReport, tmp_path: Path
) -> None:
    shutil.copytree(base.directory, tmp_path / "other")
    nudge_merged(tmp_path / "other")
    with pytest.raises(CheckpointError, match="is not that of"):
        verify(directory_of(exports, "adapter"), base=str(tmp_path / "other"))


# 16 bit -------------------------------------------------------------------------------------


def test_sixteen_bit_that_loses_the_update_is_refused_and_the_rest_kept(
    base: BasePipeline, tmp_path: Path
) -> None:
    """bf16 cannot hold a small step; the adapter can. An earlier merged export stays."""
    earlier = tmp_path / "merged"
    earlier.mkdir()
    (earlier / "kept.txt").write_text("earlier")
    config = ExportConfig(formats=["merged", "adapter"], dtype="bfloat16")
    report = export_formats(request_for(base, "lora", config, 1e-3), tmp_path, "cpu")
    assert [one.record.format for one in report.published] == ["adapter"]
    assert (earlier / "kept.txt").read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "merged"]
    with pytest.raises(ConfigError, match=r"export\.dtype: bfloat16 keeps .* use the adapter"):
        report.require_complete()


def test_a_run_trained_in_full_is_exported_in_float16_rounded_once(
    base: BasePipeline, tmp_path: Path
) -> None:
    run, config = RunDirectory(tmp_path), run_config(base)
    trained = trained_weights(base, 5e-3)
    write_prompts(run.data / "heldout.parquet", [Prompt(i, 0, t) for i, t in enumerate(PROMPTS)])
    save_checkpoint(
        run.checkpoints,
        Checkpoint(
            state=LoopState(7, 14, "", 0, 0),
            weights={name: torch.zeros_like(value) for name, value in trained.items()},
            ema=trained,
            optimizer=OptimizerState(14, {}),
            rng={"torch": torch.get_rng_state()},
        ),
    )
    record = export_run(run, config, {"similarity": (0.5, 0.75)}).published[0].record
    assert record.weights.update_survival is not None
    assert 0.9 < record.weights.update_survival < 1
    assert record.difference is not None
    assert 0 < record.difference.mean < record.effect.mean / 4
    saved = load_file(run.export / "merged" / TRANSFORMER_FILE)
    for name, value in trained.items():
        assert torch.equal(saved[name], value.to(torch.float16))
    assert "| step | 7 |" in (run.export / "merged" / "README.md").read_text()
    assert list(json.loads((run.export / "summary.json").read_text())["published"]) == ["merged"]


def run_config(base: BasePipeline) -> RunConfig:
    return RunConfig(
        policy=PolicyConfig(path=str(base.directory)),
        evaluation=EvaluationConfig(num_inference_steps=STEPS, guidance_scale=2.0),
        export=ExportConfig(dtype="float16", verify_prompts=2),
        launch=LaunchConfig(device="cpu", threads=1),
    )


def trained_weights(base: BasePipeline, scale: float) -> dict[str, torch.Tensor]:
    """Every parameter moved by noise of `scale`; the position table is a buffer."""
    generator = torch.Generator().manual_seed(2)
    return {
        name: stored.float() + scale * torch.randn(stored.shape, generator=generator)
        for name, stored in base.tensors(base.weight_files()[0])
        if name != "pos_embed.pos_embed"
    }


def test_a_run_without_a_checkpoint_or_with_an_altered_one_exports_nothing(
    base: BasePipeline, tmp_path: Path
) -> None:
    run = RunDirectory(tmp_path)
    with pytest.raises(CheckpointError, match="train before exporting"):
        export_run(run, run_config(base))
    checkpoint = run.checkpoints / "step-000007"
    checkpoint.mkdir(parents=True)
    names = (*ALWAYS, "ema.safetensors")
    for name in names:
        (checkpoint / name).write_bytes(b"cut short")
    (checkpoint / MANIFEST).write_text(json.dumps(dict.fromkeys(names, "0" * 64)))
    with pytest.raises(CheckpointError, match=r"altered: .*ema\.safetensors"):
        export_run(run, run_config(base))
    assert not run.export.exists()
