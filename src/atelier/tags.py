"""What stands between tags in somebody's text."""

from __future__ import annotations

import re


def tagged(text: str, name: str) -> list[str]:
    """The contents of <name>...</name>, each from an opening tag to the next that closes.

    In one pass: a megabyte of opening tags would hold up everything else for minutes.
    """
    found: list[str] = []
    start: int | None = None
    for tag in re.finditer(rf"<(/?){re.escape(name)}>", text, re.IGNORECASE):
        if not tag[1]:
            start = tag.end() if start is None else start
        elif start is not None:
            found.append(text[start : tag.start()])
            start = None
    return found
