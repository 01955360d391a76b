"""URLs of services: what validation takes, the HTTP clients of rewards and of judges take."""

import socket

import httpx
import pytest
import yarl
from hypothesis import given
from hypothesis import strategies as st

from atelier.config.sections.rewards import RewardsConfig
from atelier.config.urls import service_url_problem

GOOD = [
    "http://host:8400",
    "https://reward_ocr.cluster.local.:1/path/to%20it/",
    "http://127.0.0.1",
    "http://[::1]:65535",
    "HTTP://xn--n3h.example",
]
BAD = [
    "http://☃..:1",
    f"http://{'a' * 300}",
    f"http://{'a' * 64}.example",
    f"http://{'.'.join(['a' * 60] * 5)}",
    "http://a b:1",
    "http://x%zz",
    "http://\x00a",
    "http://a\nb:1",
    "http://a:0",
    "http://a:65536",
    "http://a:b",
    "http://",
    "http://a..b",
    "http://-a",
    "http://999.1.1.1",
    "http://[::g]",
    "http://[fe80::1%eth0]",
    "http://[::1]x:80",
    "http://y[::1]:80",
    "http://a?",
    "http://a/#",
    "ftp://a",
    "host:8400",
    "http://me:secret@a",
]


@pytest.mark.parametrize("url", GOOD)
def test_an_address_is_taken(url):
    assert service_url_problem(url) is None


@pytest.mark.parametrize("url", BAD)
def test_what_is_no_address_is_refused_with_its_key(url):
    section = {"placement": "remote", "urls": [url]}
    conflicts = list(RewardsConfig.model_validate({"ocr": section}).conflicts())
    assert [key for key, _ in conflicts] == ["rewards.ocr.urls"]
    assert conflicts[0][1].isprintable()


@given(st.text("ab.:[]%@/-_09x \n☃\x00", max_size=20) | st.text(max_size=20))
def test_what_is_taken_the_clients_can_ask(rest):
    url = f"http://{rest}"
    if service_url_problem(url) is None:
        found = httpx.URL(url + "/score")
        assert found.host
        found.raw_host.decode().encode("idna")  # as the look-up of the name does
        assert found.port is None or socket.htons(found.port)
        by_aiohttp = yarl.URL(url + "/score")
        assert by_aiohttp.raw_host.encode("idna")
        assert socket.htons(by_aiohttp.port)
