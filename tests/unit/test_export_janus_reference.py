"""What an exported Janus must reproduce, and that plain transformers does, or is caught.

The family's part of the clean process runs in this one here.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atelier.config.schema import RunConfig
from atelier.errors import CheckpointError
from atelier.export.adapter import export_adapter
from atelier.export.clean_process import of_janus
from atelier.export.clean_process.arrived import arrived
from atelier.export.clean_process.digests import tensors_digest
from atelier.export.families import family_of
from atelier.export.formats import ExportRequest
from atelier.export.janus.reference import DrawingReference
from atelier.export.language.reference import greedy_equal
from atelier.export.merged import export_merged
from atelier.export.record import ExportRecord, WrittenWeights
from atelier.export.reference import Difference, Differences
from atelier.export.tolerances import require_same
from atelier.policies.janus.policy import JanusPolicy
from atelier.policies.janus.rows import Drawn, stack
from atelier.training.weights import put_weights
from tests.support.exports import (
    PROMPTS,
    Sabotage,
    request_for,
    rewrite,
    trained,
    without_tensor,
)
from tests.support.janus_exports import WEIGHTS, other_alpha, run_config, save_base

SCALE = 3.0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_base(tmp_path_factory.mktemp("janus") / "base")


@pytest.fixture(scope="module")
def requests(base: Path) -> dict[str, ExportRequest]:
    return {how: request_for(run_config(base, how)) for how in ("full", "lora")}


@pytest.fixture(scope="module")
def written(
    requests: dict[str, ExportRequest], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, WrittenWeights]]:
    """A directory for each way to export, with its reference."""
    found = {}
    for how in ("full", "lora", "adapter"):
        folder = tmp_path_factory.mktemp("export") / how
        folder.mkdir()
        request = requests["full" if how == "full" else "lora"]
        if how == "adapter":
            assert request.lora is not None
            weights = export_adapter(request.base, request.tensors, request.lora, folder)
        else:
            weights = export_merged(
                request.base, request.tensors, request.lora, torch.float32, folder
            )
        request.reference.save(folder / "reference.safetensors")
        found[how] = folder, weights
    return found


def job(folder: Path, base: Path, kind: str, dtype: str = "float32") -> dict[str, Any]:
    """As reload.py writes it."""
    return {
        "format": kind,
        "directory": str(folder),
        "base": str(base),
        "dtype": dtype,
        "device": "cpu",
    }


def reproduced(
    folder: Path, base: Path, kind: str, dtype: str = "float32"
) -> dict[str, np.ndarray]:
    loaded = of_janus.load(job(folder, base, kind, dtype))
    with torch.no_grad():
        return of_janus.reproduce(loaded, str(folder / "reference.safetensors"))


def record(dtype: str = "float32", difference: float | None = None) -> ExportRecord:
    found = None if difference is None else Difference(1.0, difference)
    weights, images = WrittenWeights(1, "", []), Difference(0.1, 0.1)
    return ExportRecord(
        "merged", dtype, "", True, "", weights, images, images, log_prob_difference=found
    )


# The trainer's side -----------------------------------------------------------------------------


def test_training_shows_in_images_and_log_probs(requests: dict[str, ExportRequest]) -> None:
    for request in requests.values():
        reference = request.reference
        assert isinstance(reference, DrawingReference)
        assert (
            reference.codes.shape == reference.log_probs.shape == reference.greedy.shape == (2, 16)
        )
        assert reference.images.shape == (2, 64, 64, 3)
        effect = reference.effect
        assert effect.images.mean > 1 / 255
        assert effect.log_probs is not None
        assert effect.log_probs.mean > 0.05
        assert reference.call == {"guidance_scale": SCALE}


def test_a_reference_comes_back_as_it_was(
    requests: dict[str, ExportRequest], tmp_path: Path
) -> None:
    reference = requests["full"].reference
    assert isinstance(reference, DrawingReference)
    reference.save(tmp_path / "folder" / "file")
    again = DrawingReference.load(tmp_path / "folder" / "file")
    assert (again.prompts, again.tokens, again.call) == (
        reference.prompts,
        reference.tokens,
        reference.call,
    )
    for name in ("codes", "log_probs", "base_log_probs", "greedy", "images", "base_images"):
        assert np.array_equal(getattr(again, name), getattr(reference, name)), name


def test_without_guidance_the_published_scale_is_taken(base: Path) -> None:
    config = run_config(base, "lora", evaluation={"guidance_scale": 1.0})
    assert request_for(config).reference.call == {"guidance_scale": 5.0}


def test_what_training_computed_in_does_not_matter(
    base: Path, requests: dict[str, ExportRequest]
) -> None:
    half = {"dtype": "bfloat16", "base_dtype": "bfloat16"}
    config = run_config(base, "lora", policy=half, rollout={"tokens": {"execution": "dynamic"}})
    tensors, expected = trained(run_config(base, "lora")), requests["lora"].reference
    found = family_of("janus").make_reference(config, tensors, PROMPTS, "cpu")
    assert isinstance(found, DrawingReference)
    assert isinstance(expected, DrawingReference)
    assert np.array_equal(found.codes, expected.codes)
    assert np.array_equal(found.log_probs, expected.log_probs)


@pytest.mark.parametrize("content", [b"", b"not safetensors"])
def test_what_is_no_reference_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(CheckpointError, match="file: not the reference of an export"):
        DrawingReference.load(tmp_path / "file")


# Plain transformers -----------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["full", "lora", "adapter"])
def test_plain_transformers_reproduces_the_trainer(
    base: Path,
    requests: dict[str, ExportRequest],
    written: dict[str, tuple[Path, WrittenWeights]],
    how: str,
) -> None:
    folder, weights = written[how]
    kind = "adapter" if how == "adapter" else "merged"
    loaded = of_janus.load(job(folder, base, kind))
    tensors, scaling = arrived(of_janus, loaded, kind)
    assert (len(tensors), scaling) == (weights.tensors, weights.scaling)
    assert tensors_digest(tensors) == weights.digest
    reference = requests["full" if how == "full" else "lora"].reference
    found = reference.compare(reproduced(folder, base, kind))
    require_same(folder, record(), found)
    assert found.log_probs is not None
    assert found.log_probs.max < 1e-5
    assert found.greedy == 1


def the_base(folder: Path) -> None:
    """In place of the export."""
    shutil.copy(save_base(folder / "base") / WEIGHTS, folder)


CODE_TABLE = "model.generation_embeddings.weight"


def row_of_a_table(folder: Path) -> None:
    """As much as training moved it, of a code that was drawn."""
    drawn = DrawingReference.load(folder / "reference.safetensors").codes[0, 0]
    rewrite(folder / WEIGHTS, lambda tensors, _: tensors[CODE_TABLE][drawn].add_(0.02))


def image_decoder(folder: Path) -> None:
    """It is not trained: only the images tell."""
    name = "model.vqmodel.decoder.conv_out.bias"
    rewrite(folder / WEIGHTS, lambda tensors, _: tensors[name].add_(0.1))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (the_base, r"log-probabilities .* differ from the trainer's"),
        (row_of_a_table, "log-probabilities"),
        (image_decoder, r"images differ .* by up to 1[23]/255"),
    ],
)
def test_other_weights_are_caught(
    base: Path,
    requests: dict[str, ExportRequest],
    written: dict[str, tuple[Path, WrittenWeights]],
    tmp_path: Path,
    change: Sabotage,
    said: str,
) -> None:
    copy = Path(shutil.copytree(written["full"][0], tmp_path / "copy"))
    change(copy)
    found = requests["full"].reference.compare(reproduced(copy, base, "merged"))
    with pytest.raises(CheckpointError, match=said):
        require_same(copy, record(), found)
    if change is the_base:
        assert found.greedy is not None
        assert found.greedy < 1


def test_a_tokenizer_that_reads_otherwise_is_told(
    base: Path, written: dict[str, tuple[Path, WrittenWeights]], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(written["full"][0], tmp_path / "copy"))
    text = (copy / "tokenizer.json").read_text()
    (copy / "tokenizer.json").write_text(text.replace('"circle"', '"round"'))
    with pytest.raises(ValueError, match="reads 'a red circle' as other tokens than the trainer"):
        reproduced(copy, base, "merged")


def one_more(folder: Path) -> None:
    extra = {"model.value_head.weight": torch.ones(1)}
    rewrite(folder / WEIGHTS, lambda tensors, _: tensors.update(extra))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without_tensor(WEIGHTS, "model.generation_head.proj_out.bias"), "missing_keys"),
        (one_more, "unexpected_keys"),
    ],
)
def test_weights_that_do_not_arrive_are_told(
    base: Path,
    written: dict[str, tuple[Path, WrittenWeights]],
    tmp_path: Path,
    change: Sabotage,
    said: str,
) -> None:
    """transformers only warns, and goes on with random numbers."""
    copy = Path(shutil.copytree(written["full"][0], tmp_path / "copy"))
    change(copy)
    with pytest.raises(ValueError, match=rf"1 {said}, such as model\."):
        of_janus.load(job(copy, base, "merged"))


def test_an_adapter_at_another_scale_is_seen(
    base: Path, written: dict[str, tuple[Path, WrittenWeights]], tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(written["adapter"][0], tmp_path / "copy"))
    other_alpha(copy)
    _, scaling = arrived(of_janus, of_janus.load(job(copy, base, "adapter")), "adapter")
    assert scaling == [8.0] != written["adapter"][1].scaling


@pytest.mark.parametrize("how", ["full", "adapter"])
def test_the_lines_of_the_card_make_an_image(
    base: Path,
    requests: dict[str, ExportRequest],
    written: dict[str, tuple[Path, WrittenWeights]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    request = requests["full" if how == "full" else "lora"]
    kind = "adapter" if how == "adapter" else "merged"
    lines = family_of("janus").loading_lines(
        replace(record(), format=kind),  # type: ignore[arg-type]
        request.base,
        request.reference,
    )
    code = "\n".join(lines).replace("path/to/this/directory", str(written[how][0]))
    names: dict[str, Any] = {}
    exec(code, names)
    assert isinstance(names["image"], Image.Image)
    assert names["image"].size == (64, 64)
    assert Path("image.png").is_file()


def test_the_card_of_edits_edits_what_lies_beside_it_as_the_trainer_does(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without chance, token for token."""
    monkeypatch.chdir(tmp_path)
    config = run_config(base, "full", rollout={"kind": "edit"})
    request = request_for(config)
    assert isinstance(request.reference, DrawingReference)
    export_merged(request.base, request.tensors, None, torch.float32, tmp_path)
    request.reference.save_source(tmp_path)
    lines = family_of("janus").loading_lines(record(), request.base, request.reference)
    code = "\n".join(lines).replace("path/to/this/directory", str(tmp_path))
    names: dict[str, Any] = {}
    exec(code.replace("do_sample=True)", "do_sample=False)"), names)
    assert names["image"].size == (64, 64)
    assert names["tokens"].tolist() == edited_by_the_trainer(config, request.reference)


def edited_by_the_trainer(config: RunConfig, reference: DrawingReference) -> list[list[int]]:
    """The likeliest tokens of the first prompt's edit."""
    policy = JanusPolicy.load(config, "cpu")
    put_weights(policy.trainable(), trained(config))
    parts = policy.tools
    codes = parts.pixels.encode(parts.sources(PROMPTS[:1]))
    context = parts.conversation.editing(PROMPTS[0].text)
    rows = stack([context], [[Drawn(codes[0])]], parts.conversation.pad)
    scale = float(reference.call["guidance_scale"])
    sampler = replace(parts.sampler, guidance_scale=scale, top_k=1)
    found: list[list[int]] = parts.generation.images(rows, [0], sampler).codes.tolist()
    return found


# Tolerances -------------------------------------------------------------------------------------


def test_greedy_tokens_count_up_to_the_first_other_one_unless_that_was_a_tie() -> None:
    expected = np.array([[1, 2, 3, 4], [5, 6, 7, 8]])
    apart = np.ones((2, 4))
    assert greedy_equal(expected, expected, apart) == 1
    other = expected.copy()
    other[0, 1], other[0, 3] = 9, 9
    assert greedy_equal(other, expected, apart) == 5 / 8
    near = apart.copy()
    near[0, 1] = 1e-4
    assert greedy_equal(other, expected, near) == 1
    near[0, 1] = np.nan
    assert greedy_equal(other, expected, near) == 5 / 8, "nothing is a tie that is no number"
    with pytest.raises(CheckpointError, match="cannot be compared"):
        greedy_equal(other[:, :3], expected, apart)


@pytest.mark.parametrize(
    ("dtype", "earlier", "found", "said"),
    [
        ("float32", None, (2e-4, 1e-6, 1.0), "at most 0.0001 is rounding"),
        ("float32", None, (np.nan, np.nan, 1.0), "at most 0.0001 is rounding"),
        ("float32", None, (1e-5, 1e-6, 0.75), "25.0% of the tokens that are drawn without chance"),
        ("bfloat16", None, (9.0, 0.2, 0.5), "at most 0.1 is rounding"),
        ("bfloat16", None, (np.nan, np.nan, 0.5), "at most 0.1 is rounding"),
        ("bfloat16", 0.01, (9.0, 0.05, 0.5), "at most 0.03 is rounding"),
        ("bfloat16", None, (9.0, 0.05, 0.0), None),
        ("float32", None, (1e-5, 1e-6, 1.0), None),
    ],
)
def test_how_far_log_probs_may_be(
    dtype: str, earlier: float | None, found: tuple[float, float, float], said: str | None
) -> None:
    most, mean, greedy = found
    images = Difference(0, 0)
    differences = Differences(images, Difference(most, mean), greedy)
    if said is None:
        require_same(Path("here"), record(dtype, earlier), differences)
        return
    with pytest.raises(CheckpointError, match=f"here: .*{said}"):
        require_same(Path("here"), record(dtype, earlier), differences)
