"""A judge that sees what golden samples show: red ink, and one drawn word."""

import json
import math

import numpy as np

from atelier.config.sections.judge import JudgeConfig
from atelier.judge.answers import unfinished
from atelier.judge.forms import (
    DimensionsForm,
    JsonForm,
    NumberForm,
    TextForm,
    VerdictForm,
    YesNoForm,
)
from atelier.judge.questions import answer_of
from atelier.judge.replies import Failure, Parsed, Reply
from atelier.rewards.images import drawn_word
from atelier.rewards.scorers.mmmg import VerdictsForm

CONFIG = JudgeConfig(placement="remote", urls=["http://judge/v1"], model="oracle")


class OracleJudge:
    """In the place of a `SharedJudge`. What it says is read by the question's form."""

    config = CONFIG

    def ask(self, questions):
        return [self._answer(one) for one in questions]

    def close(self):
        pass

    def _answer(self, question):
        if isinstance(question.form, YesNoForm):
            return answer_of(question.form, [Parsed(float(self._shown(question)), Reply(""))], 0.5)
        return answer_of(question.form, [question.form.read(Reply(self._said(question)))], 0.5)

    def _said(self, question):
        form, shown = question.form, self._shown(question)
        if isinstance(form, TextForm):
            return "HELLO" if _same(question.images[0], drawn_word("HELLO")) else "[no text]"
        if isinstance(form, NumberForm):
            return f"Final Score: {5 if shown else 1}"
        if isinstance(form, DimensionsForm):
            return "\n".join(f"{label}: {5 if shown else 1}" for label in form.labels)
        if isinstance(form, VerdictForm):
            return f"<answer>Image {1 if _is_red(question.images[0]) else 2} is better</answer>"
        if isinstance(form, VerdictsForm):
            return "\n".join(f"- {key}: {'yes' if shown else 'no'}" for key in form.keys)
        assert isinstance(form, JsonForm)
        marks = {"instruction_following": "10" if shown else "0", "identity_preservation": "10"}
        if "perceptual_quality" in form.model.model_fields:
            return '{"perceptual_quality": "8"}'
        return json.dumps({"reasoning": "it is so", **marks})

    def _shown(self, question):
        """Whether the last image shows what the prompt speaks of."""
        return "red circle" in question.prompt and _is_red(question.images[-1])


class SilentJudge:
    """A judge that never has an answer; it may have one later."""

    config = CONFIG

    def ask(self, questions):
        return [
            answer_of(one.form, [Failure("the judge is away", retryable=True)], 0.5)
            for one in questions
        ]

    def close(self):
        pass


class ScriptedJudge:
    """A judge that says what a function of the question does, and may be measured several times.

    The function returns one answer or several: a text, or P(yes) as a number; None is an empty one.
    """

    config = CONFIG

    def __init__(self, says, min_measured_share=0.5):
        self.says, self.share, self.asked = says, min_measured_share, []

    def ask(self, questions):
        self.asked += questions
        return [self._answer(one) for one in questions]

    def close(self):
        pass

    def _answer(self, question):
        said = self.says(question)
        replies = [_reply(one) for one in (said if isinstance(said, list) else [said])]
        outcomes = [unfinished(one) or question.form.read(one) for one in replies]
        return answer_of(question.form, outcomes, self.share)


def _reply(said):
    if not isinstance(said, float):
        return Reply(said or "")
    likely = (("yes", math.log(said)), ("no", math.log(1 - said)))
    return Reply("yes" if said > 0.5 else "no", first_token=likely)


def _is_red(image):
    pixels = np.asarray(image.convert("RGB")).astype(int)
    return bool(((pixels[..., 0] > 150) & (pixels[..., 1] < 80) & (pixels[..., 2] < 80)).any())


def _same(image, other):
    return image.size == other.size and image.tobytes() == other.tobytes()
