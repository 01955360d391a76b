"""Images that the model draws itself, with the gold check's verdict: to be judged and redrawn.

What it will have to judge are its own failures, which are no renders of any scene.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import Executor
from itertools import chain

import numpy as np
import torch
from numpy.typing import NDArray

from atelier.data.gold import check
from atelier.data.keys import key
from atelier.data.scenes import prompt
from atelier.data.verdicts import verdict
from atelier.policies.janus.pretrain import vq
from atelier.policies.janus.pretrain.cases import IMAGES, make_case
from atelier.policies.janus.pretrain.painter import Painter
from atelier.policies.janus.pretrain.sequences import Row, Table, Task, stack
from atelier.policies.janus.pretrain.training import Trainer
from atelier.policies.janus.pretrain.world import writer

GUIDANCE = (1.0, 3.0, 5.0)
CHUNK = 64


def learn_from_own(
    trainer: Trainer, painter: Painter, count: int, cases: int, seed: int, executor: Executor
) -> float:
    """Draw `count` images for training prompts into the bank's last places, and put conversations
    about them into the trainer's draws; the share of images that were right.

    As many are accepted as refused: of the larger kind some are left out.
    """
    bank = trainer.bank
    chosen = random.Random(key("tiny-janus own", seed)).sample(range(cases), count)
    prompts = [prompt(make_case("train", trainer.options.seed, index).scene) for index in chosen]
    codes = []
    for number, scale in enumerate(GUIDANCE):
        part = slice(number * count // len(GUIDANCE), (number + 1) * count // len(GUIDANCE))
        contexts = [painter.conversation.drawing(text) for text in prompts[part]]
        codes.append(painter.draw(contexts, scale, seed + number))
    tokenizer = painter.model.model.vqmodel
    images = vq.decode(tokenizer, torch.cat(codes))
    slots = slice(bank.of_cases, bank.of_cases + count)
    bank.sharp[slots] = bank.decoded[slots] = images
    bank.codes[slots] = vq.encode(tokenizer, images)  # as a rollout sees them
    pixels = images.cpu().numpy()
    jobs = [
        executor.submit(
            _verdicts,
            chosen[start : start + CHUNK],
            pixels[start : start + CHUNK],
            bank.of_cases + start,
            trainer.options.seed,
            bank.codes.shape[1],
        )
        for start in range(0, count, CHUNK)
    ]
    found = list(chain.from_iterable(job.result() for job in jobs))
    accepted = [judged for judged, redrawn in found if redrawn is None]
    refused = [judged for judged, redrawn in found if redrawn is not None]
    redrawn = [again for _, again in found if again is not None]
    least = min(len(accepted), len(refused))
    pad = painter.conversation.pad
    tables: dict[Task, Table] = {}
    if least:
        tables["judge"] = stack(accepted[:least] + refused[:least], pad)
    if redrawn:
        tables["redraw"] = stack(redrawn, pad)
    trainer.set_own(tables)
    return len(accepted) / count


def _verdicts(
    indices: Sequence[int],
    images: NDArray[np.uint8],
    first: int,
    seed: int,
    image_tokens: int,
) -> list[tuple[Row, Row | None]]:
    """The judging of each image, and where it is refused the drawing of another one."""
    writing, found = writer(image_tokens), []
    for offset, (index, image) in enumerate(zip(indices, images, strict=True)):
        scene = make_case("train", seed, index).scene
        result = check(image, scene)
        asked, said, own = prompt(scene), verdict(scene, result.facts), first + offset
        judged = writing.judge(asked, said, own)
        again = None
        if result.score < 1.0:
            again = writing.redraw(asked, said, own, IMAGES * index, hide_end=bool(offset % 2))
        found.append((judged, again))
    return found
