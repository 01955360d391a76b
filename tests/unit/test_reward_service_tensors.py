"""Batches as safetensors: the same scores as by JSON, the same bounds, refusals with their type."""

import json

import httpx
import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save

from atelier.rewards.base import ScoreBatch, Scores
from atelier.rewards.client.outgoing import OutgoingBatch
from atelier.rewards.service import pictures, tensors
from atelier.rewards.service.app import Limits
from atelier.rewards.service.gate import Bounds
from atelier.rewards.service.pictures import PixelBounds
from atelier.rewards.service.protocol import JSON_BODY, TENSORS_BODY, RequestHead, TensorsRequest
from tests.support.reward_services import (
    BATCH,
    NAME,
    RIGHT,
    Scripted,
    client,
    faulty,
    service,
)
from tests.support.wire_faults import FAULTS

LIMITS = Limits(Bounds(100_000), PixelBounds(64 * 64, 2 * 64 * 64), items=4)
GREY = np.full((8, 8, 3), 128, np.uint8)
GREY_BATCH = ScoreBatch([Image.fromarray(GREY)], ["a"], [{}], [0])
GREY_SCORE = Scripted().score(GREY_BATCH).values[0]
BOTH = f"{JSON_BODY}, {TENSORS_BODY}"
EVERYTHING = frozenset({JSON_BODY, TENSORS_BODY})


class Echo(Scripted):
    """Its details repeat the rest of the batch."""

    def score(self, batch):
        self.batches.append(batch)
        details = [
            {"prompt": prompt, "group": group, **metadata}
            for prompt, metadata, group in zip(
                batch.prompts, batch.metadata, batch.group_ids, strict=True
            )
        ]
        return Scores(self.name, super().score(batch).values, details)


@pytest.fixture(scope="module")
def url():
    with service(Echo(), limits=LIMITS) as found:
        yield found


def post(url, kind, body):
    headers = {"Content-Type": kind}
    return httpx.post(f"{url}/score", content=body, headers=headers, trust_env=False, timeout=20)


def refused(answer):
    return answer.status_code, answer.json()["error"]["type"]


def noise(*sizes, seed=0):
    generator = np.random.default_rng(seed)
    return [
        Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))
        for width, height in sizes
    ]


def test_scores_and_details_are_those_of_json_to_the_last_bit(url):
    batch = ScoreBatch(
        noise((1, 1), (7, 5), (64, 64)),
        ["a", 'the word "\N{GRINNING FACE}"', ""],
        [{}, {"target": "x", "n": 0.1}, {"deep": [{"a": None}]}],
        [3, -1, 10**20],
    )
    head = RequestHead(request_id="r")
    answers = [
        post(url, *OutgoingBatch(batch).body(head, taken)) for taken in (EVERYTHING, frozenset())
    ]
    assert [one.status_code for one in answers] == [200, 200]
    assert answers[0].json() == answers[1].json()
    scores = [one["score"] for one in answers[0].json()["rewards"][NAME]["results"]]
    assert scores == list(Scripted().score(batch).values)


def test_every_picture_survives_the_way_with_its_place():
    images, others = noise((3, 9), (9, 3), seed=1), noise((5, 4), (4, 5), seed=2)
    batch = ScoreBatch(images, ["a", "b"], [{}, {}], [0, 1], [None, others[0]], [others[1], None])
    kind, body = OutgoingBatch(batch).body(RequestHead(), EVERYTHING)
    assert kind == TENSORS_BODY
    text, found = tensors.unpack(body)
    received = tensors.to_batch(TensorsRequest.model_validate_json(text), found, PixelBounds())
    by_json = pictures.to_batch(pictures.to_items(batch), PixelBounds())
    for one in (received, by_json):
        assert [image.tobytes() for image in one.images] == [image.tobytes() for image in images]
        assert [image.size for image in one.images] == [(3, 9), (9, 3)]
        assert one.source_images[0] is None
        assert one.source_images[1].tobytes() == others[0].tobytes()
        assert one.partner_images[0].tobytes() == others[1].tobytes()
        assert one.partner_images[1] is None
    no_others = ScoreBatch(images, ["a", "b"], [{}, {}], [0, 1])
    text, found = tensors.unpack(OutgoingBatch(no_others).body(RequestHead(), EVERYTHING)[1])
    again = tensors.to_batch(TensorsRequest.model_validate_json(text), found, PixelBounds())
    assert again.source_images is None
    assert again.partner_images is None


@pytest.mark.parametrize("mode", ["1", "L", "P", "RGBA", "CMYK"])
def test_other_modes_go_as_png(mode):
    batch = ScoreBatch(
        [*noise((4, 4)), noise((4, 4))[0].convert(mode)], ["a"] * 2, [{}] * 2, [0, 0]
    )
    assert OutgoingBatch(batch).body(RequestHead(), EVERYTHING)[0] == JSON_BODY


@pytest.mark.parametrize("says", [True, False])
def test_a_service_is_sent_tensors_where_it_says_that_it_takes_them(url, says):
    """One that does not say so, as of an earlier version, is sent JSON."""
    kinds = []

    def note(handler, body):
        kinds.append(handler.headers["Content-Type"])
        handler._pass_on(body)

    def silent(handler, body):
        handler.answer(200, handler.forwarded(body))

    with (
        faulty(url, lambda _: note, None if says else silent) as (before, _),
        client(before) as scorer,
    ):
        assert list(scorer.score(BATCH).values) == RIGHT
    assert kinds == [TENSORS_BODY if says else JSON_BODY]


def test_a_service_that_is_looked_at_again_may_take_less_than_before(url):
    """As when an earlier version has taken its place."""
    kinds = []

    def note(handler, body):
        kinds.append(handler.headers["Content-Type"])
        (FAULTS["another scorer"] if len(kinds) == 1 else type(handler)._pass_on)(handler, body)

    def then_silent(handler, body):
        handler.answer(200, handler.forwarded(body), **({} if kinds else {"Accept-Post": BOTH}))

    with faulty(url, lambda _: note, then_silent) as (before, _), client(before) as scorer:
        assert list(scorer.score(BATCH).values) == RIGHT
    assert kinds == [TENSORS_BODY, JSON_BODY]


# What is refused --------------------------------------------------------------------------------


def request(count=1, **more):
    items = [{"prompt": "a"} for _ in range(count)]
    return json.dumps({"items": items, **more})


def file(found=None, text=None, **metadata):
    entries = {"request": request() if text is None else text, **metadata}
    return save({"items[0].image": GREY} if found is None else found, entries)


def relabelled(**header):
    """A file whose header says something else of its tensor."""
    body = file()
    length = int.from_bytes(body[:8], "little")
    described = json.loads(body[8 : 8 + length])
    described["items[0].image"] |= header
    text = json.dumps(described).encode()
    return len(text).to_bytes(8, "little") + text + body[8 + length :]


REFUSED = {
    "empty": (b"", (400, "invalid_safetensors")),
    "cut in its header": (file()[:50], (400, "invalid_safetensors")),
    "cut in its tensor": (file()[:-1], (400, "invalid_safetensors")),
    "more than its tensors": (file() + b"x", (400, "invalid_safetensors")),
    "a header longer than all": (b"\xff" * 8 + file()[8:], (400, "invalid_safetensors")),
    "offsets beyond the end": (
        relabelled(data_offsets=[0, 10**12]),
        (400, "invalid_safetensors"),
    ),
    "a shape of more than there is": (
        relabelled(shape=[10_000, 10_000, 3]),
        (400, "invalid_safetensors"),
    ),
    "a size that overflows": (relabelled(shape=[2**62, 2**62, 3]), (400, "invalid_safetensors")),
    "no request": (save({"items[0].image": GREY}), (400, "invalid_safetensors")),
    "a request that is no JSON": (file(text="{"), (400, "invalid_json")),
    "a request with NaN": (
        file(text='{"items": [{"prompt": "a", "metadata": {"x": NaN}}]}'),
        (400, "invalid_json"),
    ),
    "half a surrogate pair": (
        file(text='{"items": [{"prompt": "\\ud83d"}]}'),
        (400, "invalid_json"),
    ),
    "no item": (file(text=request(0)), (422, "invalid_request")),
    "an item with a picture of its own": (
        file(text='{"items": [{"prompt": "a", "image": ""}]}'),
        (422, "invalid_request"),
    ),
    "another reward": (file(text=request(rewards=["beauty"])), (422, "unknown_reward")),
    "too many items": (file(text=request(5)), (413, "too_many_items")),
    "an item without a picture": (file(text=request(2)), (422, "bad_image")),
    "a picture without an item": (
        file({"items[0].image": GREY, "items[1].image": GREY}),
        (422, "bad_image"),
    ),
    "another name": (file({"items[0].image": GREY, "x": GREY}), (422, "bad_image")),
    "float": (file({"items[0].image": GREY / 255}), (422, "bad_image")),
    "int8": (file({"items[0].image": GREY.astype(np.int8)}), (422, "bad_image")),
    "channels first": (
        file({"items[0].image": GREY.transpose(2, 0, 1).copy()}),
        (422, "bad_image"),
    ),
    "grey": (file({"items[0].image": GREY[:, :, 0].copy()}), (422, "bad_image")),
    "a batch in one": (file({"items[0].image": GREY[None]}), (422, "bad_image")),
    "no pixels": (file({"items[0].image": GREY[:0]}), (422, "bad_image")),
    "too many pixels": (
        file({"items[0].image": np.zeros((65, 64, 3), np.uint8)}),
        (413, "too_many_pixels"),
    ),
    "too many pixels together": (
        file(
            {f"items[{n}].image": np.zeros((64, 64, 3), np.uint8) for n in range(3)},
            text=request(3),
        ),
        (413, "too_many_pixels"),
    ),
    "too long": (file({"items[0].image": np.zeros((200, 200, 3), np.uint8)}), (413, "too_large")),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_batch_is_refused_with_its_type(url, name):
    body, expected = REFUSED[name]
    answer = post(url, TENSORS_BODY, body)
    assert refused(answer) == expected
    assert len(answer.text) < 1000
    right = post(url, TENSORS_BODY, file())
    assert right.json()["rewards"][NAME]["results"][0]["score"] == GREY_SCORE


def test_a_file_may_say_more_in_its_metadata(url):
    assert post(url, TENSORS_BODY, file(format="np")).status_code == 200
