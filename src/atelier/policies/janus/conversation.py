"""What Janus reads before it draws, judges or edits, in tokens.

An image inside a conversation is not text: `IMAGE_SLOT` holds the place of each of its embeddings,
and who runs the model puts them there. Source: FocusDiff and Janus-Pro-R1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

IMAGE_SLOT = -1
USER, ASSISTANT = "<|User|>: ", "\n\n<|Assistant|>:"
TURNS = ("<|User|>", "<|Assistant|>")


@dataclass(frozen=True)
class Phrases:
    """Fixed sentences of a conversation. A checkpoint answers to those it was fine-tuned on."""

    question: str = "Does this image show what was asked for?"
    draw_again: str = "Draw another image."
    edit: str = " Draw the edited image."


@dataclass(frozen=True)
class Context:
    """Tokens that come before what is generated.

    Attributes:
        tokens: IMAGE_SLOT where an image's embeddings go.
        prompt: where the words of the prompt stand, [start, end): what an unconditional row does
            not know. BOS is before it.
    """

    tokens: tuple[int, ...]
    prompt: tuple[int, int]

    def without_prompt(self, pad: int) -> Context:
        """The same with each token of the prompt replaced by `pad`: an equally long null prompt."""
        start, end = self.prompt
        nothing = (pad,) * (end - start)
        return Context((*self.tokens[:start], *nothing, *self.tokens[end:]), self.prompt)


class Conversation:
    """Builds contexts with a model's own tokenizer and marks.

    Args:
        tokenizer: of the model's processor; it knows `boi_token` and `eoi_token`.
        image_tokens: embeddings of one image.
    """

    def __init__(self, tokenizer: Any, image_tokens: int, phrases: Phrases | None = None) -> None:
        self.tokenizer = tokenizer
        self._phrases = phrases or Phrases()
        self.image_tokens = image_tokens
        self.bos: int = tokenizer.bos_token_id
        self.eos: int = tokenizer.eos_token_id
        self.pad: int = tokenizer.pad_token_id
        self.begin_image: int = tokenizer.convert_tokens_to_ids(tokenizer.boi_token)
        self.end_image: int = tokenizer.convert_tokens_to_ids(tokenizer.eoi_token)

    def drawing(self, prompt: str) -> Context:
        """Text to image. The unconditional row keeps BOS and the mark that begins the image."""
        text = self._text(f"{USER}{prompt.strip()}{ASSISTANT}")
        return Context((self.bos, *text, self.begin_image), (1, 1 + len(text)))

    def judging(self, prompt: str, *answers: Sequence[int]) -> Context:
        """A drawing, its image as it is seen, and the question whether it is what was asked for.

        Args:
            answers: to the question about earlier images, whose embeddings are of what was drawn.
        """
        before = self.redrawing(prompt, *answers) if answers else self.drawing(prompt)
        return self._asked(before)

    def redrawing(self, prompt: str, *answers: Sequence[int]) -> Context:
        """A drawing, its image, the question, the answer given, and the wish for another image; and
        the same of that image, for every answer.

        Args:
            answers: tokens without EOS; each image's embeddings are of what was drawn.
        """
        context = self.drawing(prompt)
        wish = (self.eos, *self._text(f"\n{self._phrases.draw_again}"), self.begin_image)
        for answer in answers:
            asked = self._asked(context)
            context = Context((*asked.tokens, *answer, *wish), context.prompt)
        return context

    def _asked(self, drawing: Context) -> Context:
        question = self._text(f"\n{self._phrases.question}")
        tokens = (*drawing.tokens, *self._slots, self.end_image, *question)
        return Context(tokens, drawing.prompt)

    def editing(self, instruction: str) -> Context:
        """A source image and an instruction; what is unconditional lacks the instruction alone."""
        before = (self.bos, *self._text(USER), self.begin_image, *self._slots, self.end_image)
        words = self._text(instruction.strip())
        after = self._text(f"{self._phrases.edit}{ASSISTANT}")
        start = len(before)
        return Context((*before, *words, *after, self.begin_image), (start, start + len(words)))

    def asking(self, question: str) -> Context:
        """A question about an image that is seen, with nothing drawn: plain understanding."""
        image = (self.begin_image, *self._slots, self.end_image)
        text = self._text(f"\n{question.strip()}{ASSISTANT}")
        tokens = (self.bos, *self._text(USER), *image, *text)
        return Context(tokens, (len(tokens) - len(text), len(tokens)))

    def words(self, tokens: Sequence[int]) -> str:
        """Text of tokens, without marks."""
        return str(self.tokenizer.decode(list(tokens), skip_special_tokens=True)).strip()

    @property
    def _slots(self) -> tuple[int, ...]:
        return (IMAGE_SLOT,) * self.image_tokens

    def _text(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])
