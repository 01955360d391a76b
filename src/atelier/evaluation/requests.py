"""Which images an evaluation asks for, from which noise, and what their files are called."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.data.ground_truth import is_edit
from atelier.data.keys import key
from atelier.data.point_rows import points_of
from atelier.data.prompts import Prompt
from atelier.data.rows import whole_pairs
from atelier.errors import DataError
from atelier.legible import legible_value

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


def evaluated(prompts: Sequence[Prompt], config: EvaluationConfig, most: int) -> list[Prompt]:
    """The first held-out prompts that the suite can use, at most so many: those that it cannot use
    take nobody's place. The evaluation of fewer is always one of the first of more."""
    return usable(usable(prompts, config)[:most], config)  # the cut may have halved a pair


def usable(prompts: Sequence[Prompt], config: EvaluationConfig) -> list[Prompt]:
    """The prompts that the suite can use, such as those that have test points."""
    return _WANTED[config.suite](prompts) if config.suite in _WANTED else list(prompts)


def kind_for(config: EvaluationConfig) -> str:
    """What the prompts are that the suite can use, in words."""
    return _KIND[config.suite]


def image_requests(prompts: Sequence[Prompt], config: EvaluationConfig) -> list[ImageRequest]:
    """What the suite wants of these prompts: prompt after prompt, the images of one together.

    Raises:
        DataError: it wants none of them, or two images would be one file.
    """
    wanted = usable(prompts, config)
    if not wanted:
        raise DataError(
            f"evaluation.suite {config.suite}: none of the {len(prompts)} held-out prompts is "
            f"{kind_for(config)}; use another suite, or other data"
        )
    numbered = [(one, number) for one in wanted for number in range(config.images_of_a_prompt)]
    requests = [
        ImageRequest(prompt, number, f"images/{_name(config, index, prompt, number)}.png")
        for index, (prompt, number) in enumerate(numbered)
    ]
    _require_own_files(requests)
    return requests


def _require_own_files(requests: Sequence[ImageRequest]) -> None:
    """An image that another one overwrote would be scored as both."""
    owners: dict[str, ImageRequest] = {}
    for one in requests:
        other = owners.setdefault(one.file, one)
        if other is not one:
            first, second = (legible_value(each.prompt.text) for each in (other, one))
            raise DataError(
                f"held-out prompts {first} and {second} of data set {one.prompt.dataset_id} have "
                f"one number, so that {one.file} would be an image of both; number them apart"
            )


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
    """A benchmark's own names where it has some. They know one data
    set, the first; before the names of images of another one stands which it is."""
    which = f"{prompt.dataset_id}_" if prompt.dataset_id else ""
    if config.suite == "paircomp":
        return f"{which}{prompt.metadata['pair']}_{prompt.metadata['caption'] - 1}_{number}"
    if config.suite == "unigenbench":
        return f"{which}{prompt.prompt_id}_{number}"
    return f"{index:05d}"
