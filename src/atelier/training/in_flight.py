"""Experience on disk: images sampled ahead of a checkpoint, with their scores.

    in_flight-00000.safetensors    one file a rank: a rollout's tensors under "<first sample>/",
                                   all ranks' scores under "scores/" and "segments/<number>/", the
                                   rest in the metadata

Ranks write their own files, because trajectories are large. Any number of ranks reads them: a
micro-batch belongs to the rank that the step's plan gives it to.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from atelier.errors import CheckpointError
from atelier.policies.base import Policy, Rollout
from atelier.training.batches import MicroBatch, micro_batches_by_update, step_samples
from atelier.training.experience import Collector, Experience
from atelier.training.scores import VALUE, WEIGHT, StepScores, below

PATTERN = "in_flight-*.safetensors"
SCORES, SEGMENTS = "scores/", "segments/"


def write_experience(folder: Path, experience: Experience, policy: Policy, rank: int) -> None:
    """Write this rank's part of an experience into `folder`."""
    tensors = _named(SCORES, experience.scores)
    for number, one in enumerate(experience.segments):
        tensors |= _named(f"{SEGMENTS}{number}/", one)
    for rollout in (one for update in experience.rollouts for one in update):
        for name, value in policy.pack(rollout).items():
            tensors[f"{rollout.samples[0].index}/{name}"] = value.detach().cpu().contiguous()
    said = {
        "step": experience.step,
        "updates_before": experience.updates_before,
        "metrics": experience.metrics,
        "first_reason": experience.scores.first_reason,
        "segments": len(experience.segments),
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / PATTERN.replace("*", f"{rank:05d}")
    save_file(tensors, path, metadata={"experience": json.dumps(said)})


def read_experience(folder: Path, collector: Collector) -> Experience | None:
    """This rank's part of the experience of a checkpoint, or None where it holds none.

    Raises:
        CheckpointError: a micro-batch is missing.
    """
    files = sorted(folder.glob(PATTERN))
    if not files:
        return None
    tensors: dict[str, Tensor] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            said: dict[str, Any] = json.loads(file.metadata()["experience"])
            tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    config, world = collector.config, collector.world
    samples = step_samples(collector.prompts, said["step"], config)
    updates = micro_batches_by_update(samples, said["step"], config, world.rank, world.size)
    rollouts = [[_rollout(batch, tensors, collector) for batch in update] for update in updates]
    why = said["first_reason"]
    scores = _scores(below(tensors, SCORES), why)
    segments = [
        _scores(below(tensors, f"{SEGMENTS}{number}/"), why) for number in range(said["segments"])
    ]
    made = said["step"], said["updates_before"], rollouts
    return Experience(*made, scores, segments, said["metrics"])


def _scores(stored: Mapping[str, Tensor], first_reason: str | None) -> StepScores:
    return StepScores(
        stored["index"],
        stored["total"],
        stored["valid"],
        stored["group_ids"],
        below(stored, VALUE),
        first_reason,
        below(stored, WEIGHT),
    )


def _named(prefix: str, scores: StepScores) -> dict[str, Tensor]:
    """Tensors of their own: a file takes none twice."""
    values = {f"{VALUE}{name}": value for name, value in scores.values.items()}
    values |= {f"{WEIGHT}{name}": weight for name, weight in scores.weights.items()}
    values |= {name: getattr(scores, name) for name in ("index", "total", "valid", "group_ids")}
    return {f"{prefix}{name}": value.clone() for name, value in values.items()}


def _rollout(batch: MicroBatch, tensors: Mapping[str, Tensor], collector: Collector) -> Rollout:
    own = below(tensors, f"{batch[0].index}/")
    if not own:
        raise CheckpointError(
            f"images in flight: those from sample {batch[0].index} on are missing"
        )
    device = collector.world.device
    return collector.policy.unpack(batch, {name: one.to(device) for name, one in own.items()})
