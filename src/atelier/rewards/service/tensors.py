"""A batch as one safetensors file: large pictures cost a fraction of what PNG and base64 do.

Pictures are tensors of 8-bit RGB, (height, width, 3), named by their place: `items[0].image`. The
metadata entry `request` is a `TensorsRequest` in JSON. Only RGB is sent so: other modes go as PNG,
which keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from PIL import Image
from pydantic_core import from_json, to_json
from safetensors import SafetensorError, deserialize

from atelier.rewards.base import ScoreBatch
from atelier.rewards.service.pictures import (
    PICTURE_FIELDS,
    PictureError,
    PixelBounds,
    assembled,
    place,
    require_bounded,
)
from atelier.rewards.service.protocol import TensorsRequest

_REQUEST = "request"
Tensors = Mapping[str, Mapping[str, Any]]  # place -> dtype, shape, data


def fits(batch: ScoreBatch) -> bool:
    """Whether every picture is RGB."""
    return all(picture.mode == "RGB" for _, picture in _pictures(batch))


def pack(batch: ScoreBatch, request: TensorsRequest) -> bytes:
    """The file of a batch that fits: the length of the header, the header, the pixels.

    Written here: safetensors' own `save` wants arrays, and making them costs as much as the rest.
    """
    header: dict[str, Any] = {"__metadata__": {_REQUEST: request.model_dump_json()}}
    pixels, end = [], 0
    for where, picture in _pictures(batch):
        pixels.append(picture.tobytes())
        begin, end = end, end + len(pixels[-1])
        shape = [picture.height, picture.width, 3]
        header[where] = {"dtype": "U8", "shape": shape, "data_offsets": [begin, end]}
    text = to_json(header)
    return b"".join([len(text).to_bytes(8, "little"), text, *pixels])


def unpack(body: bytes) -> tuple[str, Tensors]:
    """The request's JSON and the tensors of a file; no tensor is looked at.

    Raises:
        ValueError: it is no safetensors file, or has no request.
    """
    try:
        tensors = dict(deserialize(body))
    except SafetensorError as error:
        raise ValueError("no safetensors file") from error  # its words may repeat a name
    header = from_json(body[8 : 8 + int.from_bytes(body[:8], "little")], cache_strings="none")
    request = (header.get("__metadata__") or {}).get(_REQUEST)
    if request is None:
        raise ValueError(f"no {_REQUEST} in the file's metadata")
    return request, tensors


def to_batch(request: TensorsRequest, tensors: Tensors, bounds: PixelBounds) -> ScoreBatch:
    """The batch of a request.

    Raises:
        PictureError: a tensor is no picture or belongs to no item, an item has no image, or there
            are too many pixels.
    """
    indices = range(len(request.items))
    for where in (place(index, "image") for index in indices):
        if where not in tensors:
            raise PictureError("bad_image", f"there is no tensor {where}")
    if tensors.keys() - {place(index, field) for index in indices for field in PICTURE_FIELDS}:
        raise PictureError("bad_image", "a tensor belongs to no item")
    sizes = {where: _size(where, tensor) for where, tensor in tensors.items()}
    require_bounded(sizes, bounds)
    pictures = {where: _picture(sizes[where], tensor["data"]) for where, tensor in tensors.items()}
    return assembled(request.items, pictures)


def _pictures(batch: ScoreBatch) -> Iterator[tuple[str, Image.Image]]:
    columns = (batch.images, batch.source_images, batch.partner_images)
    for field, column in zip(PICTURE_FIELDS, columns, strict=True):
        for index, picture in enumerate(column or ()):
            if picture is not None:
                yield place(index, field), picture


def _picture(size: tuple[int, int], data: bytes) -> Image.Image:
    """As `Image.frombytes`, which fills the picture with black before and takes twice as long."""
    picture = Image.new("RGB", size, None)
    picture.frombytes(data)
    return picture


def _size(where: str, tensor: Mapping[str, Any]) -> tuple[int, int]:
    """Width and height.

    Raises:
        PictureError: it is no picture.
    """
    shape = tensor["shape"]
    if tensor["dtype"] != "U8" or len(shape) != 3 or shape[2] != 3 or 0 in shape:
        raise PictureError("bad_image", f"{where}: not of uint8, (height, width, 3)")
    return shape[1], shape[0]
