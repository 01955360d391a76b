"""The embedded judge at work: what the embedded generator draws, judged by a real vLLM.

Each picture is judged by its own prompt and by the next one's, and by the same model in this
process: the two must agree.
"""

from __future__ import annotations

import json
import logging
import os
import random
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL.Image import Image

from atelier.config.paths import from_root, make_folder
from atelier.config.sections.judge import JudgeConfig
from atelier.data.questions import caption_question
from atelier.data.scenes import prompt, sample_scene
from atelier.disk import stopped_when_full
from atelier.errors import Stopped
from atelier.evaluation.grid import contact_sheet
from atelier.judge.client import JudgeClient
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Answer, Question
from atelier.stages.servers.managed import ManagedServer
from atelier.stages.servers.specs import Place, judge_spec
from atelier.stages.servers.waiting import wait_until_ready

logger = logging.getLogger(__name__)

JUDGE, GENERATOR = "assets/tiny-judge", "assets/tiny-sd3"
TOKEN_ENV = "ATELIER_JUDGE_DEMO_TOKEN"
AGREE = 0.01  # between vLLM and this process
CELL = 176


def run(folder: Path, pictures: int = 16) -> Path:
    """Write grid.png and answers.json into `folder`; returns the grid's path.

    Raises:
        AtelierError: vLLM's environment cannot be made, or it does not come up.
        Stopped: an answer is missing, or the two disagree.
    """
    make_folder(folder, "--folder")
    with stopped_when_full(folder):
        prompts, images = draw(pictures)
        questions = [*_asked(prompts, images), *_asked([*prompts[1:], prompts[0]], images)]
        with served(JudgeConfig(model=JUDGE, dtype="float32"), folder) as judge:
            begun = time.monotonic()
            answers = judge.ask(questions)
            seconds = time.monotonic() - begun
        logger.info("judge: %d questions in %.1f s by vLLM", len(questions), seconds)
        online = _numbers(answers)
        apart = _apart(questions, online)
        logger.info("judge: at most %.1e apart from the same model in this process", apart)
        if apart > AGREE:
            raise Stopped(f"vLLM and this process disagree by {apart:.3g}, more than {AGREE}")
        own, other = online[:pictures], online[pictures:]
        return _written(folder, prompts, images, own, other)


@contextmanager
def served(judge: JudgeConfig, folder: Path) -> Iterator[JudgeClient]:
    """A managed judge and its client; the server is gone afterwards."""
    token = secrets.token_urlsafe(32)
    place = Place("judges.demo", folder / "judge", folder / "processes" / "judge.json", token)
    server = ManagedServer(judge_spec(place, "demo", judge))
    server.start()
    try:
        wait_until_ready([server])
        os.environ[TOKEN_ENV] = token
        own = {"placement": "remote", "urls": [f"{server.url}/v1"], "token_env": TOKEN_ENV}
        parameters = {"max_tokens": 1, "temperature": 0}
        with JudgeClient(judge.model_copy(update={**own, "parameters": parameters})) as client:
            yield client
    finally:
        os.environ.pop(TOKEN_ENV, None)
        server.stop()


def draw(count: int) -> tuple[list[str], list[Image]]:
    """Held-out prompts, and what the embedded generator makes of them."""
    from diffusers import StableDiffusion3Pipeline
    from diffusers.utils.logging import disable_progress_bar
    from torch import Generator

    disable_progress_bar()

    rng = random.Random("judge demo")
    scenes = [sample_scene(rng, rng.choice(("word", "shapes")), "heldout") for _ in range(count)]
    prompts = [prompt(scene) for scene in scenes]
    pipeline = StableDiffusion3Pipeline.from_pretrained(from_root(GENERATOR))
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline(
        prompts, num_inference_steps=8, guidance_scale=3.0, generator=Generator().manual_seed(0)
    ).images
    return prompts, images


def _asked(prompts: Sequence[str], images: Sequence[Image]) -> list[Question]:
    return [
        Question(caption_question(text), YesNoForm(), [image])
        for text, image in zip(prompts, images, strict=True)
    ]


def _numbers(answers: Sequence[Answer]) -> list[float]:
    for answer in answers:
        if answer.missing is not None:
            raise Stopped(f"the judge gave no answer: {answer.missing}")
    return [answer.numbers["p_yes"] for answer in answers]


def _apart(questions: Sequence[Question], online: Sequence[float]) -> float:
    """The largest difference between vLLM's answers and this process's."""
    from atelier.judge_models.local import LocalJudge

    offline = _numbers(LocalJudge(from_root(JUDGE), "cpu").ask(questions))
    return max(abs(one - other) for one, other in zip(online, offline, strict=True))


def _written(
    folder: Path,
    prompts: Sequence[str],
    images: Sequence[Image],
    own: Sequence[float],
    other: Sequence[float],
) -> Path:
    captions = [
        (text, f"shows it: {yes:.2f}", f"shows the next: {no:.2f}")
        for text, yes, no in zip(prompts, own, other, strict=True)
    ]
    grid = folder / "grid.png"
    arrays = [np.asarray(image.convert("RGB")) for image in images]
    contact_sheet(arrays, captions, columns=4, cell=CELL).save(grid)
    rows = [
        {"prompt": text, "p_yes": yes, "p_yes_of_the_next": no}
        for text, yes, no in zip(prompts, own, other, strict=True)
    ]
    (folder / "answers.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return grid
