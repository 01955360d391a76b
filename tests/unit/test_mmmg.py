"""MMMG's rules: golden values, properties."""

from __future__ import annotations

import networkx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atelier.errors import DataError
from atelier.mmmg.benchmark import (
    CELLS,
    DISCIPLINES,
    SAMPLES,
    SAMPLES_OF_DISCIPLINE,
    TIERS,
    differences,
)
from atelier.mmmg.fidelity import MOST_PARTS, dice, edge_jaccard, node_jaccard, official
from atelier.mmmg.graphs import Graph, KnowledgeGraph, build, knowledge_graph, truth_and_shown
from atelier.mmmg.predicates import MalformedPredicate, Predicate, parse
from atelier.mmmg.scores import Fidelity, fidelity, readability, sample_score
from atelier.mmmg.tables import Mean, table
from atelier.rewards.scorers.knowledge import mean_fidelity

# Predicates and graphs --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Causes(Sun, Rain)", ("causes", "sun", "rain")),
        ("Causes(Change(Cell wall), Sun)", ("causes", "cell wall", "sun")),
        ("TEMPORALORDER(Egg, Change(Frog))", ("temporalorder", "egg", "frog")),
        ("Requires(Moon, Sun", ("requires", "moon", "sun")),
        ("Contains(Cell (plant), Nucleus)", ("contains", "cell (plant)", "nucleus")),
        ("Contains(Nucleus, Cell (plant))", ("contains", "nucleus", "cell (plant)")),
        ("Contains(Salt, common, Water)", ("contains", "salt", "common, water")),
    ],
)
def test_a_predicate_is_read_as_published(text, expected):
    assert parse(text) == Predicate(*expected)


def test_what_has_no_bracket_is_passed_over_and_what_would_crash_is_named():
    assert parse("the sun causes rain") is None
    for text, reason in (
        ("Causes(sun,rain)", "two arguments"),
        ("Causes(sun)", "two arguments"),
        ("Causes(, rain)", "an argument is empty"),
        ("Causes(Change(), rain)", "an argument is empty"),
    ):
        with pytest.raises(MalformedPredicate, match=f"row 7: dependency .*{reason}"):
            build(["sun", "rain"], [text], "row 7")
    assert issubclass(MalformedPredicate, DataError)


SKY = KnowledgeGraph(
    ("Sun", "Moon", "Cell wall"),
    ("Requires(Moon, Sun)", "Defines(Sun, Moon)", "Causes(Change(Cell wall), Sun)"),
)


def test_requires_turns_round_defines_goes_both_ways_and_changes_are_unwrapped():
    """Golden value 7: Defines shares an edge with Requires."""
    whole = build(SKY.elements, SKY.dependencies)
    assert whole == Graph(
        ("sun", "moon", "cell wall"), (("sun", "moon"), ("moon", "sun"), ("cell wall", "sun"))
    )


def test_an_end_that_is_not_shown_leaves_no_edge():
    """Golden value 7: Causes has lost its source."""
    yes = {"Sun", "Moon", "Requires(Moon, Sun)", "Causes(Change(Cell wall), Sun)"}
    truth, shown = truth_and_shown(SKY, {key: key in yes for key in SKY.keys})
    assert (truth.size, len(shown.nodes), len(shown.edges)) == (6, 2, 1)
    assert dice(truth, shown) == pytest.approx(0.666667, abs=1e-6)
    assert official(truth, shown) == pytest.approx(0.444444, abs=1e-6)


def test_a_chain():
    """Golden value 8, and the worked check of 2.4: 5 + 4 against 3 + 2."""
    links = tuple(f"Causes({a}, {b})" for a, b in ("ab", "bc", "cd", "de"))
    chain = KnowledgeGraph(tuple("abcde"), links)
    yes = {"a", "b", "c", *links[:2]}
    found = fidelity(chain, {key: key in yes for key in chain.keys})
    assert found.dice == pytest.approx(0.714286, abs=1e-6)
    assert found.official == pytest.approx(0.571429, abs=1e-6)
    assert (found.node_jaccard, found.edge_jaccard) == (0.6, 0.5)


def test_the_official_fidelity_depends_on_the_order_of_the_nodes():
    """Golden value 8."""
    from itertools import permutations

    chain = Graph(tuple("abcde"), (("a", "b"), ("b", "c"), ("c", "d"), ("d", "e")))
    shown = (("a", "b"), ("b", "c"))
    distances = {
        round(1 - official(Graph(order, chain.edges), Graph(part, shown)), 6)
        for order in permutations("abcde")
        for part in permutations("abc")
    }
    assert distances == {0.285714, 0.428571, 0.571429}


def test_an_ambiguous_end_may_become_a_clear_one():
    """Golden value 9: counting would say 1.0."""
    cells = KnowledgeGraph(("plant cell", "cell wall", "sun"), ("Causes(sun, cell)",))
    truth, shown = truth_and_shown(cells, {key: key != "cell wall" for key in cells.keys})
    assert truth.edges == ()
    assert shown.edges == (("sun", "plant cell"),)
    assert dice(truth, shown) == pytest.approx(0.666667, abs=1e-6)


@pytest.mark.parametrize(
    ("argument", "nodes", "expected"),
    [
        ("cell", ["cell", "cell wall"], "cell"),
        ("wall", ["cell", "cell wall"], "cell wall"),
        ("green cell", ["cell", "sun"], "cell"),
        ("greencell", ["cell", "sun"], None),
        ("green cell wall", ["cell", "wall", "sun"], None),
        ("star", ["cell", "sun"], None),
    ],
)
def test_an_end_is_found_by_its_name_or_by_the_only_likely_one(argument, nodes, expected):
    edges = build([*nodes, "x!"], [f"Causes(x!, {argument})"]).edges
    assert edges == (() if expected is None else (("x!", expected),))


def test_equal_names_are_one_node_and_loops_are_possible():
    found = build(["Sun", "sun ", "Rain"], ["Defines(sun, Sun)", "Causes(SUN, rain)"] * 2)
    assert found == Graph(("sun", "rain"), (("sun", "sun"), ("sun", "rain")))


def test_what_was_not_judged_is_in_neither_graph():
    judged = {"Sun": True, "Moon": True, "Requires(Moon, Sun)": False}
    truth, shown = truth_and_shown(SKY, judged)
    assert truth == Graph(("sun", "moon"), (("sun", "moon"),))
    assert shown == Graph(("sun", "moon"))


def test_a_graph_in_json():
    assert knowledge_graph(SKY.to_json()) == SKY
    as_keys = {name: dict.fromkeys(texts, "yes") for name, texts in SKY.to_json().items()}
    assert knowledge_graph(as_keys) == SKY
    assert knowledge_graph({"elements": ["sun"]}).dependencies == ()
    for value, reason in (
        (["sun"], "an object with elements"),
        ({"elements": []}, "elements is empty"),
        ({"elements": "sun"}, "elements: a list of non-empty texts"),
        ({"elements": ["sun"], "dependencies": [3]}, "dependencies: a list of non-empty"),
    ):
        with pytest.raises(ValueError, match=reason):
            knowledge_graph(value)


# Fidelity ---------------------------------------------------------------------------------------

NAMES = st.sampled_from("abcde")


@st.composite
def graphs(draw):
    nodes = tuple(draw(st.lists(NAMES, unique=True, max_size=5)))
    pairs = [(one, other) for one in nodes for other in nodes]
    edges = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=5)) if pairs else []
    return Graph(nodes, tuple(edges))


@st.composite
def graphs_with_a_part(draw):
    whole = draw(graphs())
    nodes = [one for one in whole.nodes if draw(st.booleans())]
    edges = [one for one in whole.edges if {*one} <= {*nodes} and draw(st.booleans())]
    return whole, Graph(tuple(nodes), tuple(edges))


@settings(deadline=None, max_examples=80)
@given(graphs_with_a_part())
def test_of_a_part_dice_is_the_exact_edit_distance_of_labelled_graphs(drawn):
    whole, part = drawn
    if not whole.size:
        assert dice(whole, part) == 0
        return
    networks = []
    for graph in drawn:
        made = networkx.DiGraph()
        made.add_nodes_from((name, {"name": name}) for name in graph.nodes)
        made.add_edges_from(graph.edges)
        networks.append(made)
    exact = networkx.graph_edit_distance(
        *networks, node_match=lambda one, other: one["name"] == other["name"]
    )
    assert dice(whole, part) == pytest.approx(1 - exact / (whole.size + part.size))
    assert official(whole, part) <= dice(whole, part) + 1e-9


@given(graphs(), graphs())
def test_fidelities_are_shares(one, other):
    for measure in (dice, official, node_jaccard, edge_jaccard):
        assert 0 <= measure(one, other) <= 1
    for measure in (dice, node_jaccard, edge_jaccard):
        assert measure(one, other) == measure(other, one)
        assert measure(one, one) == float(bool(one.size) or measure is not dice)


def test_only_dice_knows_names():
    one, other = (Graph(tuple(names), (tuple(names),)) for names in ("ab", "cd"))
    assert official(one, other) == 1
    assert dice(one, other) == 0


def test_edges_are_compared_without_direction_by_jaccard_alone():
    there, back = (Graph(("a", "b"), (edge,)) for edge in (("a", "b"), ("b", "a")))
    assert edge_jaccard(there, back) == 1
    assert dice(there, back) == pytest.approx(4 / 6)


# Readability, tables ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("regions", "expected"),
    [
        *[(0, 1), (70, 1), (71, 0.988889), (100, 0.666667)],
        *[(115, 0.5), (159, 0.011111), (160, 0), (200, 0)],
    ],
)
def test_readability(regions, expected):
    """Golden value 6, T5."""
    assert readability(regions) == pytest.approx(expected, abs=1e-6)


def test_what_is_missing_stays_missing():
    assert readability(None) is None
    assert sample_score(None, 0.5) is None
    assert sample_score(0.5, None) is None
    assert sample_score(0.5, 0.5) == 0.25


def test_the_published_cells():
    assert len(CELLS) == 59
    assert SAMPLES == sum(SAMPLES_OF_DISCIPLINE.values()) == 4456
    assert ("preschool", "Philosophy") not in CELLS
    told = differences([("PhD", "Biology"), ("PhD", "Math")])
    assert told[0] == "2 samples in 2 cells, published: 4456 in 59"
    assert "PhD: 2 samples, published: 812" in told
    assert len(differences([])) == 1 + len(TIERS) + len(DISCIPLINES)


def test_means_of_cells_and_tiers_and_two_of_all():
    samples = [("PhD", "Math", 0.5), ("preschool", "Math", 1.0), ("preschool", "Biology", 0.0)]
    samples += [("preschool", "Biology", 0.2), ("PhD", "Math", None), ("highschool", "Art", None)]
    found = table(samples)
    assert list(found.tiers) == ["preschool", "highschool", "PhD"]
    assert list(found.disciplines) == ["Biology", "Math", "Art"]
    assert found.cells["preschool", "Biology"] == Mean(pytest.approx(0.1), 2, 0)
    assert found.cells["PhD", "Math"] == Mean(0.5, 1, 1)
    assert ("PhD", "Biology") not in found.cells
    assert found.tiers["preschool"].mean == pytest.approx(0.4)
    assert found.tiers["highschool"] == Mean(None, 0, 1)
    assert found.disciplines["Math"].mean == pytest.approx(0.75)
    assert found.macro == pytest.approx(0.45)
    assert found.leaderboard == pytest.approx(45)
    assert found.micro == Mean(pytest.approx(1.7 / 4), 4, 2)
    assert table([]).macro is None


def test_a_graph_too_large_for_the_official_distance_has_the_other_measures():
    names = tuple(f"n{index}" for index in range(MOST_PARTS - 1))
    link = f"Causes({names[0]}, {names[1]})"
    largest = KnowledgeGraph(names, (link,))
    larger = KnowledgeGraph((*names, "more"), (link,))
    assert fidelity(largest, dict.fromkeys(largest.keys, True)).official == 1
    found = fidelity(larger, dict.fromkeys(larger.keys, True))
    assert (found.dice, found.official, found.node_jaccard) == (1, None, 1)
    assert fidelity(larger, dict.fromkeys(larger.keys, False)).official is None
    small = Fidelity(0.5, 0.25, 1.0, 1.0)
    assert mean_fidelity([small, found]) == Fidelity(0.75, None, 1.0, 1.0)
    assert mean_fidelity([small, small]) == small
