"""Suite `scenes`: does the exact checker find what prompts of the scene world ask for?

As GenEval scores pictures: `strict` is 1 where every fact holds; `gold` is the share of the facts
that hold; facts/spelling, ink, count, total and position are shares of the facts of a kind. Words
are read by the checker itself, letter by letter, not by an OCR engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atelier.config.sections.evaluation import EvaluationConfig
from atelier.errors import DataError
from atelier.evaluation.gold_columns import FACT_KINDS, fact_kind, gold_columns
from atelier.evaluation.image_statistics import NAMES
from atelier.evaluation.judging import SuiteJudge
from atelier.evaluation.requests import ImageRequest
from atelier.evaluation.suite import Images, Scored, Suite, row

READER = "gold"
METRICS = ("strict", "gold", *(f"facts/{kind}" for kind in FACT_KINDS), *NAMES)


def score(
    images: Images,
    requests: Sequence[ImageRequest],
    _config: EvaluationConfig,
    _judge: SuiteJudge | None,
) -> Scored:
    """Check the images. Rows have strict, gold, gold_facts, facts/..., and `text`: what is wrong.

    Raises:
        DataError: a prompt has no scene.
    """
    rows = []
    for request, image in zip(requests, images, strict=True):
        columns = gold_columns(image, request.prompt)
        if columns["gold_facts"] is None:
            raise DataError(
                f"prompt {request.prompt.prompt_id} has no scene: evaluation.suite scenes is for "
                "data.source scenes"
            )
        held = columns["gold_facts"]
        wrong = [name for name, is_right in held.items() if not is_right]
        said = {"text": f"wrong: {', '.join(wrong)}" if wrong else "all right", "missing": None}
        rows.append(row(request, image) | columns | _by_kind(held) | said)
    return Scored(rows, READER, "strict", "strict", METRICS)


SUITE = Suite("scenes", score)


def _by_kind(held: Mapping[str, bool]) -> dict[str, float]:
    """The share of facts that hold, by their kind; without the kinds that the scene has not."""
    kinds: dict[str, list[bool]] = {}
    for name, is_right in held.items():
        kinds.setdefault(fact_kind(name), []).append(is_right)
    return {f"facts/{kind}": sum(facts) / len(facts) for kind, facts in kinds.items()}
