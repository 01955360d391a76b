"""The reward service against requests made from its own OpenAPI document (schemathesis).

Every operation is asked with what the document allows and with what it does not, over HTTP, under a
real uvicorn. Half of the pictures are real ones, so that requests reach the scorer too.
"""

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from PIL import Image

from atelier.rewards.service.app import Limits, create_app
from atelier.rewards.service.gate import Bounds
from atelier.rewards.service.pictures import PixelBounds, to_items, to_text
from atelier.rewards.service.protocol import ErrorAnswer
from tests.support.reward_services import BATCH, NAME, RIGHT, service

LIMITS = Limits(Bounds(200_000, 2.0, 4), PixelBounds(64 * 64, 8 * 64 * 64), items=8, seconds=5.0)
PICTURE = to_text(Image.new("RGB", (8, 8), "grey"))
# What a service may say of itself with 5xx; anything else of 500 and more is a crash.
REFUSALS = {"not_ready", "draining", "queue_full"}

document = create_app({}, LIMITS).openapi()
schema = schemathesis.openapi.from_dict(document)
schema.config.generation.update(max_examples=150, deterministic=True)


@schema.hook
def map_body(context, body):
    """Some pictures are pictures, and some rewards are there."""
    if isinstance(body, dict) and isinstance(items := body.get("items"), list):
        for item in items:
            if isinstance(item, dict) and len(str(item.get("prompt"))) % 2:
                item |= {key: PICTURE for key in ("image", "source", "partner") if key in item}
        if body.get("rewards"):
            body["rewards"] = [NAME]
    return body


@pytest.fixture(scope="module")
def url():
    with service(limits=LIMITS) as found:
        yield found


@pytest.fixture(scope="module")
def draining():
    """A service that may be drained, which ends its scoring for good."""
    with service(limits=LIMITS) as found:
        yield found


@schema.parametrize()
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_a_documented_one_and_the_next_score_is_right(case, url, draining):
    where = draining if case.path == "/drain" else url
    response = case.call(base_url=where)
    # Other checks ask for more than the document says, such as 405 for TRACE.
    case.validate_response(
        response,
        checks=[
            schemathesis.checks.CHECKS.get_one("status_code_conformance"),
            schemathesis.checks.CHECKS.get_one("content_type_conformance"),
            schemathesis.checks.CHECKS.get_one("response_schema_conformance"),
        ],
    )
    if response.status_code >= 500:
        error = ErrorAnswer.model_validate_json(response.content).error
        assert (response.status_code, error.retryable) == (503, True), error
        assert error.type in REFUSALS
    require_right_scores(url)


def require_right_scores(url):
    body = {"items": [item.model_dump() for item in to_items(BATCH)]}
    answer = httpx.post(f"{url}/score", json=body, trust_env=False, timeout=20)
    results = answer.json()["rewards"][NAME]["results"]
    assert [one["score"] for one in results] == RIGHT
