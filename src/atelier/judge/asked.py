"""A question on its way to the judge: the request body, and what identifies it in the cache."""

from __future__ import annotations

import asyncio
from typing import Any

from PIL.Image import Image

from atelier.config.sections.judge import JudgeConfig
from atelier.judge.pictures import data_uri, fingerprint, prepared
from atelier.judge.questions import Question
from atelier.judge.replies import Failure, Parsed, Reply

Measured = Parsed[Any] | Failure
Messages = list[dict[str, Any]]


class Asked:
    """A question as it is sent. Its images are encoded when the first call needs them.

    Raises:
        OSError, ValueError, SyntaxError: an image cannot be used.
    """

    def __init__(self, question: Question, config: JudgeConfig) -> None:
        self._question = question
        self._pictures: list[Image] = [
            prepared(image, config.longest_side) for image in question.images
        ]
        self._uris: asyncio.Task[list[str]] | None = None
        self._name = config.name_at_endpoint
        self._detail = {} if config.image_detail is None else {"detail": config.image_detail}
        self._request = {
            "model": config.model,
            **config.parameters,
            **question.form.request(config),
        }
        self.identity = {
            "request": self._request,
            "system": question.system,
            "prompt": question.prompt,
            "images": [fingerprint(picture) for picture in self._pictures],
            **self._detail,
        }

    def read(self, reply: Reply) -> Measured:
        return self._question.form.read(reply)

    async def body(self, more: Messages, choices: int) -> dict[str, Any]:
        """The request for so many choices; `more` messages follow the question."""
        if self._uris is None:
            self._uris = asyncio.create_task(asyncio.to_thread(self._encoded))
        images = [
            {"type": "image_url", "image_url": {"url": uri, **self._detail}}
            for uri in await asyncio.shield(self._uris)
        ]
        text = {"type": "text", "text": self._question.prompt}
        system = self._question.system
        first = [{"role": "system", "content": system}] if system is not None else []
        messages = [*first, {"role": "user", "content": [*images, text]}, *more]
        several = {"n": choices} if choices > 1 else {}
        return {**self._request, **several, "model": self._name, "messages": messages}

    def _encoded(self) -> list[str]:
        return [data_uri(picture) for picture in self._pictures]


def complaint(reply: Reply, reason: str) -> Messages:
    """What follows an answer in the wrong form. The images stay in the conversation, so that a
    judge that said nothing of use does not make a verdict up; it is asked for no new one."""
    text = (
        f"Your answer could not be read: {reason}. Do not judge again. Give the same verdict, in "
        "exactly the form that was asked for and with nothing else."
    )
    return [{"role": "assistant", "content": reply.text}, {"role": "user", "content": text}]
