"""What test points are about: ten primary dimensions, 27 sub-dimensions, each in two languages.

A name is "Primary - Sub" in English and "甲-乙" in Chinese, or the primary's alone where that has
no parts. Definitions are Atelier's words. Source: DeepGen-RL.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from atelier.legible import legible_value

Language = Literal["en", "zh"]


@dataclass(frozen=True)
class Dimension:
    """A sub-dimension, by its names as the prompt files have them.

    Attributes:
        primary: English name of the primary dimension.
        meaning, meaning_zh: one line each, for a judge.
    """

    primary: str
    en: str
    zh: str
    meaning: str
    meaning_zh: str

    def definition(self, language: Language) -> str:
        return self.meaning if language == "en" else self.meaning_zh

    @property
    def is_alone(self) -> bool:
        """Whether it is all of its primary dimension."""
        return self.en == self.primary


class UnknownPoint(ValueError):
    """The name of a test point that is not in the taxonomy."""


def _alone(en: str, zh: str, meaning: str, meaning_zh: str) -> Dimension:
    return Dimension(en, en, zh, meaning, meaning_zh)


def _parts(en: str, zh: str, *subs: tuple[str, str, str, str]) -> list[Dimension]:
    return [
        Dimension(en, f"{en} - {sub}", f"{zh}-{sub_zh}", meaning, meaning_zh)
        for sub, sub_zh, meaning, meaning_zh in subs
    ]


DIMENSIONS: tuple[Dimension, ...] = (
    _alone(
        *("Style", "风格"),
        "the picture is made in the named manner: of an art, a school, an artist, a kind of photo",
        "画面采用所要求的表现手法：艺术门类、流派、艺术家或摄影类型",
    ),
    _alone(
        *("World Knowledge", "世界知识"),
        "a known person, place, work, trade or saying can be recognised as what it is",
        "能认出所指的人物、地点、作品、行业或典故，且与事实相符",
    ),
    *_parts(
        *("Attribute", "属性"),
        ("Quantity", "数量", "there are exactly as many as asked for", "数目与要求完全一致"),
        (
            *("Expression", "表情"),
            "a face shows the named feeling, not merely a moved mouth or eye",
            "面部流露出所要求的情绪，而不仅是五官的动作",
        ),
        (
            "Material",
            "材质",
            "a thing looks made of the named stuff",
            "物体看上去由所要求的材料制成",
        ),
        (
            *("Size", "大小"),
            "a thing is as large, tall, long, thick or wide as asked for",
            "物体的大小、高矮、长短、粗细或宽窄符合要求",
        ),
        ("Shape", "形状", "a thing has the named form", "物体具有所要求的形状"),
        ("Color", "颜色", "a thing has the named colour", "物体具有所要求的颜色"),
    ),
    *_parts(
        *("Action", "动作"),
        (
            *("Hand (Character/Anthropomorphic)", "人物/拟人手部动作"),
            "hands of a person or of what acts like one do what is asked, with sound fingers",
            "人物或拟人角色的手做出所要求的动作，手指完整、不变形",
        ),
        (
            *("Full-body (Character/Anthropomorphic)", "人物/拟人全身动作"),
            "the body of a person or of what acts like one is in the named motion or posture",
            "人物或拟人角色的身体呈现所要求的动作或姿态",
        ),
        ("Animal", "动物动作", "an animal does what is asked", "动物做出所要求的动作"),
        (
            *("Contact Interaction", "实体间有接触互动"),
            "things or persons act on each other and touch where they have to",
            "实体之间发生所要求的互动，并在应当接触之处相接触",
        ),
        (
            *("Non-contact Interaction", "实体间无接触互动"),
            "things or persons relate to each other across a distance, as by a look or a gesture",
            "实体之间隔着距离发生所要求的互动，例如目光或手势",
        ),
        ("State", "状态", "a thing stays in the named condition", "实体处于所要求的持续状态"),
    ),
    *_parts(
        *("Relationship", "关系"),
        (
            *("Composition", "构成关系"),
            "one thing is visibly made up of others, as asked",
            "一个实体明显由另一个或几个实体组成",
        ),
        (
            *("Similarity", "相似关系"),
            "different things resemble each other in what is named",
            "不同实体在所指方面彼此相像",
        ),
        (
            *("Inclusion", "包含关系"),
            "one thing is inside another, or within a flat one such as a picture or a screen",
            "一个实体位于另一个实体之内，也可以是画框、屏幕等平面之内",
        ),
        (
            *("Comparison", "比较关系"),
            "of two things one has more of a property than the other, as asked",
            "两个实体在某一属性上的差别符合要求",
        ),
    ),
    *_parts(
        *("Compound", "复合考点"),
        (
            *("Imagination", "想象力"),
            "what cannot be in the real world is shown, whole and plain to see",
            "现实中不可能出现的事物被完整、清楚地画出",
        ),
        (
            *("Feature Matching", "不同实体特征匹配"),
            "several things have each its own properties, and none that of another",
            "多个实体各自具有自己的特征，互不混淆",
        ),
    ),
    *_parts(
        *("Grammar", "语法"),
        (
            *("Pronoun Reference", "代词指代"),
            "what is said of a pronoun is shown of the thing that it stands for",
            "代词所述内容画在它所指代的对象上",
        ),
        (
            *("Consistency", "统一性"),
            "a property that several things share is shown on all of them",
            "多个实体共有的属性在每一个上都有体现",
        ),
        (
            *("Negation", "否定"),
            "what the prompt says is not there, or is not done, is indeed not",
            "提示词否定的事物或行为确实没有出现",
        ),
    ),
    *_parts(
        *("Entity Layout", "实体布局"),
        (
            *("Two-Dimensional Space", "二维空间"),
            "things stand left, right, above or below one another as asked",
            "实体在画面上的左右、上下位置符合要求",
        ),
        (
            *("Three-Dimensional Space", "三维空间"),
            "things stand before, behind, around or far from one another in depth as asked",
            "实体在空间中的前后、远近、环绕位置符合要求",
        ),
    ),
    _alone(
        *("Logical Reasoning", "逻辑推理"),
        "what follows from the prompt without being said in it is shown",
        "提示词未明说但可由其推出的内容得到体现",
    ),
    _alone(
        *("Text Generation", "文本生成"),
        "the asked text can be read, letter for letter, with nothing missing and nothing added",
        "所要求的文字清晰可读，逐字正确，不缺不多",
    ),
)
PRIMARIES: tuple[str, ...] = tuple(dict.fromkeys(one.primary for one in DIMENSIONS))


def dimension_of(name: str) -> Dimension:
    """The dimension of a test point, by its name in either language.

    Case, width of white space and what surrounds the hyphen do not count.

    Raises:
        UnknownPoint: there is none; the message says which is meant, where one is near.
    """
    found = _BY_NAME.get(_plain(name))
    if found is None:
        near = difflib.get_close_matches(_plain(name), _BY_NAME, n=1, cutoff=0.6)
        meant = _BY_NAME[near[0]] if near else None
        hint = (
            f"; did you mean {meant.zh if near[0] == _plain(meant.zh) else meant.en}?"
            if meant
            else ""
        )
        raise UnknownPoint(f"no test point is called {legible_value(name)}{hint}")
    return found


def _plain(name: str) -> str:
    return re.sub(r"\s*[-\u2010-\u2015\uff0d]\s*", "-", " ".join(name.split())).casefold()


_BY_NAME = {_plain(name): one for one in DIMENSIONS for name in (one.en, one.zh)}
