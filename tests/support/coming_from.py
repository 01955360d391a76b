"""What the pages docs/coming-from-*.md have in common: tables of their keys and ours, and tests."""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import ClassVar

from atelier.config.keys import fields, is_section, known_keys, schema_key
from atelier.config.paths import repository_root
from atelier.config.recipes import recipe_names, recipes_directory
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
    """Those that a run cannot set, and that are no section by a name of the user's."""
    return {key for key in keys if schema_key(key) not in known_keys() and not is_section(key)}


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


def words(text: str) -> list[str]:
    """Of a list that is written as text."""
    return text.split()


def default_of(key: str) -> str:
    """What a key is where nobody sets it, as docs/configuration.md shows it."""
    info = dict(fields(RunConfig))[schema_key(key)]
    return json.dumps(info.get_default(call_default_factory=True))


class PageTests:
    """The tests that each page passes; the class of a page's tests is one of these.

    Attributes:
        page: path from the repository's root.
        answering: chapters whose tables say what is here for what is theirs; None: all.
        fewest: keys of ours that it names.
        awaited: keys and recipes that it names and that are not there yet.
        prose_is_ours: whether the keys outside its tables are, too.
    """

    page: ClassVar[str]
    answering: ClassVar[tuple[str | None, ...]] = (None,)
    fewest: ClassVar[int]
    awaited: ClassVar[frozenset[str]] = frozenset()
    prose_is_ours: ClassVar[bool] = True

    def text(self) -> str:
        return (repository_root() / self.page).read_text(encoding="utf-8")

    def answers(self) -> list[Row]:
        """Theirs, ours and the difference, of every row."""
        return [cells for heading in self.answering for cells in rows(self.page, heading)]

    def test_every_key_of_ours_exists(self) -> None:
        """Theirs, in the first column, may look like ours."""
        named = ours_in(cell for cells in rows(self.page) for cell in cells[1:])
        assert len(set(named)) > self.fewest
        prose = [line for line in self.text().splitlines() if not line.startswith("|")]
        prose *= self.prose_is_ours
        assert unknown([*named, *ours_in(prose)]) <= self.awaited

    def test_no_row_is_without_an_answer(self) -> None:
        require_answers(self.answers())

    def test_links_lead_somewhere(self) -> None:
        require_links(self.page)

    def test_recipes_that_are_named_exist(self) -> None:
        named = set(re.findall(r"--recipe ([a-z0-9-]+/[a-z0-9-]+)", self.text()))
        assert named
        assert named - set(recipe_names(recipes_directory())) <= self.awaited


class KeyedPageTests(PageTests):
    """The same of a page with a table of all their keys, which hints lead to.

    Attributes:
        keys: chapter of that table.
        theirs: keys that have to be in it.
        hints: what hints say.
    """

    keys: ClassVar[str]
    theirs: ClassVar[Iterable[str]]
    hints: ClassVar[Mapping[str, tuple[str, ...]]]

    def named(self) -> list[tuple[str, Row]]:
        """Their keys, each with its row."""
        return [(key, cells) for cells in rows(self.page, self.keys) for key in quoted(cells[0])]

    def test_every_key_of_theirs_is_in_a_table_once(self) -> None:
        named = [key for key, _ in self.named()]
        assert len(named) == len(set(named))
        assert set(self.theirs) <= set(named)

    def test_hints_say_what_the_tables_say(self) -> None:
        assert {key: tuple(ours_in(cells[1:2])) for key, cells in self.named()} == self.hints
