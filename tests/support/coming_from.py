"""What the pages docs/coming-from-*.md have in common: tables of their keys and ours."""

import re
from collections.abc import Iterable
from pathlib import Path

from atelier.config.keys import known_keys, schema_key
from atelier.config.paths import repository_root
from atelier.config.schema import RunConfig

_SECTIONS = "|".join(RunConfig.model_fields)
Row = list[str]


def rows(page: str, heading: str | None = None) -> list[Row]:
    """The cells of the rows of a page's tables, without their heads; of one chapter, or of all.

    Args:
        page: path from the repository's root.
        heading: of the chapter, without its marks; chapters below it belong to it.
    """
    lines = (repository_root() / page).read_text(encoding="utf-8").splitlines()
    if heading is not None:
        lines = _chapter(lines, heading)
    found: list[Row] = []
    for place, line in enumerate(lines):
        is_head = place + 1 < len(lines) and lines[place + 1].startswith("|---")
        if line.startswith("|") and not line.startswith("|---") and not is_head:
            found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def _chapter(lines: list[str], heading: str) -> list[str]:
    start = next(place for place, line in enumerate(lines) if line.lstrip("#") == f" {heading}")
    level = len(lines[start]) - len(lines[start].lstrip("#"))
    above = re.compile(rf"#{{1,{level}}} ")
    ends = (place for place in range(start + 1, len(lines)) if above.match(lines[place]))
    return lines[start : next(ends, len(lines))]


def quoted(cell: str) -> list[str]:
    """What stands between backticks in it."""
    return re.findall(r"`([^`]+)`", cell)


def ours_in(cells: Iterable[str]) -> list[str]:
    """The keys of ours that cells name, in their order."""
    pattern = rf"`((?:{_SECTIONS})\.[A-Za-z0-9_.]+)"
    return [key.rstrip(".") for cell in cells for key in re.findall(pattern, cell)]


def unknown(keys: Iterable[str]) -> set[str]:
    """Those that a run cannot set."""
    return {key for key in keys if schema_key(key) not in known_keys()}


def require_answers(table: Iterable[Row]) -> None:
    """Every row says what is theirs, what it is here, and where nothing is, why."""
    for cells in table:
        assert len(cells) in (2, 3), cells
        assert cells[0], cells
        assert cells[1], cells
        if cells[1] == "none":
            assert len(cells) == 3, cells
            assert cells[2], f"{cells[0]}: none, and no word on why"


def require_links(page: str) -> None:
    """Links to other pages lead somewhere."""
    file: Path = repository_root() / page
    for link in re.findall(r"\]\(([^)#]+)\)", file.read_text(encoding="utf-8")):
        assert (file.parent / link).exists(), link
