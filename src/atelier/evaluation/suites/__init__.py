"""The suites that there are: what held-out images are worth. A new one: a file with a `Suite`, a
line here, its name in the schema, and in requests.py what it asks for."""

from __future__ import annotations

from atelier.evaluation.suite import Suite
from atelier.evaluation.suites import (
    complex_edit,
    editing,
    mmmg,
    ocr,
    paircomp,
    scenes,
    unigenbench,
    yes_no,
)

SUITES: dict[str, Suite] = {
    one.name: one
    for one in (
        *(ocr.SUITE, scenes.SUITE, yes_no.SUITE),
        *(paircomp.SUITE, editing.SUITE, mmmg.SUITE, complex_edit.SUITE, unigenbench.SUITE),
    )
}
