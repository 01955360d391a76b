"""What the card of an export says beside its lines, and the lines of an SD3's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atelier.export.base import BaseModel
from atelier.export.card import Provenance, model_card
from atelier.export.record import ExportRecord, Format, WrittenWeights
from atelier.export.reference import Difference, Reference

REFERENCE: Any = SimpleNamespace(prompts=["a word"], call={"num_inference_steps": 2})


def card(path: str, kind: Format, is_local: bool) -> str:
    effect = Difference(0.1, 0.1)
    record = ExportRecord(
        kind, "float32", path, is_local, "", WrittenWeights(1, "", []), effect, effect
    )
    base: Any = SimpleNamespace(
        path=path,
        directory=Path(path),
        is_local=is_local,
        family="sd3",
        task="text-to-image",
        trained_part="transformer",
        licence=lambda: "apache-2.0",
    )
    reference: Reference = REFERENCE
    known: BaseModel = base
    return model_card(record, known, reference, Provenance())


@pytest.mark.parametrize(
    ("path", "kind", "is_local", "said"),
    [
        ("assets/tiny", "adapter", True, "relative to the directory where this was trained"),
        ("/models/tiny", "adapter", True, "on the machine where this was trained"),
        ("organisation/model", "adapter", False, None),
        ("assets/tiny", "merged", True, None),
    ],
)
def test_a_path_that_the_lines_name_is_said_to_be_one(
    path: str, kind: Format, is_local: bool, said: str | None
) -> None:
    found = card(path, kind, is_local)
    assert (f"`{path}` is a path, " in found) == (said is not None)
    if said is not None:
        assert said in found.partition("```python")[2].partition("## ")[0]


def test_the_lines_keep_an_image_of_the_same_noise() -> None:
    lines = card("assets/tiny", "merged", True).splitlines()
    start = lines.index("noise = torch.Generator().manual_seed(0)")
    assert lines[start + 1 : start + 3] == [
        "image = pipe('a word', generator=noise, num_inference_steps=2).images[0]",
        'image.save("image.png")',
    ]
