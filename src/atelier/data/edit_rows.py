"""Edits of scenes as rows of a prompt table.

The text is the instruction; metadata has "source_scene", "target_scene", "category" (the edit's
kind), "place" (of a move), and what a judge may be asked of the edited image: "following" and
"preserving", lists of a question and its right answer.
"""

from atelier.data.edit_questions import following_questions, preserving_questions
from atelier.data.edits import Edit
from atelier.data.prompts import Prompt
from atelier.data.scenes import from_dict, to_dict


def edit_prompt(made: Edit) -> Prompt:
    """The row of an edit, numbered 0."""
    metadata = {
        "source_scene": to_dict(made.source),
        "target_scene": to_dict(made.target),
        "category": made.kind,
        "place": made.place,
        "following": [list(one) for one in following_questions(made)],
        "preserving": [list(one) for one in preserving_questions(made)],
    }
    return Prompt(0, 0, made.instruction, metadata)


def edit_of(prompt: Prompt) -> Edit | None:
    """The edit that a row asks for; None where it is none of the scene world.

    Raises:
        DataError: its scenes are no scenes.
    """
    metadata = prompt.metadata
    if "source_scene" not in metadata:
        return None
    source, target = (from_dict(metadata[f"{name}_scene"]) for name in ("source", "target"))
    return Edit(metadata["category"], prompt.text, source, target, metadata["place"])
