"""Knowledge graphs of the scene world: what is drawn of them, asked for, and found by the gold
check."""

import random
from collections import Counter

import pytest
from PIL import Image

from atelier.config.sections.data import DataConfig
from atelier.data.graph_check import check_graph
from atelier.data.graph_rows import graph_of, graph_prompt
from atelier.data.ground_truth import ground_truth_image, has_ground_truth
from atelier.data.prepare import prepare
from atelier.data.prompts import read_prompts
from atelier.data.render import render, render_objects
from atelier.data.scene_graphs import (
    DISCIPLINES,
    SENSES,
    SIZES,
    Link,
    SceneGraph,
    annotation,
    from_dict,
    prompt,
    sample_graph,
    split_of,
    to_dict,
)
from atelier.data.scenes import Scene, SceneObject, prompt_tokens
from atelier.errors import DataError
from atelier.mmmg.graphs import build, truth_and_shown
from atelier.mmmg.predicates import RELATIONS
from atelier.mmmg.scores import fidelity

CELLS = [(tier, discipline) for tier in SIZES for discipline in DISCIPLINES]
# A red circle above a blue square, and a green cross left of it.
GRAPH = SceneGraph(
    "primaryschool",
    "mixed",
    (
        SceneObject("circle", "red", (0, 1)),
        SceneObject("square", "blue", (2, 1)),
        SceneObject("cross", "green", (2, 0)),
    ),
    (Link("Causes", 0, 1), Link("Requires", 1, 0), Link("TemporalOrder", 2, 1)),
)


def drawn(cell, seed=0, split=None):
    return sample_graph(random.Random(seed), *cell, split)


@pytest.mark.parametrize("cell", CELLS)
def test_a_faultless_picture_shows_all_of_every_graph(cell):
    for seed in range(8):
        graph = drawn(cell, seed)
        assert (len(graph.objects), len(graph.links)) == SIZES[cell[0]]
        picture = render_objects(graph.objects, random.Random(seed))
        verdicts = check_graph(picture, graph)
        assert list(verdicts) == list(graph.knowledge.keys)
        assert all(verdicts.values())
        found = fidelity(graph.knowledge, verdicts)
        assert found.dice == found.official == 1


@pytest.mark.parametrize("cell", CELLS)
def test_its_knowledge_is_one_that_the_published_rules_understand(cell):
    for seed in range(8):
        graph = drawn(cell, seed)
        known = graph.knowledge
        assert len(known.keys) == sum(SIZES[cell[0]]), "no key stands for two things"
        built = build(known.elements, known.dependencies)
        assert len(built.edges) == len(graph.links), "every end is found, no edge stands twice"
        assert {text.partition("(")[0] for text in known.dependencies} <= {*RELATIONS}
        assert {one.relation for one in graph.links} <= {*DISCIPLINES[cell[1]]}
        linked = {end for one in graph.links for end in (one.source, one.target)}
        assert linked == set(range(len(graph.objects)))


def test_requires_turns_round():
    assert build(GRAPH.knowledge.elements, GRAPH.knowledge.dependencies).edges == (
        ("red circle", "blue square"),
        ("green cross", "blue square"),
    )


def test_prompt_and_annotation_say_every_link():
    assert prompt(GRAPH) == (
        "a red circle above a blue square and the blue square below the red circle and a green "
        "cross left of the blue square"
    )
    assert annotation(GRAPH).split(". ")[1] == (
        "Requires(blue square, red circle): the blue square is below the red circle; what needs a "
        "thing stands below it"
    )
    for cell in CELLS:
        graph = drawn(cell)
        text = prompt(graph)
        assert prompt_tokens(text)
        places = Counter(SENSES[one.relation].place for one in graph.links)
        assert {place: text.count(place) for place in places} == places
        assert all(f"a {one.noun}" in text for one in graph.objects)


def test_each_fault_has_its_verdicts():
    circle, square, cross = GRAPH.objects
    keys = GRAPH.knowledge.keys
    faults = {
        (circle, square): {"green cross", keys[5]},
        (square, cross): {"red circle", keys[3], keys[4]},
        (circle, SceneObject("square", "red", (2, 1)), cross): {"blue square", *keys[3:]},
        # Two circles are not the one circle.
        (circle, square, cross, SceneObject("circle", "red", (0, 2))): {"red circle", *keys[3:5]},
        (circle, square, SceneObject("cross", "green", (2, 2))): {keys[5]},
        (SceneObject("circle", "red", (2, 2)), square, cross): {keys[3], keys[4]},
        # What is more than was asked for is no fault of the knowledge.
        (circle, square, cross, SceneObject("circle", "blue", (0, 2))): set(),
    }
    for objects, wrong in faults.items():
        verdicts = check_graph(render_objects(objects), GRAPH)
        assert {key for key, is_yes in verdicts.items() if not is_yes} == wrong
    empty = check_graph(Image.new("RGB", (64, 64), "white"), GRAPH)
    assert not any(empty.values())
    assert fidelity(GRAPH.knowledge, empty).dice == 0


def test_what_is_shown_is_a_part_of_the_graph():
    """So Dice is the exact distance in the scene world."""
    rng = random.Random(0)
    for cell in CELLS:
        graph = drawn(cell)
        other = [one for one in graph.objects if rng.random() < 0.7]
        truth, shown = truth_and_shown(graph.knowledge, check_graph(render_objects(other), graph))
        assert {*shown.nodes} <= {*truth.nodes}
        assert {*shown.edges} <= {*truth.edges}


def test_a_graph_is_drawn_as_a_scene_is():
    scene = Scene(GRAPH.objects)
    assert render_objects(scene.objects, size=80).tobytes() == render(scene, size=80).tobytes()


def test_a_graph_follows_from_its_seed_and_has_one_split():
    for cell in CELLS[::5]:
        assert drawn(cell, 3) == drawn(cell, 3) != drawn(cell, 4)
        for split in ("train", "heldout"):
            assert split_of(drawn(cell, 1, split)) == split
    with pytest.raises(DataError, match="tier 'PHD': one of preschool"):
        drawn(("PHD", "order"))
    with pytest.raises(DataError, match="discipline 'Math': one of order"):
        drawn(("PhD", "Math"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"objects": []}, "must differ"),
        ({"links": [["Causes", 1, 0]]}, r"\('Causes', 1, 0\) does not hold"),
        ({"links": [["Defines", 1, 0]]}, "not a scene graph"),
        ({"links": [["Causes", 0, 9]]}, "not a scene graph"),
        ({"links": None}, "not a scene graph"),
        ({"objects": [to_dict(GRAPH)["objects"][0]] * 2}, "must differ"),
    ],
)
def test_a_graph_is_read_back_and_what_is_none_is_refused(change, message):
    assert from_dict(to_dict(GRAPH)) == GRAPH
    with pytest.raises(DataError, match=message):
        from_dict({**to_dict(GRAPH), **change})


def test_rows_have_what_those_of_mmmg_have():
    row = graph_prompt(GRAPH)
    assert row.text == prompt(GRAPH)
    assert graph_of(row) == GRAPH
    assert row.metadata["knowledge_graph"] == GRAPH.knowledge.to_json()
    assert has_ground_truth(row)
    assert all(check_graph(ground_truth_image(row, 96), GRAPH).values())


def test_a_table_takes_turns_through_the_cells(tmp_path):
    data = {"scene_kind": "shapes", "scene_task": "graph", "train_prompts": 50}
    prepare(DataConfig(**data, heldout_prompts=24), tmp_path)
    train, heldout = (read_prompts(tmp_path / f"{name}.parquet") for name in ("train", "heldout"))
    assert (len(train), len(heldout)) == (50, 24)
    found = [(one.metadata["tier"], one.metadata["discipline"]) for one in train]
    assert found == (CELLS * 3)[:50]
    for name, table in (("train", train), ("heldout", heldout)):
        assert {split_of(graph_of(one)) for one in table} == {name}
        assert len({one.text for one in table}) == len(table)
    prepare(DataConfig(**data, heldout_prompts=24, scene_tiers=2), tmp_path / "easy")
    easy = read_prompts(tmp_path / "easy" / "train.parquet")
    assert {one.metadata["tier"] for one in easy} == {"preschool", "primaryschool"}
