"""A batch on its way to services: as tensors where they are taken, else as JSON."""

from __future__ import annotations

from collections.abc import Container
from functools import cached_property

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


class OutgoingBatch:
    """A batch that is asked for once or several times."""

    def __init__(self, batch: ScoreBatch) -> None:
        self._batch = batch

    def body(self, head: RequestHead, taken: Container[str]) -> tuple[str, bytes]:
        """Media type and body of one request.

        Args:
            taken: media types that the service takes beside JSON, which every one does.
        """
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
