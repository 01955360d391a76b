"""What nobody should send to a reward service: each is refused with its status and type, and the
service scores right afterwards."""

import base64
import io
import json
import struct
import tracemalloc
import zlib

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from atelier.rewards.base import Scores
from atelier.rewards.service.app import Limits
from atelier.rewards.service.gate import Bounds
from atelier.rewards.service.pictures import PictureError, PixelBounds, to_batch, to_items, to_text
from atelier.rewards.service.protocol import Item
from tests.support.reward_services import BATCH, NAME, RIGHT, Scripted, service

TOKEN = "sesam"
LIMITS = Limits(Bounds(4 << 20, 5.0, 4), PixelBounds(1 << 20, 4 << 20), items=64, seconds=10.0)
GREY = Image.new("RGB", (8, 8), "grey")


class Echo(Scripted):
    """Its details repeat the metadata, as OCR's repeat the target."""

    def score(self, batch):
        return Scores(self.name, super().score(batch).values, batch.metadata)


@pytest.fixture(scope="module")
def url():
    with service(Echo(), limits=LIMITS, token=TOKEN) as found:
        yield found


@pytest.fixture(autouse=True)
def _still_right(url):
    """After every refusal the service answers, and scores right."""
    yield
    body = {"items": [one.model_dump() for one in to_items(BATCH)]}
    results = post(url, json.dumps(body).encode()).json()["rewards"][NAME]["results"]
    assert [one["score"] for one in results] == RIGHT


def post(url, content, kind="application/json", token=f"Bearer {TOKEN}"):
    headers = {"Content-Type": kind, "Authorization": token}
    sent = {key: value.encode() for key, value in headers.items() if value is not None}
    return httpx.post(f"{url}/score", content=content, headers=sent, trust_env=False, timeout=30)


def refused(answer):
    """Status and type of a refusal, whose text is short."""
    assert len(answer.text) < 2000
    return answer.status_code, answer.json()["error"]["type"]


def with_image(text):
    return json.dumps({"items": [{"image": text, "prompt": "a"}]}).encode()


# Pictures ---------------------------------------------------------------------------------------


def encoded(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def with_chunk(kind, data):
    """A sound PNG with one more chunk behind its header."""
    png = encoded(GREY)
    end = 8 + 4 + 4 + 13 + 4
    return png[:end] + chunk(kind, data) + png[end:]


def zeros(mebibytes):
    """So many zeros, deflated."""
    packer = zlib.compressobj(9)
    return b"".join(packer.compress(bytes(1 << 20)) for _ in range(mebibytes)) + packer.flush()


def bad_checksum():
    png = encoded(GREY)
    return png[:29] + bytes(4) + png[33:]


PICTURES = {
    "empty": b"",
    "text": b"a picture of a cat",
    "signature only": b"\x89PNG\r\n\x1a\n",
    "cut in its header": encoded(GREY)[:20],
    "cut in its pixels": encoded(Image.effect_noise((64, 64), 90))[:-500],
    "wrong checksum": bad_checksum(),
    "no pixels": encoded(GREY)[:33] + chunk(b"IEND", b""),
    "GIF": encoded(GREY, "GIF"),
    "BMP": encoded(GREY, "BMP"),
    "WebP": encoded(GREY, "WEBP"),
    "JPEG, CMYK": encoded(GREY.convert("CMYK"), "JPEG"),
    "animation": encoded(GREY, save_all=True, append_images=[Image.new("RGB", (8, 8), "red")]),
    "16 bits": encoded(Image.fromarray(np.full((8, 8), 40_000, np.uint16))),
    "no pixels wide": encoded(GREY)[:8]
    + chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 8, 8, 2, 0, 0, 0)),
    "a text that unpacks to 64 MiB": with_chunk(b"zTXt", b"Comment\0\0" + zeros(64)),
    "a profile that unpacks to 64 MiB": with_chunk(b"iCCP", b"profile\0\0" + zeros(64)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_that_is_not_a_sound_png_is_refused(url, name):
    text = base64.b64encode(PICTURES[name]).decode()
    answer = post(url, with_image(text))
    assert refused(answer) == (422, "bad_image")
    assert "items[0].image" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "text", ["=", "A", "AAA", "AA==AA==", "a b", "\u4e2d", "-_-_", "data:image/png;base64,AAAA"]
)
def test_text_that_is_no_base64_is_refused(url, text):
    assert refused(post(url, with_image(text))) == (422, "bad_image")


def test_text_beside_a_picture_is_no_part_of_it(url):
    """A short text in a PNG harms nobody."""
    note = PngInfo()
    note.add_text("Comment", "x" * 1000, zip=True)
    text = base64.b64encode(encoded(GREY, pnginfo=note)).decode()
    assert post(url, with_image(text)).status_code == 200


# 100 megapixels in some 12 kB: a sound PNG.
LARGE = base64.b64encode(encoded(Image.new("1", (10_000, 10_000)))).decode()


def claimed(width, height):
    """A PNG of a few bytes that says it is of that size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"")), chunk(b"IEND", b""))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    "text",
    [LARGE, claimed(2**31 - 1, 2**31 - 1), claimed(2**31 - 1, 1), claimed(1025, 1024)],
    ids=["100 megapixels", "as large as can be", "as wide as can be", "one column too many"],
)
def test_too_many_pixels_are_refused(url, text):
    assert len(text) < 200_000
    assert refused(post(url, with_image(text))) == (413, "too_many_pixels")


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_picture_of_too_many_pixels_is_not_decoded():
    """100 megapixels would be 100 MB; looking at the header takes next to nothing."""
    item = Item(image=LARGE, prompt="a")
    before = psutil.Process().memory_info().rss
    tracemalloc.start()
    with pytest.raises(PictureError, match="100000000 pixels"):
        to_batch([item] * 16, PixelBounds())
    assert tracemalloc.get_traced_memory()[1] < 10e6
    tracemalloc.stop()
    assert psutil.Process().memory_info().rss - before < 50e6


# Bodies -----------------------------------------------------------------------------------------


def metadata(text):
    """A sound request but for what stands in an item's metadata."""
    item = f'{{"image": "{to_text(GREY)}", "prompt": "a", "metadata": {{"x": {text}}}}}'
    return f'{{"items": [{item}]}}'.encode()


@pytest.mark.parametrize(
    "body",
    {
        "empty": b"",
        "NaN": metadata("NaN"),
        "Infinity": metadata("Infinity"),
        "minus Infinity": metadata("-Infinity"),
        "more digits than anything reads": metadata("9" * 5000),
        "nested 10 000 times": metadata("[" * 10_000 + "]" * 10_000),
        "never closed": b'{"a":' * 50_000,
        "no UTF-8": metadata('"\xff"').replace(b"\xc3\xbf", b"\xff"),
        "half a surrogate pair": metadata('"\\ud83d"'),
        "the other half": metadata('"\\ude00"'),
        "a control character": metadata('"\n"').replace(b"\\n", b"\n"),
        "a comma too many": metadata("[1,]"),
        "two documents": metadata("1") * 2,
        "UTF-16": metadata("1").decode().encode("utf-16"),
    }.items(),
    ids=lambda item: item[0],
)
def test_what_is_no_json_is_refused(url, body):
    assert refused(post(url, body[1])) == (400, "invalid_json")


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("9" * 400, int("9" * 400)),
        ("1e400", "inf"),
        ("[" * 150 + "]" * 150, None),
        ('"\\ud83d\\ude00\\u0000"', "\N{GRINNING FACE}\0"),
        ("1, " + '"x": 2', 2),
    ],
    ids=["a huge integer", "more than a double", "nested 150 times", "pairs and NUL", "equal keys"],
)
def test_odd_json_is_scored_and_comes_back_as_it_was_read(url, text, seen):
    """Of equal keys the last one counts."""
    (result,) = post(url, metadata(text)).json()["rewards"][NAME]["results"]
    assert result["score"] == Scripted().score(type(BATCH)([GREY], ["a"], [{}], [0])).values[0]
    if seen is not None:
        assert result["detail"] == {"x": seen}


@pytest.mark.parametrize(
    "change",
    [
        {"timeout": 10**400},
        {"timeout": 0},
        {"timeout": "1"},
        {"request_id": "x" * 101},
        {"rewards": NAME},
        {"items": None},
        {"items": {"0": {}}},
        {"surprise": 1},
    ],
    ids=str,
)
def test_json_that_is_no_request_is_refused(url, change):
    body = {"items": [{"image": to_text(GREY), "prompt": "a"}]} | change
    assert refused(post(url, json.dumps(body).encode())) == (422, "invalid_request")


def test_a_refusal_of_a_long_name_is_short(url):
    body = {"items": [{"image": "", "prompt": ""}], "rewards": ["beauty\n" * 100_000]}
    assert refused(post(url, json.dumps(body).encode())) == (422, "unknown_reward")


def test_ten_thousand_items_are_refused_before_any_is_looked_at(url):
    body = {"items": [{"image": "no picture", "prompt": "a"}] * 10_000}
    assert refused(post(url, json.dumps(body).encode())) == (413, "too_many_items")


@pytest.mark.parametrize(
    "kind",
    [
        None,
        "",
        "json",
        "text/plain",
        "text/json",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
        "application/json/x",
        "application/xml, application/json",
    ],
)
def test_another_content_type_is_refused(url, kind):
    assert refused(post(url, metadata("1"), kind)) == (415, "unsupported_media_type")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON"])
def test_a_content_type_may_have_parameters_and_capitals(url, kind):
    assert post(url, metadata("1"), kind).status_code == 200


@pytest.mark.parametrize("length", [(4 << 20) + 1, 20 << 20])
@pytest.mark.parametrize("way", ["declared", "chunked"])
def test_a_body_over_the_bound_is_refused_however_it_comes(url, length, way):
    body = bytes(length)
    pieces = (
        body if way == "declared" else (body[at : at + 65536] for at in range(0, length, 65536))
    )
    assert refused(post(url, pieces)) == (413, "too_large")


# Tokens -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "token",
    [
        None,
        "",
        "Bearer",
        TOKEN,
        f"Basic {base64.b64encode(f'x:{TOKEN}'.encode()).decode()}",
        f"Bearer  {TOKEN}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer {TOKEN.upper()}",
        "Bearer sesäm",
        "Bearer \N{GRINNING FACE}",
        "Bearer " + TOKEN * 8_000,
    ],
    ids=lambda token: repr(token)[:30],
)
def test_without_the_token_nothing_is_read(url, token):
    answer = post(url, b"{", token=token)  # which would be refused too
    assert refused(answer) == (401, "unauthorized")
    assert answer.headers["WWW-Authenticate"] == "Bearer"
