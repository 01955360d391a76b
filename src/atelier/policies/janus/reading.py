"""Whether a model can read what a run's prompts will come to, before anything is drawn."""

from __future__ import annotations

from collections.abc import Sequence

from atelier.config.sections.rollout import RolloutConfig
from atelier.errors import ConfigError
from atelier.policies.janus.conversation import TURNS, Conversation
from atelier.policies.language.plain_text import require_plain


def require_readable(
    texts: Sequence[str], conversation: Conversation, rollout: RolloutConfig, positions: int
) -> None:
    """Refuse prompts that are known beforehand, and conversations about them that may become longer
    than the model was made for: behind its last position it draws anything.

    Args:
        positions: tokens of the longest row that the model knows.

    Raises:
        DataError: a text, or a sentence of the configuration, has marks of the language model.
        ConfigError: a row may become too long.
    """
    own = {
        "rollout.introspection.question": rollout.introspection.question,
        "rollout.introspection.draw_again": rollout.introspection.draw_again,
        "rollout.editing.wish": rollout.editing.wish,
    }
    for where, text in (*own.items(), *(("a prompt", one) for one in texts)):
        require_plain(text, conversation.tokenizer, where, TURNS)
    if not texts:
        return
    longest = max(texts, key=lambda text: len(conversation.drawing(text).tokens))
    needed = _longest_row(longest, conversation, rollout)
    if needed > positions:
        shorter = "leave out long prompts"
        if rollout.kind == "introspect":
            shorter = f"lower rollout.introspection.rounds or answer_tokens, or {shorter}"
        raise ConfigError(
            f"a prompt: {longest[:80]!r} and what comes after it have up to {needed} tokens, and "
            f"the model was made for {positions}; {shorter}"
        )


def _longest_row(text: str, conversation: Conversation, rollout: RolloutConfig) -> int:
    """Tokens up to the end of the last image: every other row is the beginning of that."""
    if rollout.kind == "edit":
        before = conversation.editing(text)
    else:
        settings = rollout.introspection
        rounds = settings.rounds if rollout.kind == "introspect" else 1
        answers = [(conversation.pad,) * settings.answer_tokens] * (rounds - 1)
        before = conversation.redrawing(text, *answers)
    return len(before.tokens) + conversation.image_tokens
