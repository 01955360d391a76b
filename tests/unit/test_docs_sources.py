"""Pages, recipes and code name papers and guides, and nothing that a reader does not have."""

import re
from pathlib import Path

import pytest

from atelier.config.paths import repository_root

ROOT = repository_root()
READ = [
    *(ROOT / "README.md", ROOT / "THIRD_PARTY_NOTICES.md", ROOT / "params.yaml"),
    *(one for one in sorted((ROOT / "docs").rglob("*.md"))),
    *(one for one in sorted((ROOT / "recipes").rglob("*.yaml"))),
]
CODE = ("src", "flows", "tasks", "benchmarks", "tests")
NOTES = re.compile(
    r"\bspecs?[ /](?:janus|flow|qwen|deepgen|platform|performance|\d)|\bdesign section\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_names_notes_of_the_makers(path: Path) -> None:
    found = NOTES.search(" ".join(path.read_text(encoding="utf-8").split()))
    assert found is None, found


@pytest.mark.parametrize("folder", CODE)
def test_no_code_names_notes_of_the_makers(folder: str) -> None:
    """Comments go over several lines, each with a mark of its own."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        text = " ".join(path.read_text(encoding="utf-8").replace("#", " ").split())
        found = NOTES.search(text)
        assert found is None or path == Path(__file__), (path, found)
