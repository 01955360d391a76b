"""The tokenizer of the embedded pipelines: a cut of the published one.

It keeps the tokens of the published templates, so that as many come before the user's words as the
published pipelines drop (34 and 64), of all that is said in the scene world, and of some plain
English. Any other text is spelled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffusers import QwenImageEditPlusPipeline, QwenImagePipeline
from transformers import Qwen2Tokenizer

from atelier.data.riddles import COLOUR_CLUES, SHAPE_CLUES
from atelier.data.scenes import VOCABULARY
from atelier.policies.qwen.templates import planning, stock
from atelier.policies.qwen.tiny.vocabulary import cut

MARKS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
# What may be said around the scene world; each with and without a space before it.
ENGLISH = """
a about add after all also an and another any are as at be become before begin beside between big
both bottom but by can centre change close colour corner cross describe did do does down draw
drawing each edit edge else end every everything exactly except far few find first five following
four from get give go grid has have here how image in inside instead into is it its just keep
large last leave left let like line list little look lot make many middle more move much name near
need new next no not nothing now object objects of off on one only or order other out outside over
paint picture place plain please put read replace remove rest right row same scene second see
seven shape shapes show shown side sides six size small so some stand stands stay step still take
than that the them then there these thing things think third this three to top turn two under
unchanged up upon use very was way well what when where which while white who will with word words
write yes you your
"""


def cut_tokenizer(whole: Qwen2Tokenizer) -> Qwen2Tokenizer:
    """Of the published tokenizer what is needed here."""
    state: dict[str, Any] = json.loads(cut(whole.backend_tokenizer, texts(), MARKS).to_str())
    model = state["model"]
    vocabulary = model["vocab"] | {one["content"]: one["id"] for one in state["added_tokens"]}
    return Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[tuple(pair) for pair in model["merges"]],
        extra_special_tokens=list(MARKS[1:]),
        padding_side="right",
        model_max_length=2048,
    )


def load_tokenizer(folder: Path) -> Qwen2Tokenizer:
    """The one that an embedded pipeline carries."""
    return Qwen2Tokenizer.from_pretrained(folder)


def texts() -> list[str]:
    """What is to be as many tokens as it is for the published pipelines."""
    text, edit = QwenImagePipeline(*[None] * 5), QwenImageEditPlusPipeline(*[None] * 6)
    found = [one.text("") for one in (stock(text), stock(edit), planning(text))]
    clues = [
        clue for table in (COLOUR_CLUES, SHAPE_CLUES) for one in table.values() for clue in one
    ]
    said = [*VOCABULARY, *ENGLISH.split(), *(word for clue in clues for word in clue.split())]
    for word in dict.fromkeys(said):
        found += [word, f" {word}"]
    return [
        *found,
        *clues,
        *(f"the colour of {clue}" for clue in clues),
        ", . : ; - ? ! 1. 2) \n\n",
    ]
