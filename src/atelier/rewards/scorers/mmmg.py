"""Reward `mmmg`: how much of its knowledge graph an image shows, times how readable it is.

A judge is asked once for verdicts of all elements and dependencies, or about each
of them, yes or no.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal

from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.mmmg import MmmgMeasure
from atelier.config.sections.rewards import MmmgConfig
from atelier.given_up import while_wanted
from atelier.judge.answers import read_text
from atelier.judge.forms import YesNoForm
from atelier.judge.questions import Answer, Question
from atelier.judge.replies import Failure, Parsed, Reply, excerpt
from atelier.mmmg.graphs import KnowledgeGraph
from atelier.mmmg.replies import published, read_verdicts
from atelier.mmmg.request import part_question, request_text
from atelier.mmmg.scores import Fidelity, fidelity
from atelier.rewards.base import Missing, Score, ScoreBatch, Scores
from atelier.rewards.scorers.judged import JudgedScorer, missing, red_circle, words
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.scorers.knowledge import (
    Regioned,
    Sample,
    Seen,
    mean_fidelity,
    sample_of,
    scored,
)


@dataclass(frozen=True)
class VerdictsForm:
    """A verdict of each key, a line each. Numbers: none; the value is a mapping, see replies.py.

    With the strict parser a reply that lacks too many goes back to the judge once.
    """

    keys: tuple[str, ...]
    parser: Literal["strict", "published"] = "strict"
    min_judged_share: float = 1.0

    def request(self, config: JudgeConfig) -> dict[str, Any]:
        return {}

    def read(self, reply: Reply) -> Parsed[Any] | Failure:
        text = read_text(reply)
        if isinstance(text, Failure):
            return text
        if self.parser == "published":
            return Parsed(published(text.value, self.keys), reply)
        verdicts = read_verdicts(text.value, self.keys)
        lacking = [key for key in self.keys if key not in verdicts]
        if not verdicts or len(verdicts) < self.min_judged_share * len(self.keys):
            which = f"{len(lacking)} of {len(self.keys)}, such as {excerpt(lacking[0])}"
            return Failure(f"no line with one verdict for {which}", reply, repairable=True)
        return Parsed(verdicts, reply)

    def numbers(self, value: Any) -> dict[str, float]:
        return {}


class MmmgScorer(JudgedScorer):
    """Readability times knowledge fidelity by Dice, in [0, 1].

    Details: regions, readability; dice, official, node_jaccard, edge_jaccard, means over the
    measurements; of the first of them shown, not_shown and unjudged; what the judge said.
    """

    name = "mmmg"

    def __init__(self, config: MmmgConfig, judge: SharedJudge) -> None:
        super().__init__(config, judge)
        self._asking = KnowledgeJudge(config, judge)
        self._regioned = Regioned(config.regions, "rewards.mmmg.regions")

    @property
    def version(self) -> str:
        asking = self._asking.config
        return f"{super().version}/{asking.ask}/{asking.parser}/{self._regioned.counter.version}"

    def weights(self) -> Sequence[Path]:
        return self._regioned.counter.weights()

    def score(self, batch: ScoreBatch) -> Scores:
        # Regions first: what cannot be scored is not paid for.
        regions = [
            one if isinstance(one := sample_of(metadata), Missing) else self._regioned.of(image)
            for image, metadata in while_wanted(zip(batch.images, batch.metadata, strict=True))
        ]
        places = [place for place, one in enumerate(regions) if not isinstance(one, Missing)]
        asked = dict(zip(places, self._asking.ask(batch.at(places)), strict=True))
        found: list[tuple[Score, Seen]] = []
        for place, own in enumerate(regions):
            if isinstance(own, Missing):
                found.append((own, {}))
                continue
            faithful, said = asked[place]
            value, seen = scored(own, faithful)
            found.append((value, said | seen))
        return Scores(self.name, [value for value, _ in found], [seen for _, seen in found])

    def golden(self) -> tuple[ScoreBatch, Sequence[float], float]:
        """A red circle, asked about as such and as a blue square."""
        nouns = ["red circle", "blue square"]
        batch = ScoreBatch(
            images=[red_circle(size=256)] * 2,
            prompts=[f"a {noun}" for noun in nouns],
            metadata=[{"knowledge_graph": {"elements": [noun]}} for noun in nouns],
            group_ids=[0, 1],
        )
        return batch, [1.0, 0.0], 0.45


class KnowledgeJudge:
    """Asks a judge which parts of their knowledge graphs pictures show."""

    def __init__(self, config: MmmgMeasure, judge: SharedJudge) -> None:
        self.config = config
        self._judge = judge

    def ask(self, batch: ScoreBatch) -> list[tuple[Fidelity | Missing, Seen]]:
        """The fidelity of each picture, and what the judge said of it."""
        samples = [sample_of(metadata) for metadata in batch.metadata]
        questions = [
            self._questions(one, image) if isinstance(one, Sample) else []
            for one, image in zip(samples, batch.images, strict=True)
        ]
        answers = iter(self._judge.ask(list(chain.from_iterable(questions))))
        return [
            self._read(one, list(islice(answers, len(own))))
            if isinstance(one, Sample)
            else (one, {})
            for one, own in zip(samples, questions, strict=True)
        ]

    def _questions(self, sample: Sample, image: Any) -> list[Question]:
        config, keys = self.config, sample.known.keys
        if config.ask == "each":
            elements = set(sample.known.elements)
            texts = [
                sample.questions.get(key) or part_question(key, is_dependency=key not in elements)
                for key in keys
            ]
            return [Question(text, YesNoForm(), [image]) for text in texts]
        form = VerdictsForm(keys, config.parser, config.min_judged_share)
        return [Question(request_text(sample.known, sample.annotation), form, [image])]

    def _read(self, sample: Sample, answers: Sequence[Answer]) -> tuple[Fidelity | Missing, Seen]:
        said: Seen = {"judge": list(chain.from_iterable(map(words, answers)))}
        measured = self._each if self.config.ask == "each" else _together
        verdicts = measured(sample.known.keys, answers)
        if isinstance(verdicts, Missing):
            return verdicts, said
        faithful = [fidelity(sample.known, one, sample.name) for one in verdicts]
        return mean_fidelity(faithful), said | parts(sample.known, verdicts[0])

    def _each(self, keys: Sequence[str], answers: Sequence[Answer]) -> Measured | Missing:
        """One measurement, of the mean P(yes) of each key; too few of them are none."""
        pairs = list(zip(keys, answers, strict=True))
        there = {key: one.numbers["p_yes"] > 0.5 for key, one in pairs if "p_yes" in one.numbers}
        if len(there) < max(1, self.config.min_judged_share * len(keys)):
            return missing(next(one for key, one in pairs if key not in there))
        return [there]


Measured = Sequence[Mapping[str, bool]]
"""The verdicts of each measurement, by key."""


def _together(keys: Sequence[str], answers: Sequence[Answer]) -> Measured | Missing:
    """Every measurement of the one question."""
    (answer,) = answers
    return missing(answer) if answer.missing is not None else answer.values


def parts(known: KnowledgeGraph, verdicts: Mapping[str, bool]) -> Seen:
    """The keys that are shown, that are not, and that have no verdict."""
    return {
        "shown": [key for key in known.keys if verdicts.get(key) is True],
        "not_shown": [key for key in known.keys if verdicts.get(key) is False],
        "unjudged": [key for key in known.keys if key not in verdicts],
    }
