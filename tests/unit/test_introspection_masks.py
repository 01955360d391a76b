"""What each version of introspection trains, token by token.

A context is spelled, a letter a token:

    _ B [ ]    padding on the left, BOS, the marks around an image
    p          the prompt with its template: what an unconditional row does not know
    1 2 3      an image as it was drawn, by its number; a b c: the same as it is seen
    ?          a fixed sentence: the question, or the wish for another image
    Y N w .    an answer and its EOS

and below it whether later tokens attend to it (#) or not (space).
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch import Tensor

from atelier.config.schema import RunConfig
from atelier.data.prompts import Prompt
from atelier.policies.base import Rollout, Sample
from atelier.policies.janus.conversation import IMAGE_SLOT
from atelier.policies.janus.loading import Checkpoint
from atelier.policies.janus.log_probs import is_guided
from atelier.policies.janus.policy import JanusPolicy
from atelier.policies.janus.rows import SEEN_SLOT, Rows
from tests.support.random_janus import Sizes, build_model, build_processor

SIZES = Sizes()
N = SIZES.side**2
PAD, BOS, EOS, BOI, EOI, UNKNOWN, YES, NO, WORD = 0, 1, 2, 3, 4, 6, 7, 8, 9
LETTERS = {BOS: "B", EOS: ".", BOI: "[", EOI: "]", UNKNOWN: "?", YES: "Y", NO: "N", WORD: "w"}
LIMIT = 5

# Answers to the first image. The last one was cut off: it has no EOS to train, and its context one.
ACCEPTED = [YES, WORD, EOS]
REFUSED = [NO, WORD, WORD, WORD, EOS]
CUT_OFF = [NO, WORD, WORD, WORD, WORD]

PROMPT = "B" + "p" * 5 + "["  # <|User|>: a red circle <|Assistant|>:
ASKED = "]" + "?" * 8
AGAIN = "???["
FIRST, SECOND = "1" * N, "2" * N
SEEN, SECOND_SEEN = "a" * N, "b" * N


def introspective(version: str, rounds: int, train_end: bool = True) -> JanusPolicy:
    told = {"version": version, "rounds": rounds, "answer_tokens": LIMIT, "train_end": train_end}
    config = RunConfig.model_validate(
        {
            "policy": {"family": "janus"},
            "rollout": {"kind": "introspect", "guidance_scale": 3.0, "introspection": told},
            "evaluation": {"guidance_scale": 3.0},
            "algorithm": {"kl": "k3"},
        }
    )
    checkpoint = Checkpoint(build_model(SIZES), build_processor(SIZES))
    return JanusPolicy(checkpoint, config, torch.device("cpu"))


def told(policy: JanusPolicy, rounds: int, *stories: list[list[int]]) -> Rollout:
    """Samples that gave these answers, and then drew what the version draws."""
    count, version_goes_on = len(stories), policy._config.rollout.introspection.version == "v3"
    answers = torch.full((count, rounds - 1, LIMIT), -1)
    made = []
    for row, story in enumerate(stories):
        for number, answer in enumerate(story):
            answers[row, number, : len(answer)] = torch.tensor(answer)
        ends = not version_goes_on and story[-1][0] == YES
        made.append(len(story) if ends else len(story) + 1)
    samples = [Sample(index, 0, Prompt(0, 0, "a red circle")) for index in range(count)]
    actions = rounds * N + (rounds - 1) * max(len(one) for story in stories for one in story)
    tensors = {
        "codes": drawn(count, rounds),
        "again": drawn(count, rounds) + 10,
        "answers": answers,
        "said": torch.zeros(count, 2 * rounds - 1, N),
        "images": pictures(count, rounds),
        "made": torch.tensor(made),
        "old_log_probs": torch.zeros(count, actions),
    }
    return policy.unpack(samples, tensors)


def drawn(count: int, rounds: int) -> Tensor:
    """Codes [count, rounds, N] that say whose and which image they are of."""
    number = torch.arange(count)[:, None, None] * 20 + torch.arange(rounds)[None, :, None]
    return number.expand(count, rounds, N).contiguous()


def pictures(count: int, rounds: int) -> Tensor:
    """One grey for every image."""
    side = SIZES.pixels
    grey = (torch.arange(count * rounds) * 20).reshape(count, rounds, 1, 1, 1)
    return grey.expand(count, rounds, side, side, 3).to(torch.uint8)


class Speller:
    """Rows of a segment in letters."""

    def __init__(self, policy: JanusPolicy, count: int, rounds: int) -> None:
        self._codes = drawn(count, rounds) + 10
        greys = pictures(count, rounds).numpy()
        look = policy.tools.pixels.look
        self._seen = [[look([one])[0] for one in row] for row in greys]

    def __call__(self, rows: Rows) -> list[tuple[str, str]]:
        """Letters of each row, and who is attended to, without the padding on the left."""
        spelled = []
        for row in range(len(rows)):
            one = rows.at([row])
            letters = list(self._letters(one, row))
            attended = ["#" if seen else " " for seen in one.mask[0].tolist()]
            padding = int(one.padding)
            assert letters[:padding] == ["_"] * padding
            spelled.append(("".join(letters[padding:]), "".join(attended[padding:])))
        return spelled

    def _letters(self, one: Rows, row: int) -> list[str]:
        slots = {IMAGE_SLOT: iter(self._drawn(one, row)), SEEN_SLOT: iter(self._looked(one, row))}
        letters = []
        known = one.tokens[0].tolist(), one.null_tokens[0].tolist(), one.mask[0].tolist()
        for token, null, attended in zip(*known, strict=True):
            if token in slots:
                letters.append(next(slots[token]))
            elif token == PAD and not attended:
                letters.append("_")
            else:
                letters.append("p" if null != token else LETTERS[token])
                assert null in (token, PAD)
        return letters

    def _drawn(self, one: Rows, row: int) -> str:
        images = [] if one.codes is None else list(one.codes)
        own = [codes[0].item() for codes in self._codes[row]]
        return "".join("123"[own.index(image[0].item())] * N for image in images)

    def _looked(self, one: Rows, row: int) -> str:
        images = [] if one.features is None else list(one.features)
        equal = [[torch.equal(image, seen) for seen in self._seen[row]] for image in images]
        return "".join("abc"[which.index(True)] * N for which in equal)


def attended(spelled: str) -> str:
    """All but EOS."""
    return "".join(" " if letter == "." else "#" for letter in spelled)


def images_of(targets: Tensor) -> list[str]:
    """Which of a sample's images each row has for its target: all N codes are of it."""
    assert all(len(set(row)) == 1 for row in targets.tolist())
    return ["123"[row[0] % 20] for row in targets.tolist()]


@cache
def two_rounds(version: str) -> tuple[JanusPolicy, Rollout, Speller]:
    policy = introspective(version, 2)
    rollout = told(policy, 2, [ACCEPTED], [REFUSED], [CUT_OFF])
    return policy, rollout, Speller(policy, 3, 2)


def masks_of(rollout: Rollout, segment: int) -> list[str]:
    own = rollout.mask[:, rollout.segments[segment]]
    return ["".join("#" if one else " " for one in row) for row in own.tolist()]


versions = pytest.mark.parametrize("version", ["v1", "v2", "v3"])


@versions
def test_the_first_image_is_drawn_from_the_prompt(version: str) -> None:
    _, rollout, spell = two_rounds(version)
    first = rollout.record["segments"][0]
    assert spell(first.rows) == [(PROMPT, attended(PROMPT))] * 3
    assert images_of(first.targets) == ["1", "1", "1"]
    assert masks_of(rollout, 0) == ["#" * N] * 3
    assert is_guided(first.form)


@versions
def test_an_answer_follows_the_image_as_it_is_seen(version: str) -> None:
    _, rollout, spell = two_rounds(version)
    answer = rollout.record["segments"][1]
    context = PROMPT + SEEN + ASKED
    assert spell(answer.rows) == [(context, "#" * len(context))] * 3
    assert answer.targets.tolist() == [[*ACCEPTED, PAD, PAD], REFUSED, CUT_OFF]
    assert masks_of(rollout, 1) == ["###  ", "#####", "#####"]
    assert not is_guided(answer.form)


@versions
def test_stopping_may_be_left_untrained(version: str) -> None:
    """As the original does: neither EOS nor what fills up behind it counts."""
    policy = introspective(version, 2, train_end=False)
    rollout = told(policy, 2, [ACCEPTED], [REFUSED], [CUT_OFF])
    assert masks_of(rollout, 1) == ["##   ", "#### ", "#####"]


AFTER_YES = PROMPT + FIRST + ASKED + "Yw." + AGAIN
AFTER_NO = PROMPT + FIRST + ASKED + "Nwww." + AGAIN
AFTER_CUT = PROMPT + FIRST + ASKED + "Nwwww." + AGAIN
LAST = {
    "v1": [(PROMPT, "1"), (AFTER_NO, "2"), (AFTER_CUT, "2")],
    "v2": [(AFTER_YES, "1"), (AFTER_NO, "2"), (AFTER_CUT, "2")],
    "v3": [(AFTER_YES, "2"), (AFTER_NO, "2"), (AFTER_CUT, "2")],
}


@versions
def test_the_last_image_of_each_version(version: str) -> None:
    _, rollout, spell = two_rounds(version)
    last = rollout.record["segments"][2]
    wanted = [(context, attended(context)) for context, _ in LAST[version]]
    assert spell(last.rows) == wanted
    assert images_of(last.targets) == [image for _, image in LAST[version]]
    assert masks_of(rollout, 2) == ["#" * N] * 3  # also of what was accepted before
    assert is_guided(last.form)


# Refused and then accepted; accepted at once; never accepted.
THREE = ([REFUSED, ACCEPTED], [ACCEPTED], [REFUSED, REFUSED])
TWICE = PROMPT + FIRST + ASKED + "Nwww." + AGAIN + SECOND + ASKED
THIRD = {
    "v1": [(AFTER_NO, "2"), (PROMPT, "1"), (TWICE + "Nwww." + AGAIN, "3")],
    "v2": [(TWICE + "Yw." + AGAIN, "2"), (AFTER_YES, "1"), (TWICE + "Nwww." + AGAIN, "3")],
}


@pytest.mark.parametrize("version", ["v1", "v2"])
def test_the_third_image_of_each_version(version: str) -> None:
    policy = introspective(version, 3)
    rollout = told(policy, 3, *THREE)
    spell = Speller(policy, 3, 3)
    second_answer, third = rollout.record["segments"][3:]
    seen = PROMPT + FIRST + ASKED + "Nwww." + AGAIN + SECOND_SEEN + ASKED
    for row in (0, 2):  # the other one was not asked a second time
        assert spell(second_answer.rows)[row] == (seen, attended(seen))
    assert masks_of(rollout, 3) == ["###  ", "     ", "#####"]
    assert spell(third.rows) == [(one, attended(one)) for one, _ in THIRD[version]]
    assert images_of(third.targets) == [image for _, image in THIRD[version]]


def test_v3_goes_on_after_a_yes() -> None:
    policy = introspective("v3", 3)
    rollout = told(policy, 3, [ACCEPTED, REFUSED], [REFUSED, ACCEPTED])
    last = rollout.record["segments"][4]
    stories = ("Yw.", "Nwww."), ("Nwww.", "Yw.")
    wanted = [
        PROMPT + FIRST + ASKED + one + AGAIN + SECOND + ASKED + two + AGAIN for one, two in stories
    ]
    assert Speller(policy, 2, 3)(last.rows) == [(one, attended(one)) for one in wanted]
    assert images_of(last.targets) == ["3", "3"]
