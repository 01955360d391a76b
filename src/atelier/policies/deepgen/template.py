"""What stands around a user's words (prompt_template.json)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from atelier.config.facts.files import read_json
from atelier.errors import ConfigError

FILE = "prompt_template.json"
_WORDS = "{input}"


@dataclass(frozen=True)
class Template:
    """By the names of the published file; the defaults are what it says. `{input}` is what is put
    into a line."""

    GENERATION: str = "Generate an image: {input}"
    INSTRUCTION: str = "<|im_start|>user\n{input}<|im_end|>\n<|im_start|>assistant\n"
    IMG_START_TOKEN: str = "<|vision_start|>"
    IMG_CONTEXT_TOKEN: str = "<|image_pad|>"
    IMG_END_TOKEN: str = "<|vision_end|>"

    def drawing(self, words: str) -> str:
        """Asks for an image of the words; no words: what guidance leads away from."""
        return self._asked(self.GENERATION.replace(_WORDS, words))

    def editing(self, words: str, tokens: Sequence[int]) -> str:
        """Asks for a change of images.

        Args:
            tokens: of each image, one or more.
        """
        images = "".join(
            self.IMG_START_TOKEN + self.IMG_CONTEXT_TOKEN * count + self.IMG_END_TOKEN
            for count in tokens
        )
        return self._asked(f"{images}\n{words}")

    def _asked(self, text: str) -> str:
        return self.INSTRUCTION.replace(_WORDS, text)


def read_template(directory: Path) -> Template:
    """Of a model's directory.

    Raises:
        ConfigError: its file cannot be read, or lacks a line or the place for the words.
    """
    file = directory / FILE
    found = read_json(file)
    lines = {}
    for one in fields(Template):
        line = found.get(one.name)
        needs_words = _WORDS in getattr(Template, one.name)
        if not isinstance(line, str) or (needs_words and line.count(_WORDS) != 1):
            how = f" with {_WORDS} in it once" if needs_words else ""
            raise ConfigError(f"{file}: {one.name} is a text{how}; take the published file")
        lines[one.name] = line
    return Template(**lines)


def write_template(template: Template, directory: Path) -> None:
    text = json.dumps(asdict(template), indent=2)
    (directory / FILE).write_text(f"{text}\n", encoding="utf-8")
