"""Lines of metrics.jsonl, without what measures the machine and not the run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

MACHINE = ("time/", "memory/")


def results(lines: Iterable[str]) -> list[dict[str, Any]]:
    """What an undisturbed and a resumed run have in common."""
    rows = [json.loads(line) for line in lines]
    return [{k: v for k, v in row.items() if not k.startswith(MACHINE)} for row in rows]
