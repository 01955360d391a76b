"""Rewards that ask a judge: published values, and Missing where there is no answer."""

import pytest
from PIL import Image

from atelier.config.paths import from_root
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import RewardsConfig
from atelier.errors import ConfigError
from atelier.judge.questions import answer_of
from atelier.judge.replies import Failure, Parsed, Reply
from atelier.rewards import Missing, ScoreBatch
from atelier.rewards.registry import JUDGED
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.scorers.pairs import Pair, pairs_of, tallies
from atelier.rewards.service.served import ServedReward
from atelier.stages.servers.vllm import weights_digest
from tests.support.judge_endpoint import judge_endpoint, said
from tests.support.oracle_judge import OracleJudge, ScriptedJudge, SilentJudge


def made(name, judge, **settings):
    section = RewardsConfig.model_validate({name: {"judge": "j", **settings}})
    return JUDGED[name](getattr(section, name), judge)


def batch_of(count, metadata=None, group_ids=None, sources=None):
    # Every image is of another width, so that a script can tell which one it is asked about.
    images = [Image.new("RGB", (index + 1, 8)) for index in range(count)]
    prompts = [f"prompt {index}" for index in range(count)]
    return ScoreBatch(
        images, prompts, metadata or [{}] * count, group_ids or [0] * count, source_images=sources
    )


@pytest.mark.parametrize("name", sorted(JUDGED))
def test_without_an_answer_every_image_is_missing_for_now(name):
    scorer = made(name, SilentJudge())
    scores = scorer.score(scorer.golden()[0])
    assert all(isinstance(one, Missing) and one.retryable for one in scores.values)
    assert all("the judge is away" in one.reason for one in scores.values)


def test_the_weights_of_a_judge_in_this_process_are_a_rewards_own(tmp_path):
    """So that two services of one name and other weights are told apart."""

    def scorer(model, **placement):
        config = JudgeConfig(model=model, **placement)
        return made("yes_no", SharedJudge(config, "judges.j"))

    here = scorer("assets/tiny-judge", placement="in_process")
    assert [one.name for one in here.weights()] == ["model.safetensors"]
    weights = ServedReward(here, 1, "0" * 64).identity.weights
    assert weights == weights_digest(from_root("assets/tiny-judge"))
    assert scorer("m", placement="remote", urls=["http://127.0.0.1:1/v1"]).weights() == ()
    for nothing in (str(tmp_path), "nobody/has-this-model", "no model: at all"):
        with pytest.raises(ConfigError, match="not on this machine"):
            scorer(nothing, placement="in_process").weights()


# vlm_ocr -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "read", "score"),
    [
        ("Hello World", "hello\u3000 world\n", 1.0),
        ("Hello World", "Helo Wrld", 0.8),
        ("SALE", "SALE50%OFF", 1.0),
        ("Coffee", "Cofee\tshop", 1 / 6),
        ("OPEN", "[no text]", 0.0),
        ("no text", "[no text]", 0.0),
    ],
)
def test_vlm_ocr_compares_without_white_space_and_case(target, read, score):
    scorer = made("vlm_ocr", ScriptedJudge(lambda question: read))
    assert scorer.score(batch_of(1, [{"target": target}])).values == [pytest.approx(score)]


def test_vlm_ocr_asks_only_about_images_with_a_target():
    judge = ScriptedJudge(lambda question: "A")
    metadata = [{}, {"target": "A"}, {"target": " \n"}, {"target": "B"}]
    scores = made("vlm_ocr", judge).score(batch_of(4, metadata)).values
    assert [one.images[0].width for one in judge.asked] == [2, 4]
    assert scores[1::2] == [1.0, 0.0]
    assert all("target" in one.reason for one in scores[::2])


def test_vlm_ocr_is_the_mean_of_what_could_be_measured():
    scorer = made("vlm_ocr", ScriptedJudge(lambda question: ["AB", "AX", None]))
    assert scorer.score(batch_of(1, [{"target": "AB"}])).values == [0.75]


# unified_reward ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "score"),
    [
        ("Good.\nFinal Score: 4.5", 0.9),
        ("**Final Score:** 4", 0.8),
        ("Final Score: 10", None),
        ("I like it", None),
        (None, None),
    ],
)
def test_unified_reward_reads_one_mark(reply, score):
    scorer = made("unified_reward", ScriptedJudge(lambda question: reply))
    (found,) = scorer.score(batch_of(1)).values
    assert isinstance(found, Missing) if score is None else found == pytest.approx(score)


def test_a_missing_dimension_is_missing_and_not_the_mean_of_others():
    """A golden value of DeepGen-RL, whose original fills in 2.5 and 2.875."""
    replies = [
        "Alignment Score (1-5): 4.5\nCoherence Score (1-5): 1\nStyle Score (1-5): 2",
        "Alignment Score (1-5): 3",
        "nothing",
    ]
    judge = ScriptedJudge(lambda question: replies[question.images[0].width - 1])
    scores = made("unified_reward", judge, form="dimensions", scale="raw").score(batch_of(3))
    assert scores.values[0] == 3.25
    assert all(isinstance(one, Missing) for one in scores.values[1:])
    fifths = made("unified_reward", judge, form="dimensions").score(batch_of(1))
    assert fifths.values == [0.65]


def test_the_prompt_is_put_into_the_question():
    judge = ScriptedJudge(lambda question: "Final Score: 3")
    made("unified_reward", judge, question="About {prompt}.").score(batch_of(2))
    assert [one.prompt for one in judge.asked] == ["About prompt 0.", "About prompt 1."]


# unified_reward_think ----------------------------------------------------------------------------


def better(rank):
    """A judge that prefers the image of the lower rank, by width - 1; None: it does not say."""

    def says(question):
        first, second = (image.width - 1 for image in question.images)
        if rank[first] is None or rank[second] is None:
            return "hard to say"
        return f"<answer>Image {1 if rank[first] < rank[second] else 2} is better</answer>"

    return ScriptedJudge(says)


@pytest.mark.parametrize("both_orders", [False, True])
def test_win_rates_of_three(both_orders):
    """A golden value of DeepGen-RL: 0 beats 1 and 2, 2 beats 1."""
    judge = better([0, 2, 1])
    scorer = made("unified_reward_think", judge, both_orders=both_orders)
    assert scorer.score(batch_of(3)).values == [1.0, 0.0, 0.5]
    assert len(judge.asked) == (6 if both_orders else 3)


def test_win_rates_of_eight_are_not_rounded():
    """One beats all, the other seven win three each: 1.0 and 7 x 3/7."""
    circle = [  # each of 1..7 beats the next three around the circle
        (pair, float(pair.first == 0 or (pair.second - pair.first) % 7 in (1, 2, 3)))
        for pair in pairs_of([0] * 8, both_orders=False)
    ]
    rates = [one.win_rate for one in tallies(8, circle)]
    assert rates == [1.0, *[pytest.approx(3 / 7)] * 7]


def test_a_liking_for_the_first_place_cancels_out():
    judge = ScriptedJudge(lambda question: "<answer>Image 1 is better</answer>")
    assert made("unified_reward_think", judge).score(batch_of(3)).values == [0.5] * 3
    one_order = made("unified_reward_think", judge, both_orders=False)
    assert one_order.score(batch_of(3)).values == [1.0, 0.5, 0.0]


def test_a_pair_with_one_of_its_two_orders_answered_counts_for_nobody():
    """The judge likes the first place, and does not answer where the second image stands there."""
    answered = iter([True, False, True, True, True, True])
    judge = ScriptedJudge(
        lambda question: "<answer>Image 1 is better</answer>" if next(answered) else None
    )
    scores = made("unified_reward_think", judge, min_answered_share=0.5).score(batch_of(3))
    assert scores.values == [0.5] * 3
    assert [one["answered"] for one in scores.details] == [2, 2, 4]


def test_an_unanswered_comparison_counts_for_nobody():
    # The judge never says anything about image 2.
    scorer = made("unified_reward_think", better([0, 1, None]), min_answered_share=0.5)
    scores = scorer.score(batch_of(3))
    assert scores.values[:2] == [1.0, 0.0]
    assert "0 of its 4 comparisons were answered" in scores.values[2].reason
    assert [one["answered"] for one in scores.details] == [2, 2, 0]
    strict = made("unified_reward_think", better([0, 1, None]), min_answered_share=0.6)
    assert all(isinstance(one, Missing) for one in strict.score(batch_of(3)).values)


def test_only_images_of_a_group_are_compared():
    judge = better([3, 2, 1, 0])
    scores = made("unified_reward_think", judge).score(batch_of(4, group_ids=[7, 5, 7, 9]))
    assert {tuple(image.width for image in one.images) for one in judge.asked} == {(1, 3), (3, 1)}
    assert scores.values[0::2] == [0.0, 1.0]
    assert all("alone in its group" in one.reason for one in scores.values[1::2])
    assert not any(one.retryable for one in scores.values[1::2])


def test_a_tie_is_half_a_win():
    tally = tallies(2, [(Pair(0, 1), 0.5)])
    assert [one.win_rate for one in tally] == [0.5, 0.5]


def test_only_a_judge_who_says_so_makes_a_tie():
    """A golden value of DeepGen-RL has one half without any answer, too."""
    tied = ScriptedJudge(lambda question: "<think>7 and 7</think><answer>It is a tie</answer>")
    assert made("unified_reward_think", tied).score(batch_of(3)).values == [0.5] * 3
    for said_ in ("", "hard to say", "<answer></answer>", None):
        silent = ScriptedJudge(lambda question, said_=said_: said_)
        found = made("unified_reward_think", silent).score(batch_of(3)).values
        assert all(isinstance(one, Missing) for one in found)


def test_a_comparison_is_asked_for_as_such_judges_were_taught():
    judge = better([0, 1])
    made("unified_reward_think", judge).score(batch_of(2))
    text = judge.asked[0].prompt
    for word in ("prompt 0", "1 to 10", "<think>", "</think>", "semantic consistency"):
        assert word in text
    assert "<answer>Image 1 is better</answer>" in text
    assert "<answer>Image 2 is better</answer>" in text


class SaysYes(ScriptedJudge):
    """P(yes) of an image by its width - 1; None: no answer, which may come later."""

    def __init__(self, p_yes):
        super().__init__(None)
        self.p_yes = p_yes

    def _answer(self, question):
        p_yes = self.p_yes[question.images[0].width - 1]
        failed = Failure("the judge is away", retryable=True)
        outcome = failed if p_yes is None else Parsed(p_yes, Reply(""))
        return answer_of(question.form, [outcome], 0.5)


def test_a_judge_of_yes_and_no_compares_what_it_says_of_each_image():
    judge = SaysYes([0.9, 0.2, 0.2, 0.5])
    scores = made("unified_reward_think", judge, form="p_yes").score(batch_of(4))
    assert scores.values == [
        1.0,
        pytest.approx(0.5 / 3),
        pytest.approx(0.5 / 3),
        pytest.approx(2 / 3),
    ]
    assert [one["p_yes"] for one in scores.details] == [0.9, 0.2, 0.2, 0.5]
    assert [len(one.images) for one in judge.asked] == [1] * 4
    assert judge.asked[2].prompt == "Does this image show prompt 2? Answer yes or no."


def test_an_image_without_p_yes_is_missing_and_compared_with_nobody():
    judge = SaysYes([0.9, None, 0.1])
    scores = made("unified_reward_think", judge, form="p_yes").score(batch_of(3))
    assert scores.values[::2] == [1.0, 0.0]
    assert scores.values[1].retryable
    assert "0 of its 2 comparisons were answered: the judge is away" in scores.values[1].reason
    alone = made("unified_reward_think", SaysYes([0.9] * 3), form="p_yes")
    found = alone.score(batch_of(3, group_ids=[0, 1, 1])).values
    assert "alone in its group" in found[0].reason
    assert found[1:] == [0.5, 0.5]


def test_the_embedded_judge_compares_without_a_network():
    config = JudgeConfig(placement="in_process", model="assets/tiny-judge", device="cpu")
    scorer = made("unified_reward_think", SharedJudge(config, "judges.j"), form="p_yes")
    batch, expected, tolerance = scorer.golden()
    assert scorer.score(batch).values == pytest.approx(expected, abs=tolerance)


# edit_yes_no -------------------------------------------------------------------------------------


class SureJudge(OracleJudge):
    """Yes to questions that hold one of the texts."""

    def __init__(self, *texts):
        self.texts, self.asked = texts, []

    def _shown(self, question):
        self.asked.append(question)
        return any(one in question.prompt for one in self.texts)


def facts(following, preserving=()):
    pairs = {"following": following, "preserving": preserving}
    return {side: [list(one) for one in asked] for side, asked in pairs.items()}


def test_an_edit_is_asked_about_with_its_source():
    judge = SureJudge("do what it says")
    sources = [Image.new("RGB", (5, 5)), None]
    found = made("edit_yes_no", judge).score(batch_of(2, sources=sources))
    assert [[image.width for image in one.images] for one in judge.asked] == [[5, 1]] * 2
    assert found.values[0] == 1.0
    assert found.details[0] == {"following": 1.0, "preserving": 0.0}
    assert "source image" in found.values[1].reason


@pytest.mark.parametrize("weights", [(0.0, 1.0), (0.01, 1.0), (1.0, 0.25)])
def test_an_honest_judge_passes_the_golden_sample_of_any_weights(weights):
    """Says 0.95 for yes, 0.05 for no: with no weight of following both images score alike."""
    following, preserving = weights
    settings = {"following_weight": following, "preserving_weight": preserving}
    judge = ScriptedJudge(lambda asked: 0.95 if "not name" in asked.prompt or _red(asked) else 0.05)
    scorer = made("edit_yes_no", judge, **settings)
    batch, expected, tolerance = scorer.golden()
    assert scorer.score(batch).values == pytest.approx(expected, abs=tolerance)


def _red(asked):
    """Whether the edited image, the last of those shown, has anything red in it."""
    return any(r > 200 and g < 80 and b < 80 for _, (r, g, b) in asked.images[-1].getcolors(4096))


@pytest.mark.parametrize(
    ("gate", "score"), [("none", 0.5 + 0.25), ("product", 0.5 + 0.125), ("min", 0.5 + 0.125)]
)
def test_an_edit_is_asked_about_by_facts(gate, score):
    """One of two was done, all was kept: what is said not to be there is not."""
    judge = SureJudge("a blue circle", "a green square")
    asked = facts(
        [("Is there a blue circle?", "yes"), ("Is there a blue square?", "yes")],
        [("Is there a green square?", "yes"), ("Is there a cross?", "no")],
    )
    scorer = made("edit_yes_no", judge, about="facts", gate=gate)
    assert scorer.score(batch_of(1, [asked])).values == [score]
    assert scorer.value_range == (0.0, 1.25)


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        facts([]),
        {"following": "Is there?"},
        {"following": [["Is there?"]]},
        {"following": [["Is there?", "maybe"]]},
        {"following": [[1, "yes"]], "preserving": []},
        {"following": [["Is there?", "yes"]], "preserving": 3},
    ],
)
def test_an_edit_without_questions_has_no_score(metadata):
    scores = made("edit_yes_no", SureJudge(), about="facts").score(batch_of(1, [metadata]))
    assert "metadata following" in scores.values[0].reason


# At an endpoint ----------------------------------------------------------------------------------


def test_it_asks_an_endpoint_and_keeps_the_order():
    async def script(call):
        return said(f"Final Score: {1 + int(call.prompt[-1])}")

    with judge_endpoint() as endpoint:
        endpoint.acts(script)
        config = JudgeConfig(placement="remote", urls=[endpoint.url], model="m")
        scorer = made("unified_reward", SharedJudge(config, "judges.j"), question="{prompt}")
        try:
            scores = scorer.score(batch_of(4)).values
        finally:
            scorer.close()
    assert scores == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert scorer.version == "unified_reward-1/m"


# yes_no ------------------------------------------------------------------------------------------


def test_yes_no_keeps_the_judges_words():
    yes = [("yes", -0.1), ("no", -2.5)]

    async def script(call):
        return said("yes, it does", finish_reason="length", first_token=yes)

    with judge_endpoint() as endpoint:
        endpoint.acts(script)
        own = {"placement": "remote", "urls": [endpoint.url], "model": "m"}
        judge = SharedJudge(JudgeConfig(**own), "judges.j")
        scores = made("yes_no", judge, questions={"a": "A?", "b": "B?"}).score(batch_of(1))
        judge.close()
    (seen,) = scores.details
    assert seen["judge"] == ["yes, it does"] * 2
    assert seen["a"] == seen["b"] == scores.values[0]
