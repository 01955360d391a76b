"""Pictures of a batch to base64 PNG and back, with bounds that hold before a pixel is decoded."""

from __future__ import annotations

import base64
import binascii
import io
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.ImageFile import ImageFile

from atelier.rewards.base import ScoreBatch
from atelier.rewards.service.protocol import Item, ItemFacts

PICTURE_FIELDS = ("image", "source", "partner")  # of an item
_OTHER_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGBA"})  # than RGB
_SIGNATURE = b"\x89PNG\r\n\x1a\n"


class PictureError(ValueError):
    """A picture that is no PNG, or more pixels than the service takes."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class PixelBounds:
    """Most pixels of one picture, and of all pictures of a request together."""

    picture: int = 4096 * 4096
    request: int = 4 * 4096 * 4096


def to_text(image: Image.Image) -> str:
    """A picture as base64 PNG; modes that PNG does not have become RGB."""
    return base64.b64encode(_png(image)).decode("ascii")


def to_items(batch: ScoreBatch) -> list[Item]:
    """The items of a request, in the order of the batch."""
    sources = batch.source_images or [None] * len(batch)
    partners = batch.partner_images or [None] * len(batch)
    return [
        Item(
            image=to_text(batch.images[i]),
            prompt=batch.prompts[i],
            metadata=dict(batch.metadata[i]),
            group_id=int(batch.group_ids[i]),
            source=_maybe_text(sources[i]),
            partner=_maybe_text(partners[i]),
        )
        for i in range(len(batch))
    ]


def to_batch(items: Sequence[Item], bounds: PixelBounds) -> ScoreBatch:
    """The batch of a request, decoded.

    Raises:
        PictureError: a picture is malformed, or has too many pixels; none was decoded then.
    """
    pictures = {where: _open(text, where) for where, text in _texts(items)}
    require_bounded({where: picture.size for where, picture in pictures.items()}, bounds)
    for where, picture in pictures.items():
        try:
            picture.load()
        except Exception as error:  # a damaged file raises whatever its decoder stumbles over
            raise PictureError("bad_image", f"{where}: {error}") from error
    return assembled(items, pictures)


def place(index: int, field: str) -> str:
    """What a picture of a request is called, in messages too."""
    return f"items[{index}].{field}"


def assembled(items: Sequence[ItemFacts], pictures: Mapping[str, Image.Image]) -> ScoreBatch:
    """The batch of items whose pictures are there by their place; every image must be."""

    def column(field: str) -> list[Image.Image | None]:
        return [pictures.get(place(index, field)) for index in range(len(items))]

    sources, partners = column("source"), column("partner")
    return ScoreBatch(
        images=[pictures[place(index, "image")] for index in range(len(items))],
        prompts=[item.prompt for item in items],
        metadata=[item.metadata for item in items],
        group_ids=[item.group_id for item in items],
        source_images=sources if any(sources) else None,
        partner_images=partners if any(partners) else None,
    )


def require_bounded(sizes: Mapping[str, tuple[int, int]], bounds: PixelBounds) -> None:
    """Raise PictureError where one picture, or all together, have too many pixels.

    Args:
        sizes: width and height of each picture by its place.
    """
    pixels = {where: width * height for where, (width, height) in sizes.items()}
    for where, count in pixels.items():
        if count > bounds.picture:
            text = f"{where}: {count} pixels, at most {bounds.picture} are taken"
            raise PictureError("too_many_pixels", text)
    total = sum(pixels.values())
    if total > bounds.request:
        text = f"{total} pixels in one request, at most {bounds.request} are taken"
        raise PictureError("too_many_pixels", text)


def _png(image: Image.Image) -> bytes:
    """Not compressed where it can be: Pillow's filters and zlib cost 20 times as much as the rest
    of the way (benchmarks/reward_service.py)."""
    if image.mode in _OTHER_PNG_MODES:
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        return buffer.getvalue()
    pixels = np.asarray(image.convert("RGB"))
    height, width, channels = pixels.shape
    rows = np.zeros((height, 1 + channels * width), np.uint8)  # each row begins with filter 0: none
    rows[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)  # 8 bit, RGB
    data = zlib.compress(rows.tobytes(), level=0)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG: length, kind, data, checksum of the last two."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _texts(items: Sequence[Item]) -> Iterator[tuple[str, str]]:
    """Every picture of a request by its place."""
    for index, item in enumerate(items):
        for field in PICTURE_FIELDS:
            text = getattr(item, field)
            if text is not None:
                yield place(index, field), text


def _open(text: str, where: str) -> ImageFile:
    """Read a PNG's header; nothing is decoded yet."""
    try:
        data = base64.b64decode(text, validate=True)
        picture = Image.open(io.BytesIO(data), formats=["PNG"])
    except binascii.Error as error:
        raise PictureError("bad_image", f"{where}: no base64: {error}") from error
    except UnidentifiedImageError as error:  # its words hold an address in memory
        raise PictureError("bad_image", f"{where}: no PNG") from error
    except Image.DecompressionBombError as error:
        raise PictureError("too_many_pixels", f"{where}: {error}") from error
    except Exception as error:  # as in to_batch
        raise PictureError("bad_image", f"{where}: no PNG: {error}") from error
    _require_one_picture_of_8_bits(picture, where)
    return picture


def _require_one_picture_of_8_bits(picture: ImageFile, where: str) -> None:
    """Nobody could say which picture of an animation has the score; Pillow clips 16 bits."""
    if getattr(picture, "is_animated", False):
        raise PictureError("bad_image", f"{where}: an animation")
    if any("16" in str(tile.args) for tile in picture.tile):
        raise PictureError("bad_image", f"{where}: 16 bits a channel, not 8")


def _maybe_text(image: Image.Image | None) -> str | None:
    return None if image is None else to_text(image)
