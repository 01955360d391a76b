"""The report's templates, filled in."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jinja2


def fill(name: str, **values: Any) -> str:
    """A template of the folder `template` as text; text values are escaped.

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
    )
