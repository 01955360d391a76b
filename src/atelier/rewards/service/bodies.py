"""The body of POST /score: read strictly, and documented.

Stricter than a framework's parser, which takes NaN and halves of surrogate pairs: an answer that
repeats one could not be written as JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json

from atelier.rewards.base import ScoreBatch
from atelier.rewards.service import pictures, tensors
from atelier.rewards.service.gate import Refused
from atelier.rewards.service.pictures import PixelBounds
from atelier.rewards.service.protocol import (
    JSON_BODY,
    TENSORS_BODY,
    RequestHead,
    ScoreRequest,
    TensorsRequest,
)

BODIES = (JSON_BODY, TENSORS_BODY)
_LISTED_PROBLEMS = 5
_TENSORS = {
    "type": "string",
    "format": "binary",
    "description": "A safetensors file. Its metadata entry `request` is a TensorsRequest in JSON; "
    "its tensors are pictures in 8-bit RGB, (height, width, 3), named items[0].image, "
    "items[0].source, items[0].partner and so on.",
}

Request = TypeVar("Request", bound=RequestHead)


@dataclass(frozen=True)
class Received:
    """A batch that was read, its pictures not decoded.

    Attributes:
        count: of its images.
        decoded: the batch itself; raises PictureError.
    """

    head: RequestHead
    count: int
    decoded: Callable[[PixelBounds], ScoreBatch]


def read_body(content_type: str, body: bytes) -> Received:
    """The batch in a body; of equal keys the last one counts.

    Raises:
        Refused: it is of another type (415), not of its type (400), or no request (422). No
            message repeats what was sent.
    """
    kind = _media_type(content_type)
    if kind == JSON_BODY:
        items = (request := _parsed(body, ScoreRequest)).items
        return Received(request, len(items), lambda bounds: pictures.to_batch(items, bounds))
    if kind == TENSORS_BODY:
        return _with_tensors(body)
    raise Refused(415, "unsupported_media_type", f"the body must be {' or '.join(BODIES)}")


def problems_of(errors: Any, whole: str) -> str:
    """The first problems that pydantic lists, by their place; `whole` names the outermost one."""
    listed = [
        f"{'.'.join(str(part) for part in error['loc']) or whole}: {error['msg']}"
        for error in errors[:_LISTED_PROBLEMS]
    ]
    more = len(errors) - len(listed)
    return "; ".join([*listed, f"and {more} more"] if more else listed)


def document_bodies(document: dict[str, Any]) -> None:
    """Add to an OpenAPI document what `read_body` reads."""
    kinds = (ScoreRequest, TensorsRequest)
    _, described = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    document["components"]["schemas"] |= described["$defs"]
    reference = {"$ref": f"#/components/schemas/{ScoreRequest.__name__}"}
    content = {JSON_BODY: {"schema": reference}, TENSORS_BODY: {"schema": _TENSORS}}
    document["paths"]["/score"]["post"]["requestBody"] = {"required": True, "content": content}


def _with_tensors(body: bytes) -> Received:
    try:
        text, found = tensors.unpack(body)
    except ValueError as error:
        raise Refused(400, "invalid_safetensors", str(error)) from error
    request = _parsed(text, TensorsRequest)
    return Received(
        request, len(request.items), lambda bounds: tensors.to_batch(request, found, bounds)
    )


def _parsed(text: str | bytes, kind: type[Request]) -> Request:
    try:
        content = from_json(text, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise Refused(400, "invalid_json", str(error)) from error
    try:
        return kind.model_validate(content)
    except ValidationError as error:
        raise Refused(422, "invalid_request", problems_of(error.errors(), "body")) from error


def _media_type(content_type: str) -> str:
    """Without parameters, such as its charset."""
    return content_type.partition(";")[0].strip().lower()
