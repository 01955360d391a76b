"""Which images an evaluation asks for, from which noise, and what their files are called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atelier.config.schema import EvaluationConfig
from atelier.data.keys import key
from atelier.data.prompts import Prompt


@dataclass(frozen=True)
class ImageRequest:
    """The image `number` (from 0) of a prompt, kept as `file` in the evaluation's folder."""

    prompt: Prompt
    number: int
    file: str

    def key(self, seed: int) -> int:
        """Key of its noise."""
        return evaluation_key(seed, self.prompt, self.number)


def evaluation_key(seed: int, prompt: Prompt, number: int = 0) -> int:
    """Key of the fixed evaluation noise of a prompt: the same before, during and after."""
    rest = (number,) if number else ()
    return key("evaluation", seed, prompt.prompt_id, *rest)


def image_requests(prompts: Sequence[Prompt], _config: EvaluationConfig) -> list[ImageRequest]:
    """What the suite wants of these prompts: prompt after prompt, the images of one together."""
    return [
        ImageRequest(prompt, 0, f"images/{index:05d}.png") for index, prompt in enumerate(prompts)
    ]
