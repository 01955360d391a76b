"""What goes over the wire: JSON, images as base64 PNG or beside it as tensors (tensors.py). Client
and service share these classes.

A score is a finite JSON number in full double precision, or there is none and an error says why:
an absence cannot be mistaken for a score.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

TOKEN_VARIABLE = "ATELIER_REWARD_TOKEN"
MANAGED_TOKEN_VARIABLE = "ATELIER_MANAGED_REWARD_TOKEN"  # the trainer's, for services of its run

# Media types of a batch; the header Accept-Post of /version says which ones a service takes.
JSON_BODY, TENSORS_BODY = "application/json", "application/x-safetensors"

# Of every answer to /score: requests that wait or are scored as it leaves, a scored one included.
QUEUE_HEADER = "X-Atelier-Queue"

FiniteFloat = Annotated[float, Field(allow_inf_nan=False)]
State = Literal["loading", "ready", "failed"]


class Message(BaseModel):
    """Base of all that is sent: unknown fields are errors, and so is text for a number."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class ItemFacts(Message):
    """What is known of one image."""

    prompt: str
    metadata: dict[str, Any] = Field({}, description="What the prompt's data set says of it.")
    group_id: int = Field(0, description="Equal for the images of one prompt.")


class Item(ItemFacts):
    """One image to score."""

    image: str = Field(description="The image, a PNG in base64.")
    source: str | None = Field(None, description="The image that was edited, a PNG in base64.")
    partner: str | None = Field(None, description="The paired prompt's image, a PNG in base64.")


class RequestHead(Message):
    """A request but for its items."""

    rewards: list[str] | None = Field(None, description="Which rewards; all of them if not given.")
    request_id: str = Field("", max_length=100, description="Comes back with the answer.")
    timeout: float | None = Field(
        None, gt=0, allow_inf_nan=False, description="Seconds after which nobody waits any more."
    )


class ScoreRequest(RequestHead):
    """A batch. A scorer sees exactly these images together."""

    items: list[Item] = Field(min_length=1)


class TensorsRequest(RequestHead):
    """A batch whose images are tensors beside it."""

    items: list[ItemFacts] = Field(min_length=1)


class Error(Message):
    """Why there is no score, or no answer. `retryable`: asking again later may help."""

    type: str
    message: str
    retryable: bool


class Result(Message):
    """One image's score by one reward, with what the scorer saw; or the error."""

    score: FiniteFloat | None = None
    detail: dict[str, Any] = {}
    error: Error | None = None

    @model_validator(mode="after")
    def _score_or_error(self) -> Result:
        if (self.score is None) == (self.error is None):
            raise ValueError("a result has a score or an error")
        return self


class Identity(Message):
    """What scores. Two scores compare only where these are equal."""

    version: str = Field(description="Code: packages, models, mode.")
    config: str = Field(description="sha256 of the reward's configuration.")
    weights: str | None = Field(None, description="sha256 of its model files, if it has any.")


class RewardAnswer(Message):
    """One reward's results, in the order of the items."""

    identity: Identity
    results: list[Result]


class ScoreAnswer(Message):
    request_id: str
    rewards: dict[str, RewardAnswer]


class ErrorAnswer(Message):
    """The body of every answer that is not 2xx, but for /readyz."""

    error: Error


class RewardState(Message):
    state: State
    reason: str | None = None


class Readiness(Message):
    """200 and `ready` when every reward's golden sample is within its tolerance, else 503."""

    ready: bool
    draining: bool
    rewards: dict[str, RewardState]


class VersionAnswer(Message):
    service: str = Field(description="Version of Atelier.")
    rewards: dict[str, Identity]


class DrainAnswer(Message):
    """`running`: requests that were still running when the wait ended; 0 when drained."""

    running: int
