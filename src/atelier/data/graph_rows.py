"""Scene graphs as rows of a prompt table.

Metadata has what MMMG's rows have, "tier", "discipline", "knowledge_graph" and "annotation";
"scene_graph"; and "questions", what a judge is asked of each element and dependency.
"""

from atelier.data.graph_questions import graph_questions
from atelier.data.prompts import Prompt
from atelier.data.scene_graphs import SceneGraph, annotation, from_dict, prompt, to_dict


def graph_prompt(graph: SceneGraph) -> Prompt:
    """The row of a graph, numbered 0."""
    metadata = {
        "scene_graph": to_dict(graph),
        "tier": graph.tier,
        "discipline": graph.discipline,
        "knowledge_graph": graph.knowledge.to_json(),
        "annotation": annotation(graph),
        "questions": graph_questions(graph),
    }
    return Prompt(0, 0, prompt(graph), metadata)


def graph_of(prompt: Prompt) -> SceneGraph | None:
    """The graph that a row asks for; None where it is none of the scene world.

    Raises:
        DataError: it is no graph.
    """
    graph = prompt.metadata.get("scene_graph")
    return None if graph is None else from_dict(graph)
