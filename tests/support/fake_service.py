"""Stands for a reward service where only its coming and going matters.

    python -m tests.support.fake_service LIVES_FILE BEHAVIOUR[,BEHAVIOUR...] --port N --port-file F

Behaviour of its first life, its second, and so on, the last one for ever: `ready`, `loading`,
`failed` (/readyz says so), `N` (ends with that exit code), `deaf` (answers twice, then never).
"""

import json
import os
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    behaviour = "ready"
    answered = 0

    def do_GET(self) -> None:
        type(self).answered += 1
        if self.behaviour == "deaf" and self.answered > 2:
            time.sleep(60)
        state = self.behaviour if self.behaviour in ("loading", "failed") else "ready"
        reward = {"state": state, "reason": "the golden sample is wrong"}
        body = {"ready": state == "ready", "draining": False, "rewards": {"x": reward}}
        content = json.dumps(body).encode()
        self.send_response(200 if state == "ready" else 503)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        pass


def main() -> int:
    lives_file, behaviours = Path(sys.argv[1]), sys.argv[2].split(",")
    options = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
    life = len(lives_file.read_text().splitlines()) if lives_file.exists() else 0
    behaviour = behaviours[min(life, len(behaviours) - 1)]
    with lives_file.open("a") as file:
        file.write(f"{os.getpid()} {options['--port']}\n")
    if behaviour.isdigit():
        sys.stderr.write(f"ConfigError: life {life} ends with {behaviour}\n")
        return int(behaviour)
    Handler.behaviour = behaviour
    server = ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Handler)
    Path(options["--port-file"]).write_text(str(server.server_port))
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
