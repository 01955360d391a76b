"""Pages and recipes name papers and guides, and nothing that a reader does not have."""

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
NOTES = re.compile(r"\bspec[ /](?:janus|flow|qwen|deepgen|platform)|\bdesign section\b")


@pytest.mark.parametrize("path", READ, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_page_names_notes_of_the_makers(path: Path) -> None:
    found = NOTES.search(" ".join(path.read_text(encoding="utf-8").split()))
    assert found is None, found
