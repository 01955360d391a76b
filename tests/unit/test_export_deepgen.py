"""What the card of a DeepGen export says is what the trainer paints: of words, and of an image that
it edits. The clean process computes with the same functions, in this process here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from atelier.config.schema import RunConfig
from atelier.export.clean_process import of_deepgen
from atelier.export.families import family_of
from atelier.export.formats import ExportRequest
from atelier.export.merged import export_merged
from atelier.export.record import ExportRecord
from atelier.export.reference import SOURCE
from atelier.export.sd3.reference import ImageReference
from tests.support.deepgen_exports import edits, without_guidance
from tests.support.exports import request_for, rewrite

WAYS: dict[str, Callable[[Path], RunConfig]] = {"draws": without_guidance, "edits": edits}


@dataclass(frozen=True)
class Case:
    """A merged export, and what it was made of."""

    request: ExportRequest
    record: ExportRecord
    folder: Path

    @property
    def reference(self) -> ImageReference:
        assert isinstance(self.request.reference, ImageReference)
        return self.request.reference


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Case]:
    return {name: exported(way, tmp_path_factory.mktemp(name)) for name, way in WAYS.items()}


def exported(way: Callable[[Path], RunConfig], root: Path) -> Case:
    request, folder = request_for(way(root)), root / "merged"
    folder.mkdir()
    base, tensors = request.base, request.tensors
    weights = export_merged(base, tensors, request.lora, torch.float32, folder)
    request.reference.save(folder / "reference.safetensors")
    request.reference.save_source(folder)
    effect = request.reference.effect
    return Case(request, ExportRecord.new("merged", "float32", base, weights, effect), folder)


@pytest.mark.parametrize("name", WAYS)
def test_the_proof_paints_what_the_run_trains(cases: dict[str, Case], name: str) -> None:
    case = cases[name]
    assert (case.reference.sources is not None) == (name == "edits")
    job = {"format": "merged", "directory": str(case.folder), "dtype": "float32"}
    parts = of_deepgen.load({**job, "weights": None, "device": "cpu"})
    made = of_deepgen.reproduce(parts, str(case.folder / "reference.safetensors"))
    assert case.reference.compare(made).images.max <= 1 / 255 + 1e-9
    assert case.reference.effect.images.max > 10 / 255, "the test's update must be visible"


@pytest.mark.parametrize("name", WAYS)
def test_the_lines_of_the_card_paint_what_the_trainer_paints(
    cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = cases[name]
    monkeypatch.chdir(tmp_path)
    lines = family_of("deepgen").loading_lines(case.record, case.request.base, case.reference)
    code = "\n".join(lines).replace("path/to/this/directory", str(case.folder))
    assert (SOURCE in code) == (name == "edits")
    noise = torch.from_numpy(case.reference.latents[:1])
    monkeypatch.setattr(torch, "randn", lambda *shape, generator: noise.reshape(shape))
    names: dict[str, Any] = {}
    exec(code, names)
    found = np.asarray(Image.open("image.png")).astype(int)
    assert np.abs(found - case.reference.images[0]).max() <= 1


def test_an_edit_depends_on_its_source(cases: dict[str, Case]) -> None:
    """In both places in which the model has it."""
    parts = of_deepgen.load_parts(cases["edits"].folder)
    images = [Image.new("RGB", (64, 64), colour) for colour in ("red", "blue")]
    read = [of_deepgen.read(parts, "make it green", one) for one in images]
    assert not torch.allclose(*read, atol=1e-3)
    latents = [of_deepgen.latent_of(parts, one) for one in images]
    assert not torch.allclose(*latents, atol=1e-3)


def test_a_reference_from_before_edits_were_compared_is_still_read(
    cases: dict[str, Case], tmp_path: Path
) -> None:
    """It has no sources, and is of what the model draws."""
    file = tmp_path / "reference.safetensors"
    cases["draws"].reference.save(file)
    rewrite(file, lambda _, header: header.pop("sources"))
    loaded = ImageReference.load(file)
    assert loaded.sources is None
    assert np.array_equal(loaded.images, cases["draws"].reference.images)
