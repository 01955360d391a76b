"""Edits of scenes as rows of a prompt table.

The text is the instruction; metadata has "source_scene", "target_scene", "level" (how many atomic
edits it asks for), "category" (the kind of a single edit, else the level: "C3"), and what a judge
may be asked of the edited image: "following" and "preserving", lists of a question and its right
answer. A single edit has its "place" (of a move); a compound one its "steps", each a list of kind,
noun, value and other, and "sequence", the atomic instructions.
"""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from atelier.data.compound_check import check_compound
from atelier.data.compound_edits import CompoundEdit, Step
from atelier.data.compound_words import instruction, sequence
from atelier.data.edit_check import EditResult, check_edit
from atelier.data.edit_questions import (
    following_questions,
    following_steps_questions,
    preserving_questions,
)
from atelier.data.edits import Edit
from atelier.data.prompts import Prompt
from atelier.data.scenes import (
    SceneObject,
    from_dict,
    objects_from_list,
    objects_to_list,
    to_dict,
)
from atelier.errors import DataError


def edit_prompt(made: Edit) -> Prompt:
    """The row of a single edit, numbered 0."""
    metadata = {
        "source_scene": to_dict(made.source),
        "target_scene": to_dict(made.target),
        "level": 1,
        "category": made.kind,
        "place": made.place,
        "following": [list(one) for one in following_questions(made)],
        "preserving": [list(one) for one in preserving_questions(made)],
    }
    return Prompt(0, 0, made.instruction, metadata)


def compound_prompt(made: CompoundEdit) -> Prompt:
    """The row of a compound edit, numbered 0."""
    metadata = {
        "source_scene": _scene(made.source),
        "target_scene": _scene(made.target),
        "level": made.level,
        "category": f"C{made.level}",
        "steps": [list(astuple(step)) for step in made.steps],
        "sequence": sequence(made),
        "following": [list(one) for one in following_steps_questions(made)],
        "preserving": [list(one) for one in preserving_questions(made)],
    }
    return Prompt(0, 0, instruction(made), metadata)


def edit_of(prompt: Prompt) -> Edit | CompoundEdit | None:
    """The edit that a row asks for; None where it is none of the scene world.

    Raises:
        DataError: its scenes are no scenes, or its steps no steps.
    """
    metadata = prompt.metadata
    if "source_scene" not in metadata:
        return None
    if "steps" in metadata:
        return _compound(metadata)
    source, target = (from_dict(metadata[f"{name}_scene"]) for name in ("source", "target"))
    text = metadata.get("plain", prompt.text)  # of a riddle its solution
    return Edit(metadata["category"], text, source, target, metadata["place"])


def check_row(image: Image.Image | NDArray[np.uint8], prompt: Prompt) -> EditResult | None:
    """The gold check of an edited picture; None where the edit is none of the scene world.

    Raises:
        DataError: as `edit_of`, or the array is not uint8 [H, W, 3].
    """
    made = edit_of(prompt)
    if made is None:
        return None
    return check_edit(image, made) if isinstance(made, Edit) else check_compound(image, made)


def _scene(objects: Sequence[SceneObject]) -> dict[str, Any]:
    return {"objects": objects_to_list(objects), "word": None}


def _compound(metadata: dict[str, Any]) -> CompoundEdit:
    try:
        source, target = (metadata[f"{name}_scene"]["objects"] for name in ("source", "target"))
        steps = tuple(Step(*one) for one in metadata["steps"])
    except (KeyError, TypeError) as error:
        raise DataError(f"a compound edit: not its source, target and steps ({error})") from error
    return CompoundEdit(objects_from_list(source), objects_from_list(target), steps)
