"""Exports of tiny models of every family, proven in a real clean process, and sabotaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from atelier.config.schema import RunConfig
from atelier.data.prompts import write_prompts
from atelier.errors import CheckpointError, ConfigError
from atelier.export.formats import ExportReport, export_formats
from atelier.export.manifest import MANIFEST, write_manifest
from atelier.export.merged import export_merged
from atelier.export.record import ExportRecord, read_record
from atelier.export.reload import Exported, Outcome, judge, reload_all
from atelier.export.run import export_run
from atelier.export.sd3.reference import ImageReference
from atelier.export.verify import verify
from atelier.tracking.run_directory import RunDirectory
from atelier.training.checkpoint import ALWAYS
from tests.support import deepgen_exports, janus_exports, qwen_exports, sd3_exports
from tests.support.exports import PROMPTS, nudged, request_for, save_trained, trained

pytestmark = pytest.mark.slow

FAMILIES: dict[str, ModuleType] = {
    "sd3": sd3_exports,
    "deepgen": deepgen_exports,
    "janus": janus_exports,
    "qwen": qwen_exports,
}
DENOISING = ("sd3", "deepgen")  # they have no log-probs of tokens
each_family = pytest.mark.parametrize("family", FAMILIES)


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    threads = torch.get_num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        patch.setenv("OMP_NUM_THREADS", "1")
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Made:
    """A run that trained a LoRA, exported from its checkpoint in both formats, float32."""

    base: Path
    run: RunDirectory
    report: ExportReport

    def directory(self, kind: str) -> Path:
        return self.run.export / kind


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """One of every family: a clean process each."""
    return {name: _made(one, tmp_path_factory.mktemp(name)) for name, one in FAMILIES.items()}


def _made(family: ModuleType, folder: Path) -> Made:
    run, base = RunDirectory(folder / "run"), family.save_base(folder / "base")
    export = {"formats": ["adapter", "merged"], "verify_prompts": 2}
    config = family.run_config(base, "lora", export=export)
    write_prompts(run.data / "heldout.parquet", PROMPTS)
    save_trained(run, trained(config))
    return Made(base, run, export_run(run, config, {"similarity": (0.5, 0.75)}))


@each_family
def test_both_formats_of_a_run_reproduce_the_trainer(made: dict[str, Made], family: str) -> None:
    assert not made[family].report.refused
    for one in made[family].report.published:
        record = one.record
        assert record.difference is not None
        assert record.difference.max <= 1 / 255 + 1e-9
        assert record.effect.max > 10 / 255, "the test's update must be visible"
        assert read_record(one.directory) == record
        if family not in DENOISING:
            assert record.log_prob_difference is not None
            assert record.log_prob_difference.max < 1e-5
            assert record.log_prob_effect is not None
            assert record.log_prob_effect.mean > 0.05
            assert record.greedy_equal == 1
    adapter, merged = (one.record.weights for one in made[family].report.published)
    assert (adapter.tensors, adapter.scaling) == (FAMILIES[family].ADAPTER_TENSORS, [4.0])
    files = (FAMILIES[family].WEIGHTS, *getattr(FAMILIES[family], "MORE_WEIGHTS", ()))
    assert merged.tensors == sum(len(load_file(made[family].base / file)) for file in files)
    assert merged.update_survival == pytest.approx(1, abs=1e-3)


@each_family
def test_card_and_summary_tell_what_was_made(made: dict[str, Made], family: str) -> None:
    card, merged = (
        (made[family].directory(kind) / "README.md").read_text() for kind in ("adapter", "merged")
    )
    for expected in (*FAMILIES[family].ADAPTER_CARD, "| similarity | 0.5 | 0.75 |", "| step | 7 |"):
        assert expected in card
    for expected in FAMILIES[family].MERGED_CARD:
        assert expected in merged
    summary = json.loads((made[family].run.export / "summary.json").read_text())
    assert list(summary["published"]) == ["adapter", "merged"]
    assert ("log_prob_effect" in summary["published"]["merged"]) == (family not in DENOISING)


@each_family
def test_verify_works_where_the_directory_was_moved_to(
    made: dict[str, Made], tmp_path: Path, family: str
) -> None:
    shutil.copytree(made[family].run.export, tmp_path / "moved")
    report = verify(tmp_path / "moved", base=str(made[family].base), device="cpu")
    assert [one.record.format for one in report.directories] == ["adapter", "merged"]
    for expected in FAMILIES[family].VERIFIED:
        assert expected in report.describe()


def test_merged_copies_the_rest_of_a_pipeline_byte_for_byte(made: dict[str, Made]) -> None:
    base, merged = made["sd3"].base, made["sd3"].directory("merged")
    names = [path.relative_to(base) for path in base.rglob("*.*")]
    others = [n for n in names if n.as_posix() not in (sd3_exports.WEIGHTS, "README.md")]
    assert len(others) > 8
    for name in others:
        assert (merged / name).read_bytes() == (base / name).read_bytes()
    stored, saved = load_file(base / sd3_exports.WEIGHTS), load_file(merged / sd3_exports.WEIGHTS)
    assert set(stored) == set(saved)
    assert {tensor.dtype for tensor in saved.values()} == {torch.float32}


# Sabotage, and every way to train and to store: in one clean process ------------------------------

SABOTAGE = {
    f"{name}: {what}": (name, *how)
    for name, family in FAMILIES.items()
    for what, how in family.SABOTAGE.items()
}
WAYS = {f"{name}: {way.__name__}": way for name, one in FAMILIES.items() for way in one.WAYS}


@pytest.fixture(scope="module")
def sabotaged(
    made: dict[str, Made], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Exported]:
    """A copy of an export for every kind of sabotage, as if the exporter itself had written it so:
    no manifest, no look at keys or settings."""
    root, copies = tmp_path_factory.mktemp("sabotaged"), {}
    for number, (what, (family, sabotage, kind, _)) in enumerate(SABOTAGE.items()):
        copy = Path(shutil.copytree(made[family].directory(kind), root / str(number)))
        sabotage(copy)
        copies[what] = Exported(copy, read_record(copy), made[family].base)
    return copies


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Exported]:
    """Merged directories that nobody has looked at yet."""
    return {name: _written(way, tmp_path_factory.mktemp("way")) for name, way in WAYS.items()}


def _written(way: Callable[[Path], RunConfig], folder: Path) -> Exported:
    config, output = way(folder), folder / "merged"
    request, dtype = request_for(config), config.export.dtype
    output.mkdir()
    weights = export_merged(
        request.base, request.tensors, request.lora, getattr(torch, dtype), output
    )
    record = ExportRecord.new("merged", dtype, request.base, weights, request.reference.effect)
    exported = Exported(output, record, request.base.directory)
    request.reference.save(exported.reference)
    return exported


@pytest.fixture(scope="module")
def outcomes(sabotaged: dict[str, Exported], written: dict[str, Exported]) -> dict[str, Outcome]:
    exported = {**sabotaged, **written}
    return dict(zip(exported, reload_all(list(exported.values()), "cpu"), strict=True))


@pytest.mark.parametrize("what", SABOTAGE)
def test_the_manifest_catches_every_sabotage(sabotaged: dict[str, Exported], what: str) -> None:
    with pytest.raises(CheckpointError, match=MANIFEST):
        verify(sabotaged[what].directory)


@pytest.mark.parametrize("what", SABOTAGE)
def test_the_clean_process_catches_every_sabotage_on_its_own(
    sabotaged: dict[str, Exported], outcomes: dict[str, Outcome], what: str
) -> None:
    with pytest.raises(CheckpointError, match=SABOTAGE[what][-1]):
        judge(sabotaged[what], outcomes[what])


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_proven(
    written: dict[str, Exported], outcomes: dict[str, Outcome], way: str
) -> None:
    record, found = written[way].record, judge(written[way], outcomes[way])
    if found.log_probs is None:
        assert found.images.mean < record.effect.mean / 4
    else:
        assert record.log_prob_effect is not None
        assert found.log_probs.mean < record.log_prob_effect.mean / 10
    if record.dtype == "float32":
        assert found.greedy in (None, 1)
    else:
        assert record.weights.update_survival is not None
        assert 0.9 < record.weights.update_survival < 1


@pytest.mark.parametrize(
    "what",
    [
        *("sd3: adapter renamed", "sd3: adapter without a tensor", "sd3: adapter without alpha"),
        *("janus: adapter with another alpha", "qwen: adapter with another alpha"),
    ],
)
def test_keys_and_alpha_are_checked_before_anything_is_loaded(
    sabotaged: dict[str, Exported], tmp_path: Path, what: str
) -> None:
    copy = Path(shutil.copytree(sabotaged[what].directory, tmp_path / "copy"))
    write_manifest(copy)
    with pytest.raises(CheckpointError, match="silently"):
        verify(copy)


def test_other_images_are_caught_where_the_weights_are_right(made: dict[str, Made]) -> None:
    """A changed component that is not trained: only the images tell."""
    merged = made["sd3"].directory("merged")
    exported = Exported(merged, read_record(merged))
    images = ImageReference.load(exported.reference).images.copy()
    images[0, 0, 0, 0] ^= 0x08
    weights = exported.record.weights
    with pytest.raises(CheckpointError, match="8/255"):
        judge(exported, Outcome(None, weights.tensors, weights.digest, (), {"images": images}))


@each_family
def test_an_adapter_is_not_verified_on_another_base(
    made: dict[str, Made], tmp_path: Path, family: str
) -> None:
    other = Path(shutil.copytree(made[family].base, tmp_path / "other"))
    nudged(FAMILIES[family].WEIGHTS)(other)
    with pytest.raises(CheckpointError, match=r"the [\w ]+ of .*other is not that of"):
        verify(made[family].directory("adapter"), base=str(other))


# Runs that cannot be exported ---------------------------------------------------------------------


def test_sixteen_bit_that_loses_the_update_is_refused_and_the_rest_kept(
    made: dict[str, Made], tmp_path: Path
) -> None:
    """bf16 cannot hold a small step; the adapter can. An earlier merged export stays."""
    earlier = tmp_path / "merged"
    earlier.mkdir()
    (earlier / "kept.txt").write_text("earlier")
    export = {"formats": ["merged", "adapter"], "dtype": "bfloat16"}
    config = janus_exports.run_config(made["janus"].base, "lora", export=export)
    report = export_formats(request_for(config, 1e-4), tmp_path, "cpu")
    assert [one.record.format for one in report.published] == ["adapter"]
    assert (earlier / "kept.txt").read_text() == "earlier"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "merged"]
    with pytest.raises(ConfigError, match=r"export\.dtype: bfloat16 keeps .* use the adapter"):
        report.require_complete()


def test_a_run_trained_in_full_has_no_adapter_to_turn_to(
    made: dict[str, Made], tmp_path: Path
) -> None:
    run, export = RunDirectory(tmp_path), {"dtype": "bfloat16"}
    config = sd3_exports.run_config(made["sd3"].base, "full", export=export)
    write_prompts(run.data / "heldout.parquet", PROMPTS)
    save_trained(run, trained(config, 1e-4))
    with pytest.raises(ConfigError, match=r"export\.dtype: bfloat16 keeps .* float32, or train"):
        export_run(run, config)
    assert list(run.export.iterdir()) == []


def test_a_run_without_a_checkpoint_or_with_an_altered_one_exports_nothing(tmp_path: Path) -> None:
    run, config = RunDirectory(tmp_path), sd3_exports.run_config(tmp_path / "base", "full")
    with pytest.raises(CheckpointError, match="train before exporting"):
        export_run(run, config)
    checkpoint = run.checkpoints / "step-000007"
    checkpoint.mkdir(parents=True)
    names = (*ALWAYS, "ema.safetensors")
    for name in names:
        (checkpoint / name).write_bytes(b"cut short")
    (checkpoint / MANIFEST).write_text(json.dumps(dict.fromkeys(names, "0" * 64)))
    with pytest.raises(CheckpointError, match=r"altered: .*ema\.safetensors"):
        export_run(run, config)
    assert not run.export.exists()
