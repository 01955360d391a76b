"""The same table for a terminal and for Markdown: first column left, the others right."""

from __future__ import annotations

from collections.abc import Sequence

Row = Sequence[str]

NOT_KNOWN = "not known (one only)"  # an interval, of one prompt or pair


def aligned(rows: Sequence[Row]) -> str:
    """Columns of equal width, two spaces between them."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def markdown(rows: Sequence[Row]) -> str:
    """The first row is the header."""
    lines = [rows[0], ("---", *["---:"] * (len(rows[0]) - 1)), *rows[1:]]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def interval(low: float | None, high: float | None, sign: bool = True) -> str:
    """The two bounds; NOT_KNOWN where there are none."""
    if low is None or high is None:
        return NOT_KNOWN
    return f"{signed(low)} to {signed(high)}" if sign else f"{low:.3f} to {high:.3f}"


def signed(value: float) -> str:
    """With its sign, and none where it rounds to zero."""
    return f"{value:+.3f}" if abs(value) >= 0.0005 else "0.000"
