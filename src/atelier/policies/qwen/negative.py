"""The negative prompt of guidance, as the encoder saw it before it was trained.

Encoded by the encoder that is trained, it would drift away from what the transformer knows.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from PIL import Image

from atelier.policies.embedding_cache import MemoryCache
from atelier.policies.qwen.chat import Chat, ChatPrompt
from atelier.policies.qwen.conditioning import Conditioned

MEMORY = 1 << 30  # bytes of edits' negative prompts that are kept
_WITHOUT_SOURCE = "no source image"


class Negative:
    """Negative embeddings: one for text to image, one a source image for edits. Each is made once,
    and kept.

    Args:
        encode: by the frozen reference; prompts to their conditions.
    """

    def __init__(
        self,
        chat: Chat,
        encode: Callable[[Sequence[ChatPrompt]], Conditioned],
        memory: int = MEMORY,
    ) -> None:
        self._chat = chat
        self._encode = encode
        self._kept = MemoryCache(memory)

    def of(self, source: Image.Image | None = None) -> Conditioned:
        """The one row of a source image, or of none."""
        name = _WITHOUT_SOURCE if source is None else _digest(source)
        found = self._kept.get(name)
        if found is None:
            made = self._encode([self._chat.nothing(source)])
            found = {"embeds": made.embeds.cpu(), "mask": made.mask.cpu()}
            self._kept.put(name, found)
        return Conditioned(found["embeds"], found["mask"], (found["embeds"].shape[1],))


def _digest(image: Image.Image) -> str:
    return hashlib.sha256(f"{image.mode} {image.size}".encode() + image.tobytes()).hexdigest()
