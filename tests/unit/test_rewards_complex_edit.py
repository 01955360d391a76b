"""Complex-Edit's marks as a reward, and their exact twin for scenes."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import product
from typing import Any

import pytest
from PIL import Image

from atelier.complex_edit.marks import Marks
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import ComplexEditConfig, RewardsConfig, SceneEditConfig
from atelier.data.compound_edits import compound_edit
from atelier.data.edit_rows import compound_prompt, edit_prompt
from atelier.data.edits import edit
from atelier.data.ground_truth import ground_truth_image, source_image
from atelier.data.scenes import sample_scene
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.scorers.complex_edit import ComplexEditScorer, combined
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.scorers.scene_edit import SceneEditScorer
from tests.support.judge_endpoint import Call, choice_of, judge_endpoint, said, said_in_choices
from tests.support.oracle_judge import ScriptedJudge

PUBLISHED = {"if_weight": 0.6, "ip_weight": 0, "pq_weight": 0.4, "gate": "none"}
NO_OP = Marks(following=0, preservation=10, quality=9)


def alignment(following: int, preservation: int) -> str:
    return json.dumps(
        {
            "reasoning": "x",
            "instruction_following": str(following),
            "identity_preservation": str(preservation),
        }
    )


def marks(following: list[int], preservation: list[int], quality: list[int]) -> ScriptedJudge:
    """A judge with these marks, one a measurement."""

    def says(question) -> list[str]:
        if len(question.images) == 1:
            return [json.dumps({"perceptual_quality": str(one)}) for one in quality]
        return [alignment(*one) for one in zip(following, preservation, strict=True)]

    return ScriptedJudge(says)


def config(**settings: Any) -> ComplexEditConfig:
    return ComplexEditConfig.model_validate({"judge": "j", **settings})


def scored(judge, **settings: Any):
    batch = ScoreBatch(
        [Image.new("RGB", (1, 8))], ["make it red"], [{}], [0], [Image.new("RGB", (99, 8))]
    )
    scores = ComplexEditScorer(config(**settings), judge).score(batch)
    return scores.values[0], scores.details[0]


def test_the_published_reward() -> None:
    """A golden value of the Qwen vision GRPO guide: IF 7, PQ 8 -> 0.74, whatever IP is."""
    score, detail = scored(marks([7], [3], [8]), **PUBLISHED)
    assert score == pytest.approx(0.74)
    assert detail["identity_preservation"] == 3


@pytest.mark.parametrize(
    ("runs", "means", "overall"),
    [
        (([8, 10], [9, 7], [9, 8]), (9, 8, 8.5), 8.5),
        (([3, 5, 4], [10, 8, 9], [6, 6, 9]), (4, 9, 7), 20 / 3),
    ],
)
def test_marks_are_means_over_measurements(runs, means, overall) -> None:
    """A golden value of the Qwen vision GRPO guide."""
    _, detail = scored(marks(*runs))
    names = ("instruction_following", "identity_preservation", "perceptual_quality")
    assert tuple(detail[name] for name in names) == means
    assert detail["overall"] == pytest.approx(overall)


@pytest.mark.parametrize("gate", ["product", "min"])
def test_no_honest_edit_scores_less_than_none_at_all(gate: str) -> None:
    """With the default weights."""
    undone = combined(config(gate=gate), NO_OP)
    assert undone == combined(config(gate=gate), Marks(0, 10, 10)) == 0
    for following, preservation, quality in product(range(1, 11), range(11), range(11)):
        done = combined(config(gate=gate), Marks(following, preservation, quality))
        assert undone < done <= 1 + 1e-12


def test_by_the_published_formulas_doing_nothing_may_win() -> None:
    """Why there is a gate."""
    honest = Marks(following=2, preservation=6, quality=5)
    assert NO_OP.overall > honest.overall
    assert combined(config(**PUBLISHED), NO_OP) > combined(config(**PUBLISHED), honest)
    assert combined(config(), NO_OP) < combined(config(), honest)


def test_more_of_any_mark_is_never_less() -> None:
    for gate in ("none", "product", "min"):
        own = config(gate=gate)
        for values in product((0, 3, 7), repeat=3):
            for place in range(3):
                more = [mark + (3 if index == place else 0) for index, mark in enumerate(values)]
                assert combined(own, Marks(*more)) >= combined(own, Marks(*values))


def test_a_question_about_an_edit_has_to_say_which() -> None:
    with pytest.raises(ValueError, match=r"alignment_question\n.*write \{prompt\} where"):
        config(alignment_question="Is it edited?")


def test_an_edit_is_shown_with_its_source_and_judged_alone() -> None:
    judge = marks([7], [3], [8])
    scored(judge)
    shown = [[image.width for image in one.images] for one in judge.asked]
    assert shown == [[99, 1], [1]]
    aligned, quality = (one.prompt for one in judge.asked)
    assert "make it red" in aligned
    assert "make it red" not in quality
    assert not any("{prompt}" in one.prompt for one in judge.asked)
    schema = judge.asked[0].form.request(judge.config)["response_format"]["json_schema"]["schema"]
    assert next(iter(schema["properties"])) == "reasoning"
    marks_of = [str(one) for one in range(11)]
    assert schema["properties"]["identity_preservation"]["enum"] == marks_of


@pytest.mark.parametrize(
    "judge", [marks([7], [11], [8]), marks([7], [3], [11]), ScriptedJudge(lambda question: None)]
)
def test_one_unreadable_mark_is_no_score(judge: ScriptedJudge) -> None:
    score, detail = scored(judge)
    assert isinstance(score, Missing)
    assert len(detail["judge"]) == 2


def test_questions_can_be_set() -> None:
    judge = marks([7], [3], [8])
    scored(judge, alignment_question="A {prompt}?", quality_question="Q?")
    assert [one.prompt for one in judge.asked] == ["A make it red?", "Q?"]


def test_without_a_weight_there_is_no_reward() -> None:
    own = config(if_weight=0, ip_weight=0, pq_weight=0)
    assert [key for key, _ in own.conflicts()] == ["if_weight"]


# At an endpoint ----------------------------------------------------------------------------------


def test_images_have_their_own_marks_whatever_the_latency() -> None:
    """Published, results come as they end and are laid beside sorted names; and the last file has
    those of the quality question alone."""
    count, measurements, choices = 6, 4, 2

    async def script(call: Call):
        await asyncio.sleep(random.random() * 0.05)
        numbers = int(call.body.get("n", 1))
        if "perceptual_quality" in call.prompt:
            return said_in_choices([choice_of('{"perceptual_quality": "9"}')] * numbers)
        number = int(call.prompt.split("edit number ")[1].split()[0])
        return said_in_choices([choice_of(alignment(number, 10 - number))] * numbers)

    settings = {"measurements": measurements, "choices": choices, "concurrency": 16}
    with judge_endpoint() as endpoint:
        endpoint.acts(script)
        judge = JudgeConfig.model_validate(
            {"placement": "remote", "urls": [endpoint.url], "model": "m", **settings}
        )
        scorer = ComplexEditScorer(config(), SharedJudge(judge, "judges.j"))
        batch = ScoreBatch(
            images=[Image.new("RGB", (index + 1, 8)) for index in range(count)],
            prompts=[f"edit number {index} ." for index in range(count)],
            metadata=[{}] * count,
            group_ids=[0] * count,
            source_images=[Image.new("RGB", (99, 8))] * count,
        )
        scores = scorer.score(batch)
        scorer.close()
    assert len(endpoint.calls) == count * 2 * measurements // choices
    for index, (score, detail) in enumerate(zip(scores.values, scores.details, strict=True)):
        expected = Marks(index, 10 - index, 9)
        assert score == pytest.approx(combined(config(), expected))
        found = (detail["instruction_following"], detail["identity_preservation"])
        assert (*found, detail["perceptual_quality"]) == (index, 10 - index, 9)
        assert detail["overall"] == pytest.approx(expected.overall)


def test_a_refusal_ends_with_a_missing_score() -> None:
    """Published, it is asked for ever; the reward of the recipe has one half for it."""

    async def script(call: Call):
        return said(None, refusal="I cannot judge people.")

    with judge_endpoint() as endpoint:
        endpoint.acts(script)
        judge = JudgeConfig(placement="remote", urls=[endpoint.url], model="m")
        score, _ = scored(shared := SharedJudge(judge, "judges.j"))
        shared.close()
    assert isinstance(score, Missing)
    assert "refused" in score.reason
    assert len(endpoint.calls) == 2


# The exact twin ----------------------------------------------------------------------------------


def rows():
    for number in range(12):
        rng = random.Random(number)
        if number % 3:
            yield compound_prompt(compound_edit(rng, 1 + number % 8))
        else:
            yield edit_prompt(edit(sample_scene(rng, "shapes"), rng))


def twin(images, prompts, **settings: Any):
    scorer = SceneEditScorer(SceneEditConfig.model_validate(settings))
    texts, metadata = [one.text for one in prompts], [one.metadata for one in prompts]
    return scorer.score(ScoreBatch(images, texts, metadata, [0] * len(images)))


def test_edits_of_scenes_are_scored_without_a_judge() -> None:
    prompts = list(rows())
    done = twin([ground_truth_image(one) for one in prompts], prompts)
    assert list(done.values) == [1.0] * len(prompts)
    undone = twin([source_image(one) for one in prompts], prompts)
    assert list(undone.values) == [0.0] * len(prompts)
    assert all(one["preserving"] > 0 and one["wrong"] for one in undone.details)


def test_half_an_edit_is_worth_more_than_none() -> None:
    batch, expected, _ = SceneEditScorer(SceneEditConfig()).golden()
    assert expected == [1.0, 0.5, 0.0]
    ungated = SceneEditScorer(SceneEditConfig(gate="none")).score(batch)
    assert list(ungated.values) == [1.0, 0.75, 0.5]


def test_other_prompts_have_no_score() -> None:
    (prompt,) = [*rows()][:1]
    broken = [{}, {"source_scene": {}}, {**prompt.metadata, "steps": [[]]}]
    batch = ScoreBatch([Image.new("RGB", (64, 64))] * 3, ["x"] * 3, broken, [0] * 3)
    scores = SceneEditScorer(SceneEditConfig()).score(batch)
    assert all(isinstance(one, Missing) for one in scores.values)


@pytest.mark.parametrize("section", ["complex_edit", "scene_edit"])
def test_sections_are_of_the_schema(section: str) -> None:
    settings = {"judge": "j"} if section == "complex_edit" else {}
    assert RewardsConfig.model_validate({section: settings}).sections().keys() == {section}
