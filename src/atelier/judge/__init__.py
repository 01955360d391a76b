"""Asking a vision-language model about images, through any OpenAI-compatible endpoint.

A question has an answer or a reason why there is none; a failure is never a number.
"""

from atelier.judge.client import JudgeClient
from atelier.judge.forms import (
    DimensionsForm,
    Form,
    JsonForm,
    NumberForm,
    TextForm,
    VerdictForm,
    YesNoForm,
)
from atelier.judge.questions import Answer, Question

__all__ = [
    "Answer",
    "DimensionsForm",
    "Form",
    "JsonForm",
    "JudgeClient",
    "NumberForm",
    "Question",
    "TextForm",
    "VerdictForm",
    "YesNoForm",
]
