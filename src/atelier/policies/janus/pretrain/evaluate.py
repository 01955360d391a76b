"""What the model can do, on scenes that training never shows: measured by the gold check."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atelier.data.edit_check import check_edit
from atelier.data.edits import Edit
from atelier.data.gold import check_batch
from atelier.data.keys import key
from atelier.data.questions import YES as YES_ANSWER
from atelier.data.scenes import Scene, prompt
from atelier.data.verdicts import YES, held, verdict
from atelier.policies.janus.pretrain import vq
from atelier.policies.janus.pretrain.cases import IMAGES, make_case, make_images
from atelier.policies.janus.pretrain.painter import Painter
from atelier.policies.janus.pretrain.world import questions

CHUNK = 32
GUIDANCE = 5.0
OTHER_GUIDANCE = (1.0, 3.0)
Images = NDArray[np.uint8]
_About = TypeVar("_About")
_Found = TypeVar("_Found")


@dataclass(frozen=True)
class Drawings:
    """Held-out prompts, what was drawn for them, and whether each image shows all it should."""

    prompts: list[str]
    images: Images
    right: list[bool]


class Exam:
    """Held-out cases 0, 1, ... of a seed. All numbers are shares in [0, 1].

    Args:
        executor: of the gold check, some 3 ms an image.
    """

    def __init__(self, count: int, seed: int, executor: Executor) -> None:
        self._executor, self._seed = executor, seed
        self.cases = [make_case("heldout", seed, index) for index in range(count)]
        images = make_images(self.cases, "heldout", seed, 0)
        # Of each case: its scene, the other one, what the edit makes.
        self._scene, self._other, self._edited = (images[part::IMAGES] for part in range(IMAGES))
        self.prompts = [prompt(case.scene) for case in self.cases]
        self._scenes = [case.scene for case in self.cases]

    def ceiling(self, painter: Painter) -> dict[str, float]:
        """True renders, as they are and after the image tokenizer: no drawing can be better."""
        again = painter.images(self._codes(painter, self._scene))
        edited = painter.images(self._codes(painter, self._edited))
        edits = self._check_edits(edited, [case.edit for case in self.cases])
        return {
            "renders": _share(self._check(self._scene, self._scenes)),
            "round_trip": _share(self._check(again, self._scenes)),
            "edit_round_trip": _share([left * right == 1 for left, right in edits]),
        }

    def draw(self, painter: Painter, guidance_scale: float) -> Drawings:
        contexts = [painter.conversation.drawing(text) for text in self.prompts]
        images = painter.images(painter.draw(contexts, guidance_scale, self._seed))
        return Drawings(self.prompts, images, self._check(images, self._scenes))

    def judge(self, painter: Painter, drawn: Drawings) -> dict[str, float | None]:
        """Verdicts about true renders, and about its own drawings: balanced accuracy, the mean of
        the shares of right answers about images that show the prompt and that do not."""
        contexts = [painter.conversation.judging(text) for text in self.prompts]
        shown, altered = (
            painter.says_yes(contexts, images) for images in (self._scene, self._other)
        )
        own = painter.says_yes(contexts, drawn.images)
        accepted = [said for said, right in zip(own, drawn.right, strict=True) if right]
        refused = [not said for said, right in zip(own, drawn.right, strict=True) if not right]
        expected = [verdict(case.scene, held(case.scene, case.other)) for case in self.cases]
        said = painter.says(contexts, self._other)
        reasons = [left == right for left, right in zip(said, expected, strict=True)]
        return {
            "renders": _balanced(shown, [not one for one in altered]),
            "own": _balanced(accepted, refused),
            "reasons": _share(reasons),
        }

    def ask(self, painter: Painter) -> dict[str, float]:
        """Yes/no questions about a scene, by kind and all together."""
        asked = [
            questions(case.scene, random.Random(key("tiny-janus exam", self._seed, index)), 1)[0]
            for index, case in enumerate(self.cases)
        ]
        contexts = [painter.conversation.asking(question.text) for question in asked]
        said = painter.says_yes(contexts, self._scene)
        expected = [question.answer == YES_ANSWER for question in asked]
        right = [one == other for one, other in zip(said, expected, strict=True)]
        return {"all": _share(right), **_by_kind([one.kind for one in asked], right)}

    def redraw(self, painter: Painter) -> float:
        """Drawing again after an image that differs in one fact and the right verdict about it."""
        writing = painter.conversation
        contexts = [
            writing.redrawing(
                text, painter.words(verdict(case.scene, held(case.scene, case.other)))
            )
            for text, case in zip(self.prompts, self.cases, strict=True)
        ]
        given = self._codes(painter, self._other)
        images = painter.images(painter.draw(contexts, GUIDANCE, self._seed, given))
        return _share(self._check(images, self._scenes))

    def introspect(self, painter: Painter, drawn: Drawings) -> dict[str, float]:
        """Its own verdict about each of its drawings, and where that is No another drawing.

        Returns shares: of first drawings that are right; of those it accepts; of new drawings that
        are right; of drawings that are right in the end.
        """
        writing = painter.conversation
        said = painter.says([writing.judging(text) for text in self.prompts], drawn.images)
        refused = [index for index, text in enumerate(said) if not text.startswith(YES)]
        contexts = [
            writing.redrawing(self.prompts[index], painter.words(said[index])) for index in refused
        ]
        again: list[bool] = []
        if refused:
            given = self._codes(painter, drawn.images[refused])
            images = painter.images(painter.draw(contexts, GUIDANCE, self._seed, given))
            again = self._check(images, [self._scenes[index] for index in refused])
        final = dict(enumerate(drawn.right)) | dict(zip(refused, again, strict=True))
        return {
            "first": _share(drawn.right),
            "accepted": round(1 - len(refused) / len(said), 4),
            "redrawn": _share(again) if again else 0.0,
            "final": _share(list(final.values())),
        }

    def edit(self, painter: Painter, guidance_scale: float = GUIDANCE) -> dict[str, Any]:
        edits = [case.edit for case in self.cases]
        contexts = [painter.conversation.editing(one.instruction) for one in edits]
        given = self._codes(painter, self._scene)
        images = painter.images(painter.draw(contexts, guidance_scale, self._seed, given))
        found = self._check_edits(images, edits)
        done = [following * preserving == 1 for following, preserving in found]
        return {
            "following": _share([following for following, _ in found]),
            "preserving": _share([preserving for _, preserving in found]),
            "both": _share(done),
            **_by_kind([one.kind for one in edits], done),
        }

    def all(self, painter: Painter) -> tuple[dict[str, Any], Drawings]:
        """Everything, and the drawings at the guidance that decides."""
        drawn = self.draw(painter, GUIDANCE)
        found: dict[str, Any] = {"draw": {f"cfg {GUIDANCE:g}": _share(drawn.right)}}
        for scale in OTHER_GUIDANCE:
            found["draw"][f"cfg {scale:g}"] = _share(self.draw(painter, scale).right)
        found["judge"] = self.judge(painter, drawn)
        found["ask"] = self.ask(painter)
        found["redraw"] = self.redraw(painter)
        found["introspect"] = self.introspect(painter, drawn)
        found["edit"] = self.edit(painter)
        return found, drawn

    def _codes(self, painter: Painter, images: Images) -> Tensor:
        device = painter.model.lm_head.weight.device
        return vq.encode(painter.model.model.vqmodel, torch.from_numpy(images).to(device))

    def _check(self, images: Images, scenes: Sequence[Scene]) -> list[bool]:
        return self._in_chunks(_all_right, images, scenes)

    def _check_edits(self, images: Images, edits: Sequence[Edit]) -> list[tuple[float, float]]:
        return self._in_chunks(_edited, images, edits)

    def _in_chunks(
        self,
        check: Callable[[Images, Sequence[_About]], list[_Found]],
        images: Images,
        about: Sequence[_About],
    ) -> list[_Found]:
        parts = [slice(start, start + CHUNK) for start in range(0, len(images), CHUNK)]
        jobs = [self._executor.submit(check, images[part], about[part]) for part in parts]
        return list(chain.from_iterable(job.result() for job in jobs))


def _all_right(images: Images, scenes: Sequence[Scene]) -> list[bool]:
    return [result.score == 1.0 for result in check_batch(images, scenes)]


def _edited(images: Images, edits: Sequence[Edit]) -> list[tuple[float, float]]:
    results = [check_edit(image, one) for image, one in zip(images, edits, strict=True)]
    return [(result.following, result.preserving) for result in results]


def _by_kind(kinds: Sequence[str], right: Sequence[bool]) -> dict[str, float]:
    found: dict[str, list[bool]] = {}
    for kind, one in zip(kinds, right, strict=True):
        found.setdefault(kind, []).append(one)
    return {kind: _share(own) for kind, own in sorted(found.items())}


def _share(values: Sequence[float]) -> float:
    return round(float(np.mean(values)), 4)


def _balanced(accepted: Sequence[bool], refused: Sequence[bool]) -> float | None:
    """None where there is nothing of one kind."""
    if not accepted or not refused:
        return None
    return round((_share(accepted) + _share(refused)) / 2, 4)
