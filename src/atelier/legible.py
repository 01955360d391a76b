"""What a service says, as something that may stand in a log: its words are not ours to trust."""

from __future__ import annotations

_LONGEST = 1000


def legible(text: str, secret: str | None = None) -> str:
    """One bounded line of printable characters, with `secret` cut out.

    A newline could forge a line of the log, an escape sequence could rewrite the terminal, and a
    service may echo the header that bears the token.
    """
    if secret:
        text = text.replace(secret, "[token]")
    printable = "".join(char if char.isprintable() else " " for char in text)
    line = " ".join(printable.split())
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."
