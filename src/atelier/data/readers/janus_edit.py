"""Editing rows of Janus-Pro-R1: JSON lines, for RL {image1, text}, for SFT {sample_id, text, input,
output}. Source: FocusDiff and Janus-Pro-R1.
"""

from pathlib import Path

from atelier.data.prompts import Prompt
from atelier.data.readers.objects import checked_lines


def read(path: Path) -> list[Prompt]:
    """One prompt a line: the instruction, with metadata "source_image", the path of what it
    changes. Relative paths are of the file's folder.

    Raises:
        DataError: not a text file; or bad lines, all reported with their number and key, images
            that cannot be used among them.
    """
    prompts: list[Prompt] = []
    for row in checked_lines(path, ("image1", "text")):
        metadata = {"source_image": row.picture("image1")}
        prompts.append(Prompt(len(prompts), 0, row.text("text"), metadata))
    return prompts


def read_sft(path: Path) -> list[Prompt]:
    """The same of the fine-tuning data; metadata also "image", the edited picture, and "sample_id".

    Raises:
        DataError: as `read`.
    """
    prompts: list[Prompt] = []
    for row in checked_lines(path, ("sample_id", "text", "input", "output")):
        metadata = {
            "sample_id": row.identity("sample_id"),
            "source_image": row.picture("input"),
            "image": row.picture("output"),
        }
        prompts.append(Prompt(len(prompts), 0, row.text("text"), metadata))
    return prompts
