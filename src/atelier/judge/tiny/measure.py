"""What the embedded judge can do: held-out scenes, asked the way that rewards ask."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from atelier.data.questions import KINDS
from atelier.judge.local import LocalJudge
from atelier.judge.tiny.examples import make_examples


def accuracy(path: Path, scenes: int, device: str = "cpu", seed: int = 1) -> dict[str, float]:
    """Share of right answers to questions of each kind, as many to answer yes as no.

    Scenes are of the held-out split: their words and combinations were never seen in training.
    """
    examples = make_examples(scenes, "heldout", seed)
    pictures = [[Image.fromarray(examples.images[number])] for number in examples.image_of]
    judge = LocalJudge(path, device, "float32")
    texts = [question.text for question in examples.questions]
    said = np.asarray(judge.p_yes(pictures, texts, batch=256)) > 0.5
    right = said == np.asarray([question.answer for question in examples.questions])
    kinds = np.asarray([question.kind for question in examples.questions])
    return {kind: round(float(right[kinds == kind].mean()), 4) for kind in KINDS}
