"""A batch on its way to services: as tensors where they are taken, else as JSON."""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property

from atelier.legible import legible_error
from atelier.rewards.base import ScoreBatch
from atelier.rewards.service import tensors
from atelier.rewards.service.pictures import to_items
from atelier.rewards.service.protocol import (
    JSON_BODY,
    TENSORS_BODY,
    Item,
    ItemFacts,
    RequestHead,
    ScoreRequest,
    TensorsRequest,
)


class CannotBeSent(ValueError):
    """A batch that is no JSON, or a picture that is no PNG; the text names the first such image."""


class OutgoingBatch:
    """A batch that is asked for once or several times."""

    def __init__(self, batch: ScoreBatch) -> None:
        self._batch = batch

    def body(self, head: RequestHead, taken: Container[str]) -> tuple[str, bytes]:
        """Media type and body of one request.

        Args:
            taken: media types that the service takes beside JSON, which every one does.

        Raises:
            CannotBeSent: something in it can never be sent.
        """
        try:
            return self._body(head, taken)
        except (ValueError, TypeError, OSError, SystemError) as error:  # the last two of a picture
            raise CannotBeSent(self._first_problem() or legible_error(error)) from error

    def _first_problem(self) -> str | None:
        for index in range(len(self._batch)):
            alone = OutgoingBatch(self._batch.at([index]))
            try:
                alone._body(RequestHead(), ())
            except (ValueError, TypeError, OSError, SystemError) as error:
                return f"image {index} of the batch cannot be sent: {legible_error(error)}"
        return None

    def _body(self, head: RequestHead, taken: Container[str]) -> tuple[str, bytes]:
        asked = dict(head)
        if TENSORS_BODY in taken and tensors.fits(self._batch):
            request = TensorsRequest(**asked, items=self._facts)
            return TENSORS_BODY, tensors.pack(self._batch, request)
        return JSON_BODY, ScoreRequest(**asked, items=self._items).model_dump_json().encode()

    @cached_property
    def _items(self) -> list[Item]:
        return to_items(self._batch)

    @property
    def _facts(self) -> list[ItemFacts]:
        columns = zip(self._batch.prompts, self._batch.metadata, self._batch.group_ids, strict=True)
        return [
            ItemFacts(prompt=prompt, metadata=dict(metadata), group_id=int(group_id))
            for prompt, metadata, group_id in columns
        ]
