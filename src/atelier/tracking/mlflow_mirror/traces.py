"""Sampled questions to judges (training/judge_traces.py) as MLflow traces of the run.

They are written through MLflow's own client for a store, with ids made of their content: the
public `mlflow.start_span` sends in the background and to one global store, and swallows what fails.
Sending a line again changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
from collections.abc import Mapping
from typing import Any

from atelier.tracking.events import read_json_lines
from atelier.tracking.mlflow_mirror.target import RUN_TAG, Target, milliseconds

logger = logging.getLogger(__name__)


def send_traces(target: Target) -> None:
    """The lines that were not sent yet."""
    path = target.run.judge_traces
    if not path.exists():
        return
    with path.open("rb") as lines:
        file = hashlib.sha256(lines.readline()).hexdigest()  # another one has another beginning
    known = target.memory.values.get("traces", {})
    start = int(known["offset"]) if known.get("file") == file else 0
    for offset, record in read_json_lines(path, start):
        target.check_deadline()
        try:
            _send(target, record)
        except NotImplementedError as error:
            logger.warning("this MLflow keeps no traces: %s", error)
            return
        target.memory.note(traces={"file": file, "offset": offset})


def _send(target: Target, record: Mapping[str, Any]) -> None:
    from mlflow.entities import Span, TraceInfo, TraceLocation, TraceState
    from mlflow.tracing.client import TracingClient
    from mlflow.tracing.constant import TraceMetadataKey, TraceTagKey

    client = TracingClient(target.uri)
    number = _number(target.run_id, record)
    trace_id = f"tr-{number.hex()}"
    inputs, outputs = _inputs(record), _outputs(record)
    answered = record["missing"] is None
    client.start_trace(
        TraceInfo(
            trace_id=trace_id,
            trace_location=TraceLocation.from_experiment_id(target.experiment_id),
            request_time=milliseconds(record["time"]),
            state=TraceState.OK if answered else TraceState.ERROR,
            request_preview=record["prompt"][:1000],
            response_preview=json.dumps(outputs)[:1000],
            execution_duration=0,
            trace_metadata={TraceMetadataKey.SOURCE_RUN: target.run_id},
            tags={
                TraceTagKey.TRACE_NAME: record["judge"],
                RUN_TAG: str(target.description["id"]),
            },
        )
    )
    span = Span.from_dict(_span(trace_id, number, record, inputs, outputs))
    client.log_spans(target.experiment_id, [span])


def _number(run_id: str, record: Mapping[str, Any]) -> bytes:
    """16 bytes that stand for a line of a run."""
    text = json.dumps([run_id, record], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()[:16]


def _span(
    trace_id: str, number: bytes, record: Mapping[str, Any], inputs: Any, outputs: Any
) -> dict[str, Any]:
    """The trace's only span, as MLflow writes spans. How long it took is not known."""
    at = milliseconds(record["time"]) * 1_000_000
    values = {
        "mlflow.traceRequestId": trace_id,
        "mlflow.spanType": "CHAT_MODEL",
        "mlflow.spanInputs": inputs,
        "mlflow.spanOutputs": outputs,
        "images": [one["sha256"] for one in record["images"]],
        **{f"numbers.{name}": value for name, value in record["numbers"].items()},
    }
    missing = record["missing"]
    return {
        "trace_id": base64.b64encode(number).decode(),
        "span_id": base64.b64encode(number[:8]).decode(),
        "parent_span_id": None,
        "name": record["judge"],
        "start_time_unix_nano": at,
        "end_time_unix_nano": at,
        "events": [],
        "status": {
            "code": "STATUS_CODE_OK" if missing is None else "STATUS_CODE_ERROR",
            "message": missing or "",
        },
        "attributes": {name: json.dumps(value) for name, value in values.items()},
    }


def _inputs(record: Mapping[str, Any]) -> dict[str, Any]:
    """The question in the form of a chat, which MLflow shows with its images."""
    system = [{"role": "system", "content": record["system"]}] if record["system"] else []
    images = [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{one['png']}"}}
        for one in record["images"]
    ]
    text = {"type": "text", "text": record["prompt"]}
    return {"messages": [*system, {"role": "user", "content": [*images, text]}]}


def _outputs(record: Mapping[str, Any]) -> dict[str, Any]:
    known = ("numbers", "missing", "measured", "asked", "replies")
    return {name: record[name] for name in known}
