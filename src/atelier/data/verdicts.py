"""Whether a picture shows what a prompt asks for, and if not, why: in the words of the scene world.

The answer that an introspective policy is taught to give about its own drawing. Source: FocusDiff
and Janus-Pro-R1.
"""

from collections.abc import Mapping

from atelier.data.scenes import Scene, counted, facts, plural, relation_of

YES, NO = "Yes", "No"


def held(scene: Scene, shown: Scene) -> dict[str, bool]:
    """Which facts of `scene` a faultless picture of `shown` shows: what `gold.check` finds in it.

    For scenes of shapes; a word's facts are read off letter by letter there.
    """
    expected = facts(scene)
    found = {noun: shown.groups.get(noun, 0) == count for noun, count in scene.groups.items()}
    found["objects"] = len(shown.objects) == len(scene.objects)
    if scene.relation is not None:
        pair = [[item for item in shown.objects if item.noun == one.noun] for one in scene.objects]
        single = all(len(items) == 1 for items in pair)
        found["relation"] = (
            single and relation_of(pair[0][0].cell, pair[1][0].cell) == scene.relation
        )
    return {name: found[name] for name in expected}


def verdict(scene: Scene, facts_held: Mapping[str, bool]) -> str:
    """`Yes`, or `No` with the first fact that does not hold: "No, not two red circles."

    Args:
        facts_held: what `gold.check` or `held` found for the scene.
    """
    missing = next((name for name in facts(scene) if not facts_held[name]), None)
    return YES if missing is None else f"{NO}, {_reason(scene, missing)}."


def _reason(scene: Scene, fact: str) -> str:
    if fact in scene.groups:
        return f"not {counted(fact, scene.groups[fact])}"
    if fact == "objects":
        return "there is more"
    if fact == "relation":
        first, second = scene.objects
        return f"the {first.noun} is not {scene.relation} the {second.noun}"
    assert scene.word is not None, f"{fact!r} is a fact about a word"
    if fact == "word colour":
        return f"the word is not {scene.word.colour}"
    if fact == "word relation":
        ((noun, count),) = scene.groups.items()
        return f"the word is not {scene.word_relation} the {plural(noun, count)}"
    return f'not the word "{scene.word.text}"'
