"""Prompts as a policy reads them: in tokens, and with the image that is to be edited."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from atelier.data.ground_truth import required_picture, source_image
from atelier.data.pictures import square
from atelier.data.prompts import Prompt
from atelier.errors import ConfigError
from atelier.policies.language.plain_text import require_plain
from atelier.policies.qwen.chat import Chat, ChatPrompt
from atelier.policies.qwen.conditioning import Conditioning


@dataclass(frozen=True)
class Read:
    """A prompt in tokens, and its source image where it asks for an edit: RGB, square, as large as
    what is painted, since the transformer paints squares."""

    chat: ChatPrompt
    source: Image.Image | None


def read(prompts: Sequence[Prompt], chat: Chat, side: int) -> list[Read]:
    """Each prompt of a table. Those that come several times are read once.

    Args:
        side: of images in pixels.

    Raises:
        DataError: a prompt has marks of the language model, or an edit has no source image.
    """
    known: dict[tuple[int, int], Read] = {}
    for one in prompts:
        identity = (one.dataset_id, one.prompt_id)
        if identity not in known:
            source = _source(one, side) if chat.edits else None
            known[identity] = Read(chat.prompt(one, source), source)
    return [known[one.dataset_id, one.prompt_id] for one in prompts]


def require_readable(
    texts: Sequence[str], chat: Chat, conditioning: Conditioning, max_tokens: int
) -> None:
    """Refuse prompts that are known beforehand before anything is computed. Source images are
    squares, so all of them take as much room.

    Raises:
        DataError: a text has marks of the language model.
        ConfigError: it leaves no room for a completion of so many tokens.
    """
    image = chat.placeholders() if texts else 0
    seen = f" and the {image} tokens of its source image" if image else ""
    for text in texts:
        require_plain(text, chat.tokenizer, "a prompt")
        room = conditioning.room(chat.kept(text, image))
        if room < max_tokens:
            raise ConfigError(
                f"rollout.completion.max_tokens: {max_tokens}, and beside the prompt "
                f"{text[:80]!r}{seen} {max(room, 0)} tokens fit into rollout.conditioning.window; "
                "let completions be shorter, leave out long prompts, or (edits) widen the window"
            )


def _source(prompt: Prompt, side: int) -> Image.Image:
    return square(required_picture(source_image(prompt), prompt, "source"), side)
