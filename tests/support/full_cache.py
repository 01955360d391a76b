"""A real reward service that asks a judge and keeps its answers on a disk with room for two.

The disk is a file system in a mount namespace of the service's own (see small_disk.py); the judge
is an endpoint in this process that knows each image by its size.
"""

from __future__ import annotations

import base64
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from PIL import Image

from atelier.config.digest import scorer_digest
from atelier.config.sections.judge import JudgeConfig
from atelier.config.sections.rewards import YesNoConfig
from atelier.rewards import ScoreBatch
from atelier.rewards.client.remote import RemoteScorer
from atelier.rewards.scorers.judges import SharedJudge
from atelier.rewards.scorers.yes_no import YesNoScorer
from tests.support.judge_endpoint import Call, judge_endpoint, said
from tests.support.reward_services import wait_until

NAMESPACE = ("unshare", "--map-root-user", "--mount")
QUESTIONS = {"fits": "Does it show {prompt}?"}
SIDES = range(20, 32)
BATCH = ScoreBatch(
    [Image.new("RGB", (side, side)) for side in SIDES],
    ["a square"] * len(SIDES),
    [{}] * len(SIDES),
    list(SIDES),
)
RIGHT = [side / 100 for side in SIDES]


async def _knows(call: Call):
    """P(yes) is a hundredth of the image's side; right of the golden sample, too."""
    url = call.body["messages"][-1]["content"][0]["image_url"]["url"]
    side = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))).width
    golden = {"a red circle": 0.9, "a blue square": 0.1}
    known = [value for words, value in golden.items() if words in call.prompt]
    yes = known[0] if known else side / 100
    return said("Yes", first_token=[("Yes", math.log(yes)), ("No", math.log(1 - yes))])


@contextmanager
def service_with_full_cache(folder: Path) -> Iterator[tuple[RemoteScorer, Path]]:
    """Its client, and its log."""
    cache, log, port_file = folder / "cache", folder / "log", folder / "port"
    cache.mkdir()
    with judge_endpoint() as judge, log.open("wb") as output:
        judge.acts(_knows)
        section = {"questions": QUESTIONS, "judge": "small"}
        own = {"model": "m", "placement": "remote", "urls": [judge.url]}
        own["cache"] = {"folder": str(cache)}
        settings = {"rewards": {"yes_no": section}, "judges": {"small": own}}
        (folder / "rewards.yaml").write_text(json.dumps(settings))
        arguments = f"--config {folder}/rewards.yaml --port 0 --port-file {port_file}"
        small = f"mount -t tmpfs -o size=16k,nr_inodes=32 tmpfs {cache}"
        process = subprocess.Popen(
            [
                *NAMESPACE,
                "sh",
                "-c",
                f"{small} && exec {sys.executable} -m atelier.rewards.service {arguments}",
            ],
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        try:
            wait_until(lambda: port_file.exists() or process.poll() is not None, 60)
            if process.poll() is not None:
                pytest.skip(f"a small file system cannot be mounted here: {log.read_text()[-300:]}")
            url = f"http://127.0.0.1:{int(port_file.read_text())}"
            wait_until(lambda: httpx.get(f"{url}/readyz", trust_env=False).status_code == 200, 60)
            config, judged = YesNoConfig.model_validate(section), JudgeConfig.model_validate(own)
            scorer = YesNoScorer(config, SharedJudge(judged, "judges.small"))
            digest = scorer_digest("yes_no", config, judged)
            client = RemoteScorer(scorer, [url], digest, deadline=30.0)
            yield client, log
            client.close()
        finally:
            process.terminate()
            process.wait(20)
