"""Which images an evaluation asks for, from which noise, and what their files are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atelier.config.schema import EvaluationConfig
from atelier.data.ground_truth import is_edit
from atelier.data.keys import key
from atelier.data.point_rows import points_of
from atelier.data.prompts import Prompt
from atelier.data.rows import whole_pairs
from atelier.errors import DataError

MOST_IMAGES = 10**6  # of a prompt, of which a file can tell


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


def image_requests(prompts: Sequence[Prompt], config: EvaluationConfig) -> list[ImageRequest]:
    """What the suite wants of these prompts: prompt after prompt, the images of one together.

    Raises:
        DataError: it wants none of them.
    """
    wanted = _WANTED[config.suite](prompts) if config.suite in _WANTED else list(prompts)
    if not wanted:
        raise DataError(
            f"evaluation.suite {config.suite}: none of the {len(prompts)} held-out prompts is "
            f"{_KIND[config.suite]}; use another suite, or other data"
        )
    numbered = [(one, number) for one in wanted for number in range(config.images_of_a_prompt)]
    return [
        ImageRequest(prompt, number, f"images/{_name(config, index, prompt, number)}.png")
        for index, (prompt, number) in enumerate(numbered)
    ]


def _pairs(prompts: Sequence[Prompt]) -> list[Prompt]:
    return [one for pair in whole_pairs(prompts) for one in pair]


# What the tables of MMMG need, beside the graph.
_GRAPH = {"knowledge_graph", "tier", "discipline"}
# Suites that do not want every prompt: which they do, and what those are called.
_WANTED: dict[str, Callable[[Sequence[Prompt]], list[Prompt]]] = {
    "paircomp": _pairs,
    "editing": lambda prompts: [one for one in prompts if is_edit(one)],
    "complex_edit": lambda prompts: [
        one for one in prompts if is_edit(one) and "level" in one.metadata
    ],
    "mmmg": lambda prompts: [one for one in prompts if one.metadata.keys() >= _GRAPH],
    "unigenbench": lambda prompts: [one for one in prompts if points_of(one)],
}
_KIND = {
    "paircomp": "one of a pair",
    "editing": "an instruction for an edit",
    "complex_edit": "an instruction for an edit, with a level",
    "mmmg": "one with a knowledge graph",
    "unigenbench": "one with test points",
}


def _name(config: EvaluationConfig, index: int, prompt: Prompt, number: int) -> str:
    """A benchmark's own names where it has some (spec janus 7, deepgen 6.3)."""
    if config.suite == "paircomp":
        return f"{prompt.metadata['pair']}_{prompt.metadata['caption'] - 1}_{number}"
    if config.suite == "unigenbench":
        return f"{prompt.prompt_id}_{number}"
    return f"{index:05d}"
