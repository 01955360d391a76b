"""What a judge is asked about all test points of an image at once (Atelier's words).

The form of the answer is the one that the published evaluation models were taught.
"""

from __future__ import annotations

from collections.abc import Sequence

from atelier.unigenbench.points import Point
from atelier.unigenbench.taxonomy import Language

_ENGLISH = """\
You check how well a picture keeps to the prompt that it was made for. You see the picture. The
prompt was:
{prompt}

Check the picture for each of these {count} test points, one after the other and each by itself:
{points}

How to check:
- Say of every point what can be seen in the picture that bears on it, and whether that is what the
  prompt asks for.
- A point has 1 if the picture shows plainly all that it asks for. It has 0 if something of it is
  absent, wrong, only partly there, or too unclear to tell.
- Only what can be seen counts: no guess, no story behind the picture, no good intention.

Answer in this form, and write nothing around it:
<description>
<prompt>the prompt</prompt>
<checkpoint>{names}</checkpoint>
<analysis>a list in square brackets: of each test point what you saw, in quotation marks</analysis>
<score>a list in square brackets: 0 or 1 of each test point</score>
</description>
Both lists have {count} entries, in the order of the test points."""

_CHINESE = """\
请检查一张图片是否符合生成它的提示词。你会看到这张图片，提示词是：
{prompt}

请按顺序逐一检查下列{count}个考点，各考点互不影响：
{points}

检查方法：
- 说明图片中与该考点有关的、看得见的内容，以及它是否就是提示词所要求的。
- 图片清楚地画出考点要求的全部内容，记1；有缺失、错误、只画出一部分或无法看清，记0。
- 只凭看得见的内容判断，不猜测，不联想画外的故事，也不考虑作画意图。

请按以下格式回答，前后不要写其他内容：
<description>
<prompt>提示词</prompt>
<checkpoint>{names}</checkpoint>
<analysis>方括号列表：每个考点所见内容，加引号</analysis>
<score>方括号列表：每个考点的0或1</score>
</description>
两个列表都有{count}项，顺序与考点一致。"""

_TEXTS: dict[Language, str] = {"en": _ENGLISH, "zh": _CHINESE}
_POINT: dict[Language, str] = {
    "en": "{number}. {name}: {definition}. In this prompt: {description}",
    "zh": "{number}. {name}：{definition}。在本提示词中：{description}",
}


def request_text(prompt: str, points: Sequence[Point]) -> str:
    """The text beside the image, in the language of the points' names.

    Raises:
        UnknownPoint: a name is not in the taxonomy.
    """
    language = language_of(points)
    return _TEXTS[language].format(
        prompt=" ".join(prompt.split()),
        count=len(points),
        names=list_of_names(points),
        points="\n".join(
            _POINT[language].format(
                number=number,
                name=one.name,
                definition=one.dimension.definition(language),
                # A line break in one would be a point that nobody asked about.
                description=" ".join(one.description.split()),
            )
            for number, one in enumerate(points, start=1)
        ),
    )


def language_of(points: Sequence[Point]) -> Language:
    """Chinese where the first point has its Chinese name."""
    return "zh" if points and points[0].name.strip()[:1] > "\u2e7f" else "en"


def list_of_names(points: Sequence[Point]) -> str:
    """The names as a list in square brackets."""
    return "[" + ", ".join(f'"{one.name}"' for one in points) + "]"
