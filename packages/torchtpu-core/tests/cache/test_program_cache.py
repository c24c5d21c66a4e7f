# SPDX-License-Identifier: Apache-2.0
"""The levels together: what is found where, and what a bad place or entry costs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import warnings

import fsspec
import pytest
from torchtpu_core.cache import CacheWarning, Entry, Kind, ProgramCache, encode
from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.cache.shared import SharedStore
from torchtpu_core.cache.single_flight import single_flight

_KEY = "ab" * 32


def _entry(**changed) -> Entry:
    return Entry(**{"key": _KEY, "kind": Kind.TRACE, "name": "add", "host": "here", **changed})


def _cache(path=None, url=None, **options) -> ProgramCache:
    return ProgramCache(
        DirectoryStore(path, 1 << 20) if path else None,
        SharedStore(url) if url else None,
        **{"host": "here", "wait_s": 1.0, **options},
    )


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    if request.param == "file":
        return f"file://{tmp_path}/shared"
    fsspec.filesystem("memory").store.clear()
    return "memory://torchtpu"


def test_find_of_a_kept_entry_names_the_directory(tmp_path) -> None:
    cache = _cache(tmp_path / "a")
    assert cache.find(_KEY) is None
    cache.keep(_entry())
    assert cache.find(_KEY) == (_entry(), "directory")


def test_entry_of_another_host_comes_from_the_shared_root_once(tmp_path, url) -> None:
    _cache(tmp_path / "a", url).keep(_entry())
    cache = _cache(tmp_path / "b", url)
    assert cache.find(_KEY, remote=False) is None
    assert cache.find(_KEY) == (_entry(), "shared")
    assert cache.find(_KEY, remote=False) == (_entry(), "directory")


def test_shared_store_lists_and_removes(url) -> None:
    store = SharedStore(url)
    assert list(store.entries()) == []
    store.put(_KEY, b"content")
    store.put(_KEY, b"contents")
    (stored,) = store.entries()
    assert (stored.key, stored.size_bytes) == (_KEY, 8)
    assert stored.used_at_s > 0
    store.remove(_KEY)
    store.remove(_KEY)
    assert store.get(_KEY) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not an entry"),
        (encode(_entry())[:-1], "checksum"),
        (encode(_entry(host="elsewhere")), "another platform"),
        (encode(_entry(), b"key"), "checksum"),
        (encode(_entry(key="cd" * 32)), "another name"),
        (b"torchtpu-cache-1\n" + bytes(100), "not an entry of this version"),
    ],
)
@pytest.mark.parametrize("level", ["directory", "shared"])
def test_find_of_a_bad_entry_is_none_with_one_warning(tmp_path, url, level, content, why) -> None:
    cache = _cache(tmp_path / "a", url)
    getattr(cache, level).put(_KEY, content)
    with pytest.warns(CacheWarning, match=why) as caught:
        assert cache.find(_KEY) is None
        assert cache.find(_KEY) is None
    assert len(caught) == 1
    cache.keep(_entry())
    assert cache.find(_KEY) == (_entry(), "directory")


def test_find_with_the_secret_of_the_writer_is_found(tmp_path) -> None:
    _cache(tmp_path / "a", secret=b"key").keep(_entry())
    assert _cache(tmp_path / "a", secret=b"key").find(_KEY) == (_entry(), "directory")


def test_keep_in_a_place_that_cannot_be_written_is_one_warning(tmp_path) -> None:
    (tmp_path / "a").write_text("a file where the directory should be")
    cache = _cache(tmp_path / "a")
    with pytest.warns(CacheWarning, match="cannot be written") as caught:
        cache.keep(_entry())
        cache.keep(_entry())
        with cache.compiling(_KEY) as alone:
            assert not alone
    assert len(caught) == 1
    assert cache.find(_KEY) is None


def test_place_that_can_neither_be_read_nor_written_is_one_warning(tmp_path) -> None:
    cache = _cache(tmp_path / "a")
    (tmp_path / "a").symlink_to(tmp_path / "a")
    with pytest.warns(CacheWarning, match="cannot be read") as caught:
        assert cache.find(_KEY) is None
        cache.keep(_entry())
    assert len(caught) == 1


def test_directory_in_place_of_a_shared_entry_leaves_the_others_in_use(tmp_path) -> None:
    other = "cd" * 32
    _cache(url=f"file://{tmp_path}/shared").keep(_entry(key=other))
    (tmp_path / "shared" / "programs" / "ab" / _KEY).mkdir(parents=True)
    cache = _cache(url=f"file://{tmp_path}/shared")
    with pytest.warns(CacheWarning, match="it is a directory"):
        assert cache.find(_KEY) is None
    assert cache.find(other) == (_entry(key=other), "shared")


def test_shared_root_that_fails_is_left_alone_after_one_warning(tmp_path, monkeypatch) -> None:
    cache = _cache(tmp_path / "a", "memory://torchtpu")
    asked = []

    def unreachable(path: str) -> bytes:
        asked.append(path)
        raise RuntimeError("no route to host")

    monkeypatch.setattr(cache.shared._fs, "cat_file", unreachable)
    with pytest.warns(CacheWarning, match="no route to host") as caught:
        assert cache.find(_KEY) is None
        assert cache.find(_KEY) is None
    assert (len(caught), len(asked)) == (1, 1)


def _hold(path, held, release) -> None:
    with single_flight(path, 10.0) as alone:
        assert alone
        held.set()
        release.wait(60)


@pytest.fixture
def holder(tmp_path):
    """A process that holds the lock of ``tmp_path / 'lock'``."""
    context = multiprocessing.get_context("fork")
    held, release = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(tmp_path / "lock", held, release))
    process.start()
    assert held.wait(30)
    yield process
    if process.is_alive():  # Event.set waits for a waiter, also for one that was killed
        release.set()
    process.join(30)


def test_wait_for_a_process_that_compiles_is_bounded(tmp_path, holder) -> None:
    said: list[str] = []
    with single_flight(tmp_path / "lock", 0.05, said.append) as alone:
        assert not alone
    assert holder.is_alive()
    assert said == [f"process {holder.pid} has not compiled it in 0.05 s"]


def test_lock_of_a_stopped_process_goes_to_one_of_those_who_wait(tmp_path, holder) -> None:
    path, said = tmp_path / "lock", []
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        with single_flight(path, 60.0, said.append) as alone:
            assert alone
            with single_flight(path, 0.0) as also_alone:
                assert not also_alone
        assert said == [f"process {holder.pid}, which compiles it, is stopped"]
    finally:
        os.kill(holder.pid, signal.SIGCONT)


def test_wait_for_a_stopped_process_is_one_warning(tmp_path, holder) -> None:
    cache = _cache(tmp_path / "a", wait_s=60.0)
    path = cache.directory.lock_path(_KEY)
    path.hardlink_to(tmp_path / "lock")
    os.kill(holder.pid, signal.SIGSTOP)
    try:
        stopped = pytest.warns(CacheWarning, match=f"{_KEY} yet: process {holder.pid}.* is stopped")
        with stopped, cache.compiling(_KEY) as alone:
            assert alone
    finally:
        os.kill(holder.pid, signal.SIGCONT)


def test_lock_of_a_killed_process_is_free(tmp_path, holder) -> None:
    os.kill(holder.pid, signal.SIGKILL)
    holder.join(30)
    with single_flight(tmp_path / "lock", 10.0) as alone:
        assert alone


def test_cache_without_a_place_finds_nothing_and_says_nothing() -> None:
    cache = _cache()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cache.keep(_entry())
        assert cache.find(_KEY) is None
        with cache.compiling(_KEY) as alone:
            assert not alone
    assert not cache.enabled
