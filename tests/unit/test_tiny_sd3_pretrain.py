"""Pre-training of Tiny SD3, and the clock that all pre-trainings run by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from diffusers import StableDiffusion3Pipeline

from atelier.errors import DataError
from atelier.policies.pretraining import course as course_module
from atelier.policies.pretraining.course import Course
from atelier.policies.pretraining.snapshots import LOG, RECORD, SAMPLES
from atelier.policies.sd3.pretrain.options import Options
from atelier.policies.sd3.pretrain.promote import promote_snapshot
from atelier.policies.sd3.pretrain.run import pretrain
from atelier.policies.sd3.tiny import build_pipeline
from tests.support.pretraining import pretrain_here

TINY = {
    **{"device": "cpu", "compile": False, "workers": 1, "images": 12, "evaluate_prompts": 2},
    **{"vae_steps": 2, "vae_batch": 4, "batch": 4, "steps": 3, "warmup_steps": 1},
    **{"evaluate_every": 2, "evaluate_steps": (2,), "snapshot_at": (0.0,)},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pretraining")
    pretrain_here(pretrain, Options(out=out, **TINY))
    return out


def test_a_snapshot_is_left_at_a_threshold_and_at_the_end(trained: Path) -> None:
    first, last = sorted(trained.glob("step-*"))
    assert (first.name[:11], last.name[:11]) == ("step-000002", "step-000003")
    record = json.loads((last / RECORD).read_text())
    assert record["vae"]["steps"] == 2
    assert [point["step"] for point in record["curve"]] == [2, 3]
    assert record["curve"][-1] == record["snapshot"]
    assert record["ceiling"]["renders"]["similarity"] > 0.5
    assert json.loads((trained / LOG).read_text())["curve"] == record["curve"]
    assert (last / SAMPLES).is_file()
    pipeline, untrained = StableDiffusion3Pipeline.from_pretrained(last), build_pipeline()
    for part in ("transformer", "vae"):
        ours, theirs = (list(getattr(one, part).parameters()) for one in (pipeline, untrained))
        assert any(not torch.allclose(a, b, atol=2e-3) for a, b in zip(ours, theirs, strict=True))


def test_a_snapshot_is_promoted_with_its_card(trained: Path, tmp_path: Path) -> None:
    snapshot = max(trained.glob("step-*"))
    promote_snapshot(snapshot, tmp_path / "asset", prompts=2)
    text = (tmp_path / "asset/README.md").read_text()
    assert "train --out DIR --device cpu --workers 1 --no-compile --steps 3" in text
    assert "3 steps of\nrectified flow with batch 4" in text
    assert "2 other words" in text
    assert (tmp_path / "asset" / RECORD).read_bytes() == (snapshot / RECORD).read_bytes()
    with pytest.raises(DataError, match="no snapshot"):
        promote_snapshot(trained, tmp_path / "other", prompts=2)


def test_a_course_ends_with_its_steps_or_its_time() -> None:
    course = Course(seconds=1e9, steps=4)
    shares = [(course.step, round(done, 6)) for done in course]
    assert shares == [(1, 0.0), (2, 0.25), (3, 0.5), (4, 0.75)]
    assert course.step == 4
    course = Course(seconds=0.05, steps=10**9)
    assert all(0 <= done < 1 for done in course), "and it ends"
    assert course.seconds >= 0.05
    assert list(Course(seconds=0, steps=4)) == []


def test_steps_that_compile_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(course_module.time, "monotonic", lambda: now[0])
    course = Course(seconds=10.0, steps=10**9, untimed=1)
    shares = iter(course)
    next(shares)
    now[0] = 30.0
    assert next(shares) < 0.01
    now[0] = 35.0
    assert next(shares) == 0.5
    assert course.seconds == 5.0
