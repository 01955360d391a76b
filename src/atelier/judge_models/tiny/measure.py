"""What the embedded judge can do: held-out scenes, asked the way that rewards ask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from atelier.data.questions import KINDS, YES
from atelier.judge_models.local import LocalJudge
from atelier.judge_models.tiny.examples import make_examples


def accuracy(path: Path, scenes: int, device: str = "cpu", seed: int = 1) -> dict[str, float]:
    """Share of right answers to questions of each kind, as many to answer yes as no.

    Scenes are of the held-out split: their words and combinations were never seen in training.
    """
    examples = make_examples(scenes, "heldout", seed)
    asked = [number for number, one in enumerate(examples.questions) if one.kind in KINDS]
    questions = [examples.questions[number] for number in asked]
    pictures = [[Image.fromarray(examples.images[examples.image_of[n]])] for n in asked]
    judge = LocalJudge(path, device, "float32")
    said = np.asarray(judge.p_yes(pictures, [one.text for one in questions])) > 0.5
    right = said == np.asarray([one.answer == YES for one in questions])
    kinds = np.asarray([one.kind for one in questions])
    return {kind: round(float(right[kinds == kind].mean()), 4) for kind in KINDS}
