"""Held-out images of given weights: what was written before them is kept with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atelier.config.resolve import resolve
from atelier.data.prompts import Prompt, write_prompts
from atelier.policies.base import Generated
from atelier.stages import heldout
from atelier.tracking.run_directory import RunDirectory
from tests.unit.test_evaluation_complex_edit import PROMPTS

EDITS = ("data.scene_kind=shapes", "data.scene_task=edit", "evaluation.suite=complex_edit")


class Writer:
    """A policy that writes its prompt backwards and paints nothing."""

    module = None

    def generate(self, _: Any, prompts: Sequence[Prompt], keys: Sequence[int]) -> Generated:
        images = np.zeros((len(keys), 64, 64, 3), np.uint8)
        return Generated(images, [one.text[::-1] for one in prompts])


def test_a_stage_keeps_what_was_written_also_after_it_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers = [Writer()]

    @contextmanager
    def one_policy(*_: Any) -> Iterator[Any]:
        yield writers.pop()  # a second time it is an error

    monkeypatch.setattr(heldout, "_policy", one_policy)
    run = RunDirectory(tmp_path)
    config = resolve("tiny/base", [*EDITS, "evaluation.micro_batch_size=2"])
    write_prompts(run.data / "heldout.parquet", PROMPTS[:3])
    wanted = [one.text[::-1] for one in PROMPTS[:3]]
    for _ in range(2):  # the second time the images are there, and no policy is asked
        found = heldout.evaluate_weights(run, config, run.baseline, None)
        assert [row["completion"] for row in found.rows] == wanted
        (run.baseline / "summary.json").unlink()


def test_batches_of_one_policy_are_joined() -> None:
    image = np.zeros((1, 2, 2, 3), np.uint8)
    assert Generated.joined([Generated(image), Generated(image)]).completions is None
    joined = Generated.joined([Generated(image, ["a"]), Generated(image, ["b"])])
    assert (len(joined.images), joined.completions) == (2, ["a", "b"])
