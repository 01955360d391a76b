"""Replies on disk: a cache that may lose everything and harm nothing."""

import json
import logging
import multiprocessing
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from atelier.judge.cache import ReplyCache, cache_key
from atelier.judge.replies import Reply

REPLY = Reply("4 \u4e2d \x00", "stop", None, (("Yes", -0.5), ("No", -9999.0)))
KEY = cache_key({"prompt": "a"})


@pytest.fixture
def cache(tmp_path):
    return ReplyCache(tmp_path / "answers", 10**6)


def entry(tmp_path):
    (found,) = (tmp_path / "answers").glob("??/*.json")
    return found


def test_what_is_kept_is_found_again_by_another_process(cache, tmp_path):
    assert cache.get(KEY) is None
    cache.put(KEY, REPLY)
    assert ReplyCache(tmp_path / "answers", 10**6).get(KEY) == REPLY
    assert cache.get(cache_key({"prompt": "b"})) is None


def test_a_key_is_of_all_that_was_asked_whatever_its_order():
    assert cache_key({"a": 1, "b": 2}) == cache_key({"b": 2, "a": 1})
    others = [{"a": 1}, {"a": "1"}, {"a": True}, {"b": 1}, {"a": 1, "b": None}]
    assert len({cache_key(one) for one in others}) == len(others)


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: b"\xff" + content,
        lambda content: content.replace(KEY.encode(), b"0" * 64),
        lambda content: json.dumps({**json.loads(content), "version": 0}).encode(),
        lambda content: json.dumps({**json.loads(content), "text": 4}).encode(),
        lambda content: json.dumps({**json.loads(content), "more": 4}).encode(),
        lambda content: b"[]",
    ],
)
def test_a_damaged_or_foreign_entry_is_a_miss_with_a_warning(cache, tmp_path, damage, caplog):
    cache.put(KEY, Reply("4", "stop"))
    path = entry(tmp_path)
    path.write_bytes(damage(path.read_bytes()))
    assert cache.get(KEY) is None
    assert str(path) in caplog.text
    cache.put(KEY, Reply("5", "stop"))
    assert cache.get(KEY) == Reply("5", "stop")


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path, caplog):
    (tmp_path / "answers").write_text("a file")
    cache = ReplyCache(tmp_path / "answers", 10**6)
    for number in range(3):
        cache.put(cache_key({"n": number}), REPLY)
        assert cache.get(cache_key({"n": number})) is None
    assert caplog.text.count("answers are not kept") == 1
    assert caplog.text.count("answers cannot be read") == 1


def test_a_full_disk_leaves_no_half_entry(cache, tmp_path, monkeypatch, caplog):
    def full(path, content):
        path.open("wb").close()
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_bytes", full)
        cache.put(KEY, REPLY)
    assert "No space left" in caplog.text
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    cache.put(KEY, REPLY)
    assert cache.get(KEY) == REPLY


def test_the_least_recently_used_go_first(tmp_path):
    size = len(json.dumps({"key": KEY})) + 1000
    cache = ReplyCache(tmp_path, 8 * size)
    keys = [cache_key({"n": number}) for number in range(30)]
    for number, key in enumerate(keys):
        cache.put(key, Reply("x" * 1000, "stop"))
        path = tmp_path / key[:2] / f"{key}.json"
        if path.exists():
            os.utime(path, (number, number))
        cache.get(keys[0])  # always in use
    left = [number for number, key in enumerate(keys) if cache.get(key)]
    assert left[0] == 0
    assert 29 in left
    assert left[1:] == list(range(30 - len(left) + 1, 30))
    assert sum(path.stat().st_size for path in tmp_path.glob("??/*")) <= 8 * size


def test_an_entry_larger_than_the_bound_is_not_kept(tmp_path):
    cache = ReplyCache(tmp_path, 500)
    cache.put(KEY, Reply("x" * 1000))
    assert cache.get(KEY) is None


def test_what_a_killed_process_left_is_removed(cache, tmp_path):
    left = tmp_path / "answers" / "00" / ".left.json.1.1"
    fresh = left.with_name(".fresh.json.1.1")
    left.parent.mkdir(parents=True)
    left.touch()
    fresh.touch()
    os.utime(left, (time.time() - 10_000,) * 2)
    cache.put(KEY, REPLY)
    assert not left.exists()
    assert fresh.exists()


def _write_and_read(folder, seed, wrong):
    cache = ReplyCache(folder, 20_000)
    for step in range(60):
        key = cache_key({"n": (step * 7 + seed) % 40})
        known = cache.get(key)
        if known is not None and known.text != key * 5:
            wrong.put(known.text)
        cache.put(key, Reply(key * 5, "stop"))


def test_processes_and_threads_share_a_folder(tmp_path, caplog):
    context = multiprocessing.get_context("fork")
    wrong = context.Queue()
    others = [
        context.Process(target=_write_and_read, args=(tmp_path, seed, wrong)) for seed in (1, 2)
    ]
    for other in others:
        other.start()
    with caplog.at_level(logging.WARNING), ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda seed: _write_and_read(tmp_path, seed, wrong), (3, 4, 5)))
    for other in others:
        other.join(30)
        assert other.exitcode == 0
    assert wrong.empty()
    assert not caplog.records
    cache = ReplyCache(tmp_path, 20_000)
    cache.put(KEY, REPLY)
    assert sum(path.stat().st_size for path in tmp_path.glob("??/*")) <= 20_000
