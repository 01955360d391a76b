"""Questions about the parts of a scene graph, each by its key.

For judges that answer yes or no; the graph is asked for by places, so these are, too. Source: the
Qwen vision GRPO guide.
"""

from atelier.data.questions import ANSWER
from atelier.data.scene_graphs import SENSES, SceneGraph


def graph_questions(graph: SceneGraph) -> dict[str, str]:
    """To every key of `graph.knowledge`, what to ask of a picture: yes, where it shows it."""
    nouns = [one.noun for one in graph.objects]
    known = graph.knowledge
    things = {
        key: f"Is there a {noun}? {ANSWER}" for key, noun in zip(known.elements, nouns, strict=True)
    }
    places = {
        key: f"Is the {nouns[one.source]} {SENSES[one.relation].place} the {nouns[one.target]}? "
        f"{ANSWER}"
        for key, one in zip(known.dependencies, graph.links, strict=True)
    }
    return things | places
