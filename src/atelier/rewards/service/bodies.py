"""The body of POST /score: read strictly, and documented.

Stricter than a framework's parser, which takes NaN and halves of surrogate pairs: an answer that
repeats one could not be written as JSON.
"""

from __future__ import annotations

from email.message import Message
from typing import Any

from pydantic import ValidationError
from pydantic.json_schema import models_json_schema
from pydantic_core import from_json

from atelier.rewards.service.gate import Refused
from atelier.rewards.service.protocol import ScoreRequest

JSON = "application/json"
_LISTED_PROBLEMS = 5


def read_request(content_type: str, body: bytes) -> ScoreRequest:
    """The batch that a body asks for; the last of equal keys counts.

    Raises:
        Refused: it is of another type (415), no JSON (400), or no request (422). No message
            repeats what was sent.
    """
    if _media_type(content_type) != JSON:
        raise Refused(415, "unsupported_media_type", f"the body must be {JSON}")
    try:
        content = from_json(body, allow_inf_nan=False, cache_strings="none")
    except ValueError as error:
        raise Refused(400, "invalid_json", str(error)) from error
    try:
        return ScoreRequest.model_validate(content)
    except ValidationError as error:
        raise Refused(422, "invalid_request", problems_of(error.errors(), "body")) from error


def problems_of(errors: Any, whole: str) -> str:
    """The first problems that pydantic lists, by their place; `whole` names the outermost one."""
    listed = [
        f"{'.'.join(str(part) for part in error['loc']) or whole}: {error['msg']}"
        for error in errors[:_LISTED_PROBLEMS]
    ]
    more = len(errors) - len(listed)
    return "; ".join([*listed, f"and {more} more"] if more else listed)


def document_bodies(document: dict[str, Any]) -> None:
    """Add to an OpenAPI document what `read_request` reads."""
    _, described = models_json_schema(
        [(ScoreRequest, "validation")], ref_template="#/components/schemas/{model}"
    )
    document["components"]["schemas"] |= described["$defs"]
    schema = {"$ref": f"#/components/schemas/{ScoreRequest.__name__}"}
    body = {"required": True, "content": {JSON: {"schema": schema}}}
    document["paths"]["/score"]["post"]["requestBody"] = body


def _media_type(content_type: str) -> str:
    """Without parameters, such as its charset; text/plain where it is malformed."""
    message = Message()
    message["Content-Type"] = content_type
    return message.get_content_type()
