"""How long the rows are that Janus reads and draws. Lengths of texts are not known beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from atelier.config.facts.janus import JanusFacts
from atelier.config.memory.parts import Together
from atelier.config.schema import RunConfig

PROMPT_TOKENS = 128  # with its template; longer prompts need more
_CHARACTERS_A_TOKEN = 3  # of a fixed sentence, at least
_MARKS = 8  # around an image and an answer, at most


@dataclass(frozen=True)
class Sequences:
    """A micro-batch of rows.

    Attributes:
        samples: whose rows they are: one each, and with guidance an unconditional one.
        context: tokens of a row before those that are drawn.
        new: tokens that are drawn.
        vocabulary: that these are of.
    """

    samples: int
    rows: int
    context: int
    new: int
    vocabulary: int

    @property
    def length(self) -> int:
        """Tokens of a row that are read: the last one never is."""
        return self.context + self.new - 1

    @property
    def tokens(self) -> int:
        """Of all rows."""
        return self.rows * self.length


def longest_sequences(config: RunConfig, facts: JanusFacts, together: Together) -> list[Sequences]:
    """That end in an image and, where there are any, in an answer.

    A row is a prompt, and what comes between it and the tokens that are drawn: a source image, or
    earlier images with answers of full length.

    Args:
        together: images that are made, or learned from: with guidance each has an unconditional
            row. Answers have none.
    """
    rollout, tokens = config.rollout, facts.images.tokens
    samples, rows = together.images, together.rows
    if rollout.kind != "introspect":
        wish = _tokens_of(rollout.editing.wish)
        source = tokens + _MARKS + wish if rollout.kind == "edit" else 0
        return [Sequences(samples, rows, PROMPT_TOKENS + source, tokens, facts.codebook)]
    settings = rollout.introspection
    asked = tokens + _MARKS + _tokens_of(settings.question)
    told = settings.answer_tokens + _tokens_of(settings.draw_again)
    before = PROMPT_TOKENS + (settings.rounds - 2) * (asked + told)
    return [
        Sequences(samples, rows, before + asked + told, tokens, facts.codebook),
        Sequences(samples, samples, before + asked, settings.answer_tokens, facts.vocabulary),
    ]


def _tokens_of(sentence: str) -> int:
    return len(sentence) // _CHARACTERS_A_TOKEN
