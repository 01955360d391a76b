"""The reward service under a real uvicorn: what it answers, and what it refuses."""

import asyncio
import base64
import io
import json
import os
import socket
import subprocess
import sys
import threading
import zlib
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from PIL import Image

from atelier.config.loopback import is_loopback
from atelier.config.sections.rewards import RewardsConfig
from atelier.errors import ConfigError
from atelier.rewards.base import Missing
from atelier.rewards.service.app import Limits, _proving
from atelier.rewards.service.details import plain_detail
from atelier.rewards.service.gate import Bounds, Door
from atelier.rewards.service.metrics import Metrics
from atelier.rewards.service.pictures import PixelBounds, to_batch, to_items, to_text
from atelier.rewards.service.protocol import QUEUE_HEADER
from atelier.rewards.service.served import GOLDEN_RETRY_SECONDS, ServedReward, build
from atelier.rewards.service.settings import ServiceSettings, read_settings
from tests.support.reward_services import DIGEST, NAME, Scripted, batch_of, service, wait_until

LIMITS = Limits(Bounds(200_000, 2.0, 2), PixelBounds(128 * 128, 40_000), items=8, seconds=5.0)


@pytest.fixture(scope="module")
def url():
    with service(limits=LIMITS) as found:
        yield found


def item(image=None, **more):
    text = image if isinstance(image, str) else to_text(image or Image.new("RGB", (8, 8)))
    return {"image": text, "prompt": "a", **more}


def post(url, path="/score", **kwargs):
    return httpx.post(url + path, trust_env=False, timeout=20, **kwargs)


def get(url, path):
    return httpx.get(url + path, trust_env=False)


def error(response):
    found = response.json()["error"]
    assert set(found) == {"type", "message", "retryable"}
    return response.status_code, found["type"]


def test_scores_are_those_of_the_scorer_to_the_last_bit(url):
    batch = batch_of([1, 50, 100])
    items = [one.model_dump() for one in to_items(batch)]
    answer = post(url, json={"items": items, "request_id": "r1"}).json()
    direct = Scripted().score(batch)
    found = answer["rewards"][NAME]
    assert answer["request_id"] == "r1"
    assert [one["score"] for one in found["results"]] == list(direct.values)
    assert [one["detail"] for one in found["results"]] == list(direct.details)
    assert found["identity"] == {"version": "1", "config": DIGEST, "weights": None}


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_pictures_survive_the_way(mode):
    pixels = np.random.default_rng(0).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).convert(mode)
    batch = batch_of([1, 2])
    sent = type(batch)([picture] * 2, ["a", "b"], [{"t": 1.5}, {}], [3, 4], [None, picture], None)
    received = to_batch(to_items(sent), PixelBounds())
    for image in (*received.images, received.source_images[1]):
        assert image.convert("RGB").tobytes() == picture.convert("RGB").tobytes()
    assert received.source_images[0] is None
    assert received.partner_images is None
    assert (received.prompts, received.group_ids) == (["a", "b"], [3, 4])
    assert received.metadata == [{"t": 1.5}, {}]


def chunk(kind, data):
    crc = zlib.crc32(kind + data).to_bytes(4, "big")
    return len(data).to_bytes(4, "big") + kind + data + crc


def bomb(side):
    """A small PNG that claims side x side pixels."""
    header = side.to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    data = zlib.compress(bytes(100_000))
    chunks = (chunk(b"IHDR", header), chunk(b"IDAT", data), chunk(b"IEND", b""))
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(chunks)).decode()


def truncated():
    buffer = io.BytesIO()
    Image.effect_noise((64, 64), 90).save(buffer, "PNG")
    return base64.b64encode(buffer.getvalue()[:500]).decode()


def jpeg():
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "JPEG")
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"items": []}, (422, "invalid_request")),
        ({"items": [{"image": "AA"}]}, (422, "invalid_request")),
        ({"items": [item(surprise=1)]}, (422, "invalid_request")),
        ({"items": [item(group_id="1")]}, (422, "invalid_request")),
        ({"items": [item()], "timeout": -1}, (422, "invalid_request")),
        ({"items": [item()], "rewards": ["beauty"]}, (422, "unknown_reward")),
        ({"items": [item()] * 9}, (413, "too_many_items")),
        ({"items": [item("no base64!")]}, (422, "bad_image")),
        ({"items": [item("ä")]}, (422, "bad_image")),
        ({"items": [item(base64.b64encode(b"GIF89a").decode())]}, (422, "bad_image")),
        ({"items": [item(jpeg())]}, (422, "bad_image")),
        ({"items": [item(truncated())]}, (422, "bad_image")),
        ({"items": [item(bomb(9_000))]}, (413, "too_many_pixels")),
        ({"items": [item(bomb(60_000))]}, (413, "too_many_pixels")),
        ({"items": [item(source=bomb(9_000))]}, (413, "too_many_pixels")),
        ({"items": [item(Image.new("L", (100, 100)))] * 5}, (413, "too_many_pixels")),
        ([], (422, "invalid_request")),
    ],
)
def test_what_cannot_be_scored_is_refused_with_its_type(url, body, expected):
    answer = post(url, json=body)
    assert error(answer) == expected
    assert " at 0x" not in answer.text, "an address in memory is nobody's business"


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"items": NaN}'])
def test_a_body_that_is_no_request_is_a_client_error(url, body):
    response = post(url, content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    assert error(response)
    assert get(url, "/healthz").json() == {"status": "ok"}


def test_a_refusal_does_not_repeat_what_was_sent(url):
    response = post(url, json={"items": [item(prompt="geheim" * 100, group_id="geheim")] * 8})
    assert "geheim" not in response.text
    assert len(response.text) < 1000


def test_a_long_body_is_refused_by_its_length_and_while_it_comes(url):
    declared = post(url, content=b"x" * 300_000)
    assert error(declared) == (413, "too_large")

    def chunks():
        for _ in range(30):
            yield b"x" * 10_000

    assert error(post(url, content=chunks())) == (413, "too_large")
    assert error(post(url, "/drain", content=chunks())) == (413, "too_large")
    assert get(url, "/readyz").status_code == 200


def raw(url, text, wait=True):
    """Send bytes as they are; the answer's first line."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(text)
        return connection.makefile("rb").readline() if wait else b""


def test_a_body_that_does_not_come_is_given_up(url):
    head = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    assert b" 408 " in raw(url, head)
    raw(url, head, wait=False)  # one that hangs up
    head = b"POST /score HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n{"
    assert raw(url, head).split()[1] in (b"413", b"400")
    assert post(url, json={"items": [item()]}).status_code == 200


def test_other_paths_and_methods_are_typed_errors_too(url):
    assert error(get(url, "/nothing")) == (404, "http")
    assert error(get(url, "/score")) == (405, "http")


def test_errors_of_the_scorer_are_typed_an_image_at_a_time():
    def some(batch):
        return [Missing("no text"), Missing("busy", retryable=True), float("nan"), 1.25]

    with service(Scripted(some)) as url:
        items = [one.model_dump() for one in to_items(batch_of([1, 2, 3, 4]))]
        results = post(url, json={"items": items}).json()["rewards"][NAME]["results"]
    errors = [one["error"] for one in results]
    assert [e and (e["type"], e["retryable"]) for e in errors] == [
        ("no_score", False),
        ("no_score", True),
        ("no_score", False),
        None,
    ]
    assert [one["score"] for one in results] == [None, None, None, 1.25]


@pytest.mark.parametrize("given", [lambda batch: 1 / 0, lambda batch: [1.0]])
def test_a_scorer_that_raises_or_loses_scores_is_an_error_for_every_image(given):
    with service(Scripted(given)) as url:
        items = [one.model_dump() for one in to_items(batch_of([1, 2]))]
        results = post(url, json={"items": items}).json()["rewards"][NAME]["results"]
    assert [one["error"]["type"] for one in results] == ["scorer_failed"] * 2


def test_a_hung_scorer_is_given_up_and_its_thread_replaced():
    hang = threading.Event()

    def first_hangs(batch):
        if batch.metadata[0].get("hang"):
            hang.wait(30)
        return [1.0] * len(batch)

    with service(Scripted(first_hangs)) as url:
        hung = post(url, json={"items": [item(metadata={"hang": True})], "timeout": 0.3})
        assert hung.json()["rewards"][NAME]["results"][0]["error"]["type"] == "timeout"
        again = post(url, json={"items": [item()]})
        assert again.json()["rewards"][NAME]["results"][0]["score"] == 1.0
        hang.set()


def test_the_queue_is_bounded_and_drain_finishes_what_runs():
    """Two requests are taken, the third is refused; a draining service answers those it has."""
    go = threading.Event()

    def waits(batch):
        go.wait(20)
        return [2.0] * len(batch)

    answers = []
    with service(Scripted(waits), limits=LIMITS) as url:

        def ask():
            answers.append(post(url, json={"items": [item()]}))

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        wait_until(lambda: "queue_length 2.0" in get(url, "/metrics").text)
        refused = post(url, json={"items": [item()]})
        assert error(refused) == (503, "queue_full")
        assert refused.json()["error"]["retryable"]
        assert refused.headers["Retry-After"] == "1"
        assert refused.headers[QUEUE_HEADER] == "2"
        assert "atelier_reward_requests_shed_total 1.0" in get(url, "/metrics").text
        assert post(url, "/drain?timeout=0.05").json() == {"running": 2}
        assert error(post(url, json={"items": [item()]})) == (503, "draining")
        assert get(url, "/readyz").status_code == 503
        go.set()
        assert post(url, "/drain?timeout=10").json() == {"running": 0}
        for thread in asking:
            thread.join(10)
    assert [a.json()["rewards"][NAME]["results"][0]["score"] for a in answers] == [2.0, 2.0]


def test_workers_bound_what_is_scored_at_a_time():
    running, most, lock = 0, [0], threading.Lock()

    def count(batch):
        nonlocal running
        with lock:
            running += 1
            most[0] = max(most[0], running)
        threading.Event().wait(0.05)
        with lock:
            running -= 1
        return [1.0] * len(batch)

    with service(Scripted(count), workers=2) as url:
        asking = [
            threading.Thread(target=post, args=(url,), kwargs={"json": {"items": [item()]}})
            for _ in range(8)
        ]
        for thread in asking:
            thread.start()
        for thread in asking:
            thread.join(20)
    assert most[0] == 2


def test_the_token_is_asked_for_everywhere_but_health():
    with service(token="sesam") as url:
        for path in ("/version", "/metrics"):
            assert error(get(url, path)) == (401, "unauthorized")
        for header in ("Bearer wrong", "sesam", "Basic sesam", "Bearer sesa", "Bearer sesamö"):
            headers = {"Authorization": header.encode()}
            assert error(post(url, json={"items": [item()]}, headers=headers))[0] == 401
        assert error(post(url, "/drain"))[0] == 401
        right = {"Authorization": "Bearer sesam"}
        assert post(url, json={"items": [item()]}, headers=right).status_code == 200
        assert get(url, "/healthz").status_code == get(url, "/readyz").status_code == 200


class Unproven(Scripted):
    """Its golden sample is wrong, or fails until `mended`."""

    def __init__(self, wrong=False):
        super().__init__()
        self.wrong, self.mended = wrong, False

    def score(self, batch):
        if self.wrong:
            return super().score(batch_of([200, 200], side=64))
        if not self.mended:
            raise RuntimeError("no weights yet")
        return super().score(batch)


@pytest.mark.parametrize(("wrong", "state"), [(True, "failed"), (False, "loading")])
def test_nothing_is_scored_before_the_golden_sample_is_right(wrong, state, monkeypatch):
    monkeypatch.setattr("atelier.rewards.service.served.GOLDEN_RETRY_SECONDS", 0.1)
    assert GOLDEN_RETRY_SECONDS > 1
    scorer = Unproven(wrong)
    monkeypatch.setattr("tests.support.reward_services.wait_until", lambda *_: None)
    with service(scorer) as url:
        wait_until(lambda: get(url, "/readyz").json()["rewards"][NAME]["reason"] is not None)
        ready = get(url, "/readyz")
        assert (ready.status_code, ready.json()["rewards"][NAME]["state"]) == (503, state)
        assert error(post(url, json={"items": [item()]})) == (503, "not_ready")
        scorer.mended = True
        if not wrong:
            wait_until(lambda: get(url, "/readyz").status_code == 200)


def test_metrics_count_requests_images_errors_and_seconds():
    with service(Scripted(lambda b: [Missing("x"), 1.0])) as url:
        items = [one.model_dump() for one in to_items(batch_of([1, 2]))]
        post(url, json={"items": items})
        post(url, json={})
        text = get(url, "/metrics").text
    for line in (
        'atelier_reward_requests_total{status="200"} 1.0',
        'atelier_reward_requests_total{status="422"} 1.0',
        f'atelier_reward_images_total{{reward="{NAME}"}} 1.0',
        f'atelier_reward_errors_total{{reward="{NAME}",type="no_score"}} 1.0',
        'atelier_reward_errors_total{reward="",type="invalid_request"} 1.0',
        f'atelier_reward_seconds_count{{reward="{NAME}"}} 1.0',
        "atelier_reward_queue_length 0.0",
        "atelier_reward_requests_shed_total 0.0",
        "process_resident_memory_bytes ",
    ):
        assert line in text


WITHOUT_TORCH = """
import sys
from atelier.rewards.service.metrics import Metrics
page = Metrics(lambda: 0).page()
assert "torch" not in sys.modules and b"gpu_memory" not in page
import torch
if not torch.cuda.is_available():
    sys.exit()
page = Metrics(lambda: 0).page()
assert b"gpu_memory" not in page and not torch.cuda.is_initialized()
held = torch.ones(1 << 20, device="cuda:0")
lines = Metrics(lambda: 0).page().decode().splitlines()
(line,) = [one for one in lines if one.startswith('atelier_reward_gpu_memory_bytes{device="0"}')]
assert float(line.split()[-1]) >= 4 << 20
"""


def test_gpu_memory_is_shown_only_where_torch_uses_a_gpu():
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH], check=True)


def test_gpu_memory_is_what_torch_holds_on_each(monkeypatch):
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        device_count=lambda: 2,
        memory_reserved=lambda device: (device + 1) * 1024,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    page = Metrics(lambda: 0).page().decode()
    assert 'atelier_reward_gpu_memory_bytes{device="0"} 1024.0' in page
    assert 'atelier_reward_gpu_memory_bytes{device="1"} 2048.0' in page
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())  # being imported
    assert "gpu_memory" not in Metrics(lambda: 0).page().decode()


def test_details_become_plain_json():
    value = {"a": np.float32(0.5), 1: (np.int64(3), float("inf")), "t": True, "n": None, "s": {1}}
    assert json.loads(json.dumps(plain_detail(value), allow_nan=False)) == {
        "a": 0.5,
        "1": [3, "inf"],
        "t": True,
        "n": None,
        "s": "{1}",
    }


# The program ------------------------------------------------------------------------------------


def program(tmp_path, text, *arguments, token=None):
    config = tmp_path / "rewards.yaml"
    config.write_text(text)
    environment = {k: v for k, v in os.environ.items() if k != "ATELIER_REWARD_TOKEN"}
    return subprocess.Popen(
        [sys.executable, "-m", "atelier.rewards.service", "--config", str(config), *arguments],
        env=environment | ({"ATELIER_REWARD_TOKEN": token} if token else {}),
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_program_refuses_an_open_address_without_a_token(tmp_path):
    arguments = ["--port", "0", "--host", "0.0.0.0"]
    process = program(tmp_path, "rewards: {jpeg_compressibility: {}}", *arguments)
    errors = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert "set ATELIER_REWARD_TOKEN" in errors
    assert "Traceback" not in errors


def test_what_counts_as_loopback():
    for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost"):
        assert is_loopback(host), host
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", ""):
        assert not is_loopback(host), host


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rewards: {jpeg_compressibility: {quality: 0}}", r"rewards\.yaml:1: .*quality"),
        ("rewards: {beauty: {}}", r"rewards\.yaml:1: .*unknown key"),
        ("train: {}", "unknown key"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, text, words):
    (tmp_path / "rewards.yaml").write_text(text)
    with pytest.raises(ConfigError, match=words):
        read_settings(tmp_path / "rewards.yaml")


def test_nothing_to_serve_is_an_error():
    with pytest.raises(ConfigError, match="none is set"):
        build(ServiceSettings(rewards=RewardsConfig()))


def test_the_program_serves_until_it_is_asked_to_end(tmp_path):
    port_file = tmp_path / "port"
    arguments = ["--host", "0.0.0.0", "--port", "0", "--port-file", str(port_file)]
    process = program(tmp_path, "rewards: {ocr: {detect: false}}", *arguments, token="s3cr3t")
    try:
        wait_until(port_file.exists, 60)
        url = f"http://127.0.0.1:{int(port_file.read_text())}"
        wait_until(lambda: get(url, "/readyz").status_code == 200, 60)
        header = {"Authorization": "Bearer s3cr3t"}
        version = httpx.get(f"{url}/version", headers=header, trust_env=False).json()
        assert "PP-OCR" in version["rewards"]["ocr"]["version"]
        assert len(version["rewards"]["ocr"]["weights"]) == 64
        process.terminate()
        errors = process.communicate(timeout=20)[1]
    finally:
        process.kill()
    assert "s3cr3t" not in errors
    assert "INFO ready: the golden samples of ocr are right" in errors


def test_a_service_that_never_can_be_ready_says_so(caplog):
    class Wrong(Scripted):
        def score(self, batch):
            raise ConfigError("no such weights")

    async def prove():
        async with _proving({NAME: ServedReward(Wrong(), 1, DIGEST)}, door):
            while not caplog.records or "never ready" not in caplog.text:
                await asyncio.sleep(0.01)

    door = Door()
    asyncio.run(asyncio.wait_for(prove(), 10))
    assert f"never ready: {NAME}; /readyz says why" in caplog.text
    assert not door.ready


@pytest.mark.parametrize("place", ["port", "folder"])
def test_a_place_the_service_cannot_have_is_refused_before_it_starts(tmp_path, place):
    from click.testing import CliRunner

    from atelier.cli.application import application
    from atelier.errors import ConfigError

    (tmp_path / "file").write_text("")
    folder = tmp_path / ("file" if place == "folder" else "folder")
    with service() as url:
        port = url.rpartition(":")[2] if place == "port" else "8493"
        options = ["--recipe", "tiny/base", "--port", port, "--folder", str(folder)]
        result = CliRunner().invoke(application, ["rewards", "serve", *options])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception).startswith(f"--{place}")
    assert not (tmp_path / "folder/processes").exists()
