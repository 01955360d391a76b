"""Readers of the prompt files that teams have: one module a format, each `read(path)`."""

from collections.abc import Callable
from pathlib import Path

from atelier.data.prompts import Prompt
from atelier.data.readers import (
    complex_edit,
    deepgen,
    deepgen_eval,
    focusdiff,
    geneval,
    janus_edit,
    janus_sft,
    mmmg,
    ocr_text,
    paircomp,
    plain,
    unigenbench,
)
from atelier.data.readers.problems import did_you_mean
from atelier.errors import DataError

READERS: dict[str, Callable[[Path], list[Prompt]]] = {
    "ocr_text": ocr_text.read,
    "plain": plain.read,
    "geneval": geneval.read,
    "unigenbench": unigenbench.read,
    "deepgen": deepgen.read,
    "deepgen_eval": deepgen_eval.read,
    "paircomp": paircomp.read,
    "focusdiff": focusdiff.read,
    "janus_edit": janus_edit.read,
    "janus_sft": janus_sft.read,
    "janus_sft_edit": janus_edit.read_sft,
    "mmmg": mmmg.read,
    "complex_edit": complex_edit.read,
}


# Formats of which the rows that are sound can be read, and what is wrong with the others told.
SOUND_ROWS: dict[str, Callable[[Path], tuple[list[Prompt], list[str]]]] = {
    "unigenbench": unigenbench.read_sound,
    "deepgen_eval": deepgen_eval.read_sound,
}


def read_prompts_file(format: str, path: Path) -> list[Prompt]:
    """Read a prompt file of one of the formats of `READERS`.

    Raises:
        DataError: an unknown format; or the file is not what it should be (file and line named).
    """
    if format not in READERS:
        raise DataError(f"prompt file format {format!r} is unknown{did_you_mean(format, READERS)}")
    return READERS[format](path)
