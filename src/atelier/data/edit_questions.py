"""Questions about an edited picture, with the answers that a right edit gives them.

For judges that look at one picture at a time: whether the instruction was followed, and whether the
rest is as it was. Each asks for one fact of the target scene. Source: FocusDiff and Janus-Pro-R1.
"""

from __future__ import annotations

from collections import Counter

from atelier.data.compound_edits import CompoundEdit, after
from atelier.data.edits import STEPS, Edit
from atelier.data.questions import ANSWER, NO, YES, how_many
from atelier.data.scenes import SceneObject

Asked = tuple[str, str]  # text, and yes or no


def following_questions(edit: Edit) -> list[Asked]:
    """What the instruction asks for: as many of each thing as it makes, none of what it takes away,
    and the place of what it moves."""
    target = edit.target.groups
    touched = dict.fromkeys(item.noun for item in (*edit.gone, *edit.new))
    asked = [_how_many(noun, target.get(noun, 0)) for noun in touched]
    if edit.kind == "move" and edit.place in STEPS:
        (moved,) = edit.new
        other = _named(edit, moved.noun)
        asked.append((f"Is the {moved.noun} {edit.place} the {other}? {ANSWER}", YES))
    return asked


def following_steps_questions(edit: CompoundEdit) -> list[Asked]:
    """The same of a compound edit: of each thing that its steps touch, and of each place beside
    another."""
    nouns = {step.noun: step.noun for step in edit.steps}
    names = {item.noun for item in edit.target}
    for item in edit.source:
        if item.noun in nouns:
            nouns[item.noun] = _name_after(edit, item)
    touched = dict.fromkeys((*nouns, *nouns.values()))
    asked = [_how_many(noun, int(noun in names)) for noun in touched]
    for step in edit.steps:
        if step.kind == "move" and step.value in STEPS:
            where = f"{step.value} the {step.other}"
            asked.append((f"Is the {nouns[step.noun]} {where}? {ANSWER}", YES))
    return asked


def preserving_questions(edit: Edit | CompoundEdit) -> list[Asked]:
    """As many as before of everything that the instruction does not name."""
    if isinstance(edit, CompoundEdit):
        return [_how_many(item.noun, 1) for item in edit.kept]
    touched = {item.noun for item in (*edit.gone, *edit.new)}
    kept = Counter(item.noun for item in edit.source.objects if item.noun not in touched)
    return [_how_many(noun, count) for noun, count in kept.items()]


def _name_after(edit: CompoundEdit, item: SceneObject) -> str:
    for step in edit.steps_of(item.noun).values():
        item = after(item, step)
    return item.noun


def _how_many(noun: str, count: int) -> Asked:
    if not count:
        return f"Is there a {noun}? {ANSWER}", NO
    return f"{how_many(noun, count)} {ANSWER}", YES


def _named(edit: Edit, moved: str) -> str:
    """The thing beside which the moved one is put: the instruction ends with it."""
    others = [noun for noun in edit.source.groups if noun != moved]
    return next(noun for noun in others if edit.instruction.endswith(f"the {noun}"))
