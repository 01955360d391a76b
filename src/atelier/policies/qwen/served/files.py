"""A pipeline's text encoder as vLLM reads it: one folder, where a pipeline has one a part.

Imports nothing heavy: the stage that starts servers lays it out.
"""

from __future__ import annotations

import shutil
from pathlib import Path

SERVED_NAME = "policy"  # what requests call the untrained encoder

# What reads prompts: a processor, with its tokenizer, where the pipeline reads images.
_READERS = ("processor", "tokenizer")


def encoder_files(pipeline: Path, folder: Path) -> Path:
    """Links to the encoder's files and to those of what reads for it.

    Args:
        pipeline: its directory.
        folder: what becomes the encoder's; renewed.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    reader = next(name for name in _READERS if (pipeline / name).is_dir())
    for part in ("text_encoder", reader):
        for file in (pipeline / part).iterdir():
            (folder / file.name).symlink_to(file.resolve())
    return folder
