"""What a compound edit is in words: one instruction, and the atomic instructions it is worth."""

from collections.abc import Sequence

from atelier.data.compound_edits import CompoundEdit, Step, after
from atelier.data.edits import SIDES
from atelier.data.scenes import VOCABULARY, SceneObject

WORDS = (*VOCABULARY, "it")  # and commas


def instruction(made: CompoundEdit) -> str:
    """One instruction that asks for all steps, each thing named once, as the source shows it.

    "change the red circle to a blue square and move it above the green cross, remove the brown
    square and add a black triangle"
    """
    nouns = dict.fromkeys(step.noun for step in made.steps)
    clauses: list[str] = []
    for noun in nouns:
        steps = made.steps_of(noun)
        if not {"remove", "add"} & steps.keys():
            clauses.append(_altered(made, noun))
    removed = [f"the {step.noun}" for step in made.steps if step.kind == "remove"]
    added = [f"a {step.noun}" for step in made.steps if step.kind == "add"]
    for verb, what in (("remove", removed), ("add", added)):
        if what:
            clauses.append(f"{verb} {_listed(what)}")
    return _listed(clauses)


def sequence(made: CompoundEdit) -> list[str]:
    """The atomic instructions, each of the picture that those before it made."""
    things = {item.noun: item for item in made.source}
    told = []
    for step in made.steps:
        told.append(_atomic(step, things.get(step.noun)))
        if step.noun in things:
            things[step.noun] = after(things[step.noun], step)
    return told


def _atomic(step: Step, thing: SceneObject | None) -> str:
    if thing is None:
        return f"add a {step.noun}"
    if step.kind == "remove":
        return f"remove the {thing.noun}"
    if step.kind == "move":
        return f"move the {thing.noun} {_where(step)}"
    article = "a " if step.kind == "shape" else ""
    return f"change the {thing.noun} to {article}{step.value}"


def _altered(made: CompoundEdit, noun: str) -> str:
    """What happens to a thing that stays."""
    steps = made.steps_of(noun)
    colour, shape, move = (steps.get(kind) for kind in ("colour", "shape", "move"))
    if colour is None and shape is None:
        assert move is not None, f"nothing happens to the {noun}"
        return f"move the {noun} {_where(move)}"
    values = " ".join(str(step.value) for step in (colour, shape) if step is not None)
    changed = f"change the {noun} to {values if shape is None else f'a {values}'}"
    return changed if move is None else f"{changed} and move it {_where(move)}"


def _where(step: Step) -> str:
    if step.value in SIDES:
        return f"to the {step.value}"
    return f"{step.value} the {step.other}"


def _listed(parts: Sequence[str]) -> str:
    """ "a", "a and b", "a, b and c"."""
    if len(parts) == 1:
        return parts[0]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"
