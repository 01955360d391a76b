"""The report's templates, filled in."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

LONGEST_TEXT = 1000  # characters of any text in a page


def fill(name: str, **values: Any) -> str:
    """A template of the folder `template` as text; text values are escaped, and of long ones the
    beginning is shown, but for what is Markup.

    Raises:
        jinja2.UndefinedError: the template names a value that is not given.
    """
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> jinja2.Environment:
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "template"),
        autoescape=jinja2.select_autoescape(["html", "j2"]),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
    )


def _shown(value: Any) -> Any:
    """Prompts, what was read and what a policy wrote are anybody's words: they may be megabytes,
    and have control characters that turn the page around them."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    end = "..." if len(value) > LONGEST_TEXT else ""
    return "".join(one if one.isprintable() else " " for one in value[:LONGEST_TEXT]) + end
