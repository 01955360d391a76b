"""The words that embedded models know whole, a token each; all other text is spelled in bytes."""

import re

from atelier.data.questions import ANSWER, DESCRIBE, OPPOSITES, READ
from atelier.data.scenes import VOCABULARY

# Of questions about scenes and of their answers, in every case that asking code looks for.
ASKING = (
    *(*VOCABULARY, *OPPOSITES, ANSWER, READ, DESCRIBE),
    "Is Are Does there this image show the word",
    "Yes No YES NO yes no",
)


def words_of(*texts: str) -> list[str]:
    """The different words of texts, in alphabetical order."""
    return sorted({word for text in texts for word in re.findall(r"[A-Za-z]+", text)})
