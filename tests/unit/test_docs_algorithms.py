"""docs/algorithms: keys that exist, recipes that exist, links that lead somewhere."""

import re
from pathlib import Path

import pytest

from atelier.config.keys import known_keys
from atelier.config.paths import repository_root
from atelier.config.recipes import recipe_names, recipes_directory
from atelier.config.schema import RunConfig

PAGES = sorted((repository_root() / "docs" / "algorithms").glob("*.md"))
SECTIONS = ("Formula", "Keys", "When", "Recipe", "Source", "Differences from the pub", "What was s")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_an_algorithms_page_is_whole_and_names_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for section in SECTIONS:
        assert f"**{section}" in text, section
    sections = "|".join(RunConfig.model_fields)
    keys = set(re.findall(rf"`((?:{sections})\.[a-z_.]+)`", text))
    assert keys
    assert keys <= known_keys()
    recipes = set(
        re.findall(r"`((?:tiny|sd35m|janus-pro-[17]b|qwen-image(?:-edit)?)/[\w-]+)`", text)
    )
    assert recipes <= set(recipe_names(recipes_directory()))
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (page.parent / link).exists(), link


def test_the_readme_lists_every_algorithm() -> None:
    readme = (repository_root() / "README.md").read_text(encoding="utf-8")
    for page in PAGES:
        assert f"docs/algorithms/{page.name}" in readme
