"""The reward service against requests made from its own OpenAPI document (schemathesis).

Every operation is asked with what the document allows and with what it does not, over HTTP, under a
real uvicorn. Half of the pictures are real ones, so that requests reach the scorer too.
"""

import json

import httpx
import numpy as np
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.numpy import save

from atelier.rewards.service.app import Limits, create_app
from atelier.rewards.service.gate import Bounds
from atelier.rewards.service.pictures import PixelBounds, to_items, to_text
from atelier.rewards.service.protocol import TENSORS_BODY, ErrorAnswer
from tests.support.reward_services import BATCH, NAME, RIGHT, service

LIMITS = Limits(Bounds(200_000, 2.0, 4), PixelBounds(64 * 64, 8 * 64 * 64), items=8, seconds=5.0)
PICTURE = to_text(Image.new("RGB", (8, 8), "grey"))
# What a service may say of itself with 5xx; anything else of 500 and more is a crash.
REFUSALS = {"not_ready", "draining", "queue_full"}

document = create_app({}, LIMITS).openapi()
schema = schemathesis.openapi.from_dict(document)
schema.config.generation.update(max_examples=150, deterministic=True)


def tensor_file(names, shape, kind, request, cut):
    """Nearly a batch of tensors, or one."""
    pixels = {name: np.zeros(shape, kind) for name in names}
    return save(pixels, {"request": json.dumps(request)})[:cut]


PLACES = [f"items[{index}].{field}" for index in (0, 1) for field in ("image", "source", "partner")]
ITEMS = st.lists(st.fixed_dictionaries({"prompt": st.text(max_size=5)}), max_size=3)
FILES = st.binary(max_size=200) | st.builds(
    tensor_file,
    st.sets(st.sampled_from(PLACES) | st.text(max_size=9), max_size=4) | st.just({PLACES[0]}),
    st.sampled_from([(8, 8, 3), (1, 1, 3), (0, 8, 3), (8, 3), (3, 8, 8), (65, 64, 3), (99, 99, 3)]),
    st.sampled_from(["uint8", "int8", "float16", "bool"]),
    st.fixed_dictionaries({"items": ITEMS}) | st.just({"items": [{"prompt": "a"}]}) | st.integers(),
    st.none() | st.integers(-99, 999),
)
schemathesis.openapi.media_type(TENSORS_BODY, FILES)


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
    require_answer(response)
    require_right_scores(url)


@given(body=FILES)
@settings(deadline=None, max_examples=150, derandomize=True)
def test_every_file_of_tensors_is_scored_or_refused(url, body):
    """More of them than the document's test makes."""
    headers = {"Content-Type": TENSORS_BODY}
    answer = httpx.post(f"{url}/score", content=body, headers=headers, trust_env=False, timeout=20)
    assert answer.status_code in (200, 400, 413, 422)
    require_answer(answer)
    require_right_scores(url)


def require_answer(response):
    """A refusal has its typed body, and one of 5xx is among the documented ones."""
    if response.status_code < 400:
        return
    error = ErrorAnswer.model_validate_json(response.content).error
    if response.status_code >= 500:
        assert (response.status_code, error.retryable) == (503, True), error
        assert error.type in REFUSALS


def require_right_scores(url):
    body = {"items": [item.model_dump() for item in to_items(BATCH)]}
    answer = httpx.post(f"{url}/score", json=body, trust_env=False, timeout=20)
    results = answer.json()["rewards"][NAME]["results"]
    assert [one["score"] for one in results] == RIGHT
