"""Exports of tiny Janus models, proven in a real clean process, and sabotaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from atelier.data.prompts import write_prompts
from atelier.errors import CheckpointError, ConfigError
from atelier.export.formats import ExportReport, export_formats
from atelier.export.manifest import MANIFEST, write_manifest
from atelier.export.merged import export_merged
from atelier.export.record import ExportRecord, read_record
from atelier.export.reload import Exported, judge, reload_all
from atelier.export.run import export_run
from atelier.export.verify import verify
from atelier.policies.janus.original_layout import to_original
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import Checkpoint, LoopState, save_checkpoint
from atelier.training.engines import OptimizerState
from tests.support.janus_exports import PROMPTS, request_for, run_config, save_base, stored, trained
from tests.support.random_janus import Sizes, build_model

WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"


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
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("janus") / "base")


@pytest.fixture(scope="module")
def exports(base: Path, tmp_path_factory: pytest.TempPathFactory) -> ExportReport:
    """Both formats of a LoRA run, float32: one clean process."""
    config = run_config(base, "lora", export={"formats": ["adapter", "merged"]})
    return export_formats(request_for(config), tmp_path_factory.mktemp("lora") / "export", "cpu")


def directory_of(report: ExportReport, kind: str) -> Path:
    return next(one.directory for one in report.published if one.record.format == kind)


def test_both_formats_reproduce_the_trainer(exports: ExportReport, base: Path) -> None:
    assert not exports.refused
    for one in exports.published:
        record = one.record
        assert record.difference is not None
        assert record.difference.max <= 1 / 255 + 1e-9
        assert record.log_prob_difference is not None
        assert record.log_prob_difference.max < 1e-5
        assert record.log_prob_effect is not None
        assert record.log_prob_effect.mean > 0.05
        assert record.greedy_equal == 1
        assert read_record(one.directory) == record
    adapter, merged = (one.record.weights for one in exports.published)
    assert (adapter.tensors, adapter.scaling) == (2 * 2 * 7, [4.0])
    assert merged.tensors == len(stored(base))


def test_the_card_tells_base_licence_and_proof(exports: ExportReport) -> None:
    card = (directory_of(exports, "adapter") / "README.md").read_text()
    for expected in (
        "license: mit",
        "library_name: peft",
        "PeftModel.from_pretrained(model",
        "100.0% of the likeliest tokens are the trainer's",
    ):
        assert expected in card
    merged = (directory_of(exports, "merged") / "README.md").read_text()
    assert "library_name: transformers" in merged
    assert "with plain transformers" in merged


def test_verify_works_where_the_directory_was_moved_to(
    base: Path, exports: ExportReport, tmp_path: Path
) -> None:
    shutil.copytree(directory_of(exports, "merged").parent, tmp_path / "moved")
    report = verify(tmp_path / "moved", base=str(base), device="cpu")
    assert [one.record.format for one in report.directories] == ["adapter", "merged"]
    assert "28 tensors loaded" in report.describe()
    assert "log-probabilities of image tokens within" in report.describe()


# Every way to train and to store -----------------------------------------------------------------


def small_shards(folder: Path) -> dict[str, Any]:
    return {"path": save_base(folder / "base", shard="200KB"), "trainable": "lora"}


def tied_in_full(folder: Path) -> dict[str, Any]:
    return {"path": save_base(folder / "base", Sizes(tied=True)), "trainable": "full"}


def introspecting(folder: Path) -> dict[str, Any]:
    """The text head of its own is trained too."""
    return {
        "path": save_base(folder / "base"),
        "trainable": "full",
        "rollout": {"kind": "introspect"},
    }


def sixteen_bit_base(folder: Path) -> dict[str, Any]:
    return {"path": save_base(folder / "base", dtype=torch.bfloat16), "trainable": "lora"}


def file_of_weights(folder: Path) -> dict[str, Any]:
    layout = save_base(folder / "layout", Sizes(tied=True))
    torch.save(to_original(build_model(seed=9).state_dict()), folder / "start.pth")
    return {
        "path": folder / "start.pth",
        "trainable": "full",
        "policy": {"layout": str(layout)},
    }


def in_bfloat16(folder: Path) -> dict[str, Any]:
    return {
        "path": save_base(folder / "base"),
        "trainable": "full",
        "export": {"dtype": "bfloat16"},
    }


WAYS = (
    small_shards,
    tied_in_full,
    introspecting,
    sixteen_bit_base,
    file_of_weights,
    in_bfloat16,
)


def written(way: Callable[[Path], dict[str, Any]], folder: Path) -> Exported:
    """A merged directory that nobody has looked at yet."""
    config = run_config(**way(folder))
    request, dtype, output = request_for(config), config.export.dtype, folder / "merged"
    output.mkdir()
    weights = export_merged(
        request.base, request.tensors, request.lora, getattr(torch, dtype), output
    )
    effect = request.reference.effect
    exported = Exported(output, ExportRecord.new("merged", dtype, request.base, weights, effect))
    request.reference.save(exported.reference)
    return exported


def test_every_way_is_proven(tmp_path: Path) -> None:
    """All in one clean process."""
    folders = [tmp_path / way.__name__ for way in WAYS]
    for folder in folders:
        folder.mkdir()
    exported = [written(way, folder) for way, folder in zip(WAYS, folders, strict=True)]
    for one, outcome in zip(exported, reload_all(exported, "cpu"), strict=True):
        found, effect = judge(one, outcome), one.record.log_prob_effect
        assert found.log_probs is not None
        assert effect is not None
        assert found.log_probs.mean < effect.mean / 10
        if one.record.dtype == "float32":
            assert found.greedy == 1


def test_a_run_is_exported_from_its_checkpoint(base: Path, tmp_path: Path) -> None:
    run, config = RunDirectory(tmp_path), run_config(base, "full", export={"verify_prompts": 1})
    tensors = trained(config)
    write_prompts(run.data / "heldout.parquet", PROMPTS)
    save_checkpoint(
        run.checkpoints,
        Checkpoint(
            state=LoopState(7, 14, "", 0, 0),
            weights={name: torch.zeros_like(value) for name, value in tensors.items()},
            ema=tensors,
            optimizer=OptimizerState(14, {}),
            rng={"torch": torch.get_rng_state()},
        ),
    )
    export_run(run, config)
    summary = json.loads((run.export / "summary.json").read_text())["published"]["merged"]
    assert summary["greedy_equal"] == 1
    assert summary["log_prob_difference"]["max"] < 1e-5 < summary["log_prob_effect"]["mean"]
    saved = stored(run.export / "merged")
    for name, value in tensors.items():
        assert torch.equal(saved[name.removeprefix("janus.")], value)


def test_sixteen_bit_that_loses_the_update_is_refused_and_the_adapter_kept(
    base: Path, tmp_path: Path
) -> None:
    config = run_config(
        base, "lora", export={"formats": ["merged", "adapter"], "dtype": "bfloat16"}
    )
    report = export_formats(request_for(config, 1e-4), tmp_path, "cpu")
    assert [one.record.format for one in report.published] == ["adapter"]
    with pytest.raises(ConfigError, match=r"export\.dtype: bfloat16 keeps .* use the adapter"):
        report.require_complete()


# Sabotage ---------------------------------------------------------------------------------------


def rewrite(file: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


def nudge_adapter(path: Path) -> None:
    rewrite(path / ADAPTER, lambda tensors: tensors[min(tensors)][0, 0].add_(1e-4))


def rename_adapter(path: Path) -> None:
    """peft loads it without a word, and adapts nothing."""

    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in list(tensors):
            tensors[name.replace(".layers.", ".blocks.")] = tensors.pop(name)

    rewrite(path / ADAPTER, change)


def other_alpha(path: Path) -> None:
    held = json.loads((path / "adapter_config.json").read_text())
    (path / "adapter_config.json").write_text(json.dumps({**held, "lora_alpha": 8}))


def nudge_merged(path: Path) -> None:
    name = "model.vision_model.encoder.layers.0.mlp.fc1.bias"
    rewrite(path / WEIGHTS, lambda tensors: tensors[name][0].add_(1e-3))


def drop_weight(path: Path) -> None:
    rewrite(path / WEIGHTS, lambda tensors: tensors.pop("lm_head.weight"))


def truncate(path: Path) -> None:
    (path / WEIGHTS).write_bytes((path / WEIGHTS).read_bytes()[:-64])


def rounded_when_loaded(path: Path) -> None:
    held = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**held, "dtype": "bfloat16"}))


def no_marks(path: Path) -> None:
    held = json.loads((path / "generation_config.json").read_text())
    del held["generation_kwargs"]
    (path / "generation_config.json").write_text(json.dumps(held))


def no_tokenizer(path: Path) -> None:
    (path / "tokenizer.json").unlink()


SABOTAGE = {
    nudge_adapter: ("adapter", "weights are not those"),
    rename_adapter: ("adapter", "weights are not those"),
    other_alpha: ("adapter", "alpha"),
    nudge_merged: ("merged", "weights are not those"),
    drop_weight: ("merged", "does not load"),
    truncate: ("merged", "does not load"),
    rounded_when_loaded: ("merged", "weights are not those"),
    no_marks: ("merged", "does not load and run with transformers"),
    no_tokenizer: ("merged", "does not load"),
}


@pytest.fixture(scope="module")
def sabotaged(exports: ExportReport, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("sabotaged")
    copies = {}
    for sabotage, (kind, _) in SABOTAGE.items():
        copies[sabotage.__name__] = root / sabotage.__name__
        shutil.copytree(directory_of(exports, kind), copies[sabotage.__name__])
        sabotage(copies[sabotage.__name__])
    return copies


def test_the_manifest_catches_every_sabotage(sabotaged: dict[str, Path]) -> None:
    for copy in sabotaged.values():
        with pytest.raises(CheckpointError, match=MANIFEST):
            verify(copy)


def test_the_clean_process_catches_every_sabotage_on_its_own(
    base: Path, sabotaged: dict[str, Path]
) -> None:
    """As if the exporter itself had written it so: no manifest, no look at keys or settings."""
    copies = list(sabotaged.values())
    exported = [Exported(copy, read_record(copy), base) for copy in copies]
    for one, outcome, (_, message) in zip(
        exported, reload_all(exported, "cpu"), SABOTAGE.values(), strict=True
    ):
        with pytest.raises(CheckpointError, match=message):
            judge(one, outcome)


def test_an_adapter_is_not_verified_on_another_base(exports: ExportReport, tmp_path: Path) -> None:
    other = save_base(tmp_path / "other", seed=4)
    with pytest.raises(CheckpointError, match=r"the weights of .*other is not that of"):
        verify(directory_of(exports, "adapter"), base=str(other))
    shutil.copytree(directory_of(exports, "adapter"), tmp_path / "copy")
    other_alpha(tmp_path / "copy")
    write_manifest(tmp_path / "copy")
    with pytest.raises(CheckpointError, match="another scale"):
        verify(tmp_path / "copy")
