"""OCR prompt lists: one prompt a line, what is to be written in straight double quotes.

Source: MM-GRPO. The target is the text between the first and the second quote, as
published; quotes must balance.
"""

from pathlib import Path
from typing import Any

from atelier.data.prompts import Prompt
from atelier.data.readers.problems import Problems, lines, read_text

CURLY_QUOTES = "“”„«»"


def read(path: Path) -> list[Prompt]:
    """One prompt a non-blank line, with metadata as `targets_of`.

    Raises:
        DataError: not a text file; or lines without a target, all reported with their numbers.
    """
    problems = Problems(path)
    prompts: list[Prompt] = []
    for number, line in lines(read_text(path)):
        problem = quoting_problem(line)
        if problem is not None:
            problems.add(f"line {number}", problem)
            continue
        prompts.append(Prompt(len(prompts), 0, line, targets_of(line)))
    problems.raise_if_any()
    return prompts


def targets_of(line: str) -> dict[str, Any]:
    """{"target": the first quoted text}, and where there are several, {"targets": all of them}.

    The line's double quotes balance.
    """
    spans = line.split('"')[1::2]
    written = [span for span in spans if span.strip()]
    return {"target": spans[0], **({"targets": written} if len(written) > 1 else {})}


def quoting_problem(line: str) -> str | None:
    """Why a line has no target, or None."""
    quotes = line.count('"')
    if quotes == 0:
        hint = "; curly quotes do not count" if any(c in line for c in CURLY_QUOTES) else ""
        return f'no text in straight double quotes ("){hint}: {_short(line)}'
    if quotes % 2:
        return f"unbalanced double quotes ({quotes}): {_short(line)}"
    if not line.split('"')[1].strip():
        return f"the quoted target is empty: {_short(line)}"
    return None


def _short(line: str) -> str:
    return line if len(line) <= 60 else line[:57] + "..."
