"""The requests that draw completions, answered without a model: what a server knows and loses."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]


class StandIn:
    """Behaves as vLLM does, and remembers what it was asked.

    Attributes:
        says: log-probs that it has of a prompt's tokens, all but the first.
        writes: tokens of every completion.
        statuses: answered first, one a request.
        placeholders: what a prompt's image becomes: the token, and how many of it.
        adapters: names that are loaded, and from where.
        version: of weights that were read in place.
    """

    def __init__(self) -> None:
        self.url = ""
        self.says: Sequence[float] = ()
        self.writes: list[int] = []
        self.statuses: list[int] = []
        self.placeholders: tuple[int, int] | None = None
        self.adapters: dict[str, str] = {}
        self.version = "default"
        self.asked: list[tuple[str, Json]] = []
        self._lock = threading.Lock()

    def restart(self) -> None:
        """All that it was brought is gone."""
        self.adapters, self.version = {}, "default"

    def paths(self) -> list[str]:
        """Of what it was asked to do, the looking left out."""
        looks = ("/v1/models", "/weight_info")
        return [path for path, _ in self.asked if path not in looks]

    def answer(self, path: str, body: Json) -> tuple[int, Json]:
        with self._lock:
            self.asked.append((path, body))
            if self.statuses:
                return self.statuses.pop(0), {"error": "not now"}
            return self._answer(path, body)

    def _answer(self, path: str, body: Json) -> tuple[int, Json]:
        if path == "/v1/models":
            return 200, {"data": [{"id": name} for name in ("policy", *self.adapters)]}
        if path == "/weight_info":
            return 200, {"weight_version": self.version}
        if path == "/v1/load_lora_adapter":
            if body["lora_name"] in self.adapters:
                return 400, {"error": "has already been loaded"}
            self.adapters[body["lora_name"]] = body["lora_path"]
            return 200, {}
        if path == "/v1/unload_lora_adapter":
            return (200, {}) if self.adapters.pop(body["lora_name"], None) else (404, {})
        if path == "/update_weight_version":
            self.version = body["new_version"]
        if path != "/inference/v1/generate":
            return 200, {"success": True}
        if body["model"] not in ("policy", *self.adapters):
            return 404, {"error": f"The model {body['model']} does not exist"}
        return 200, self._generated(body)

    def _generated(self, body: Json) -> Json:
        asked, tokens = body["sampling_params"], body["token_ids"]
        if "prompt_logprobs" in asked:
            known = [
                {str(token): {"logprob": float(one)}}
                for token, one in zip(tokens[1:], self.says, strict=True)
            ]
            return {**self._choice(body, [0]), "prompt_logprobs": [None, *known]}
        return self._choice(body, self.writes)

    def _choice(self, body: Json, tokens: Sequence[int]) -> Json:
        spans = [{"version": self.version, "start": 0, "end": len(tokens)}]
        is_long = len(tokens) == body["sampling_params"]["max_tokens"]
        choice = {
            "token_ids": list(tokens),
            "finish_reason": "length" if is_long else "stop",
            "weight_versions": spans,
            "logprobs": {"content": [{"logprob": -1.5} for _ in tokens]},
        }
        read = body["token_ids"]
        if self.placeholders is not None:
            mark, count = self.placeholders
            read = [one for token in read for one in [token] * (count if token == mark else 1)]
        return {"model": body["model"], "prompt_token_ids": read, "choices": [choice]}


@contextmanager
def sampler_endpoint() -> Iterator[StandIn]:
    stand_in = StandIn()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._reply({})

        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._reply(json.loads(content or b"null") or {})

        def _reply(self, body: Json) -> None:
            status, answer = stand_in.answer(self.path, body)
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    listening = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=listening.serve_forever, daemon=True)
    thread.start()
    stand_in.url = f"http://127.0.0.1:{listening.server_port}"
    try:
        yield stand_in
    finally:
        listening.shutdown()
        listening.server_close()
        thread.join()
