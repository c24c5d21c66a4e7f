# SPDX-License-Identifier: Apache-2.0
"""The directory: bound, order of removal, permissions, disks that fail."""

from __future__ import annotations

import os
import resource
import shutil
import time

import pytest
from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.errors import DamagedEntryError, UnsafeDirectoryError


def _key(number: int) -> str:
    return f"{number:064x}"


def _store(path, max_bytes: int = 1 << 20) -> DirectoryStore:
    return DirectoryStore(path / "cache", max_bytes)


def _used(store: DirectoryStore, number: int, seconds_ago: float) -> None:
    when = time.time() - seconds_ago
    os.utime(store._path(_key(number)), (when, when))


def test_get_after_put_is_the_content(tmp_path) -> None:
    store = _store(tmp_path)
    assert store.get(_key(1)) is None
    store.put(_key(1), b"one")
    store.put(_key(1), b"another")
    assert store.get(_key(1)) == b"another"
    assert [(s.key, s.size_bytes) for s in store.entries()] == [(_key(1), 7)]


def test_put_leaves_no_other_file(tmp_path) -> None:
    store = _store(tmp_path)
    store.put(_key(1), b"one")
    files = [p for p in store.root.rglob("*") if p.is_file()]
    assert [p.name for p in files] == [_key(1)]


def test_put_beyond_the_bound_removes_what_was_used_longest_ago(tmp_path) -> None:
    store = _store(tmp_path, 1000)
    for number in range(4):
        store.put(_key(number), bytes(220))
        _used(store, number, 100 - number)
    store.get(_key(0))
    store.put(_key(9), bytes(220))  # 1100 bytes: down to 900 at most
    assert {s.key for s in store.entries()} == {_key(0), _key(2), _key(3), _key(9)}


def test_bound_holds_for_what_other_processes_wrote(tmp_path) -> None:
    ours, theirs = _store(tmp_path, 1000), _store(tmp_path, 1000)
    ours.put(_key(0), bytes(100))
    for number in range(1, 10):
        theirs.put(_key(number), bytes(100))
    ours.put(_key(10), bytes(100))
    assert sum(s.size_bytes for s in ours.entries()) <= 1000


def test_prune_removes_leftovers_of_killed_writers_but_not_fresh_ones(tmp_path) -> None:
    store = _store(tmp_path)
    store.put(_key(0), b"x")
    old, fresh = (store._path(_key(0)).parent / name for name in (".old", ".fresh"))
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    store.prune()
    assert (old.exists(), fresh.exists()) == (False, True)


@pytest.mark.parametrize("kind", ["directory", "fifo", "symlink loop"])
def test_what_lies_in_place_of_an_entry_is_refused_listed_and_replaced(tmp_path, kind) -> None:
    store = _store(tmp_path)
    store.put(_key(0), b"x")
    path = store._path(_key(0))
    path.unlink()
    if kind == "directory":
        path.mkdir()
        (path / "below").write_text("x")
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(path)
    with pytest.raises((DamagedEntryError, OSError)):
        store.get(_key(0))
    assert [stored.key for stored in store.entries()] == [_key(0)]
    store.put(_key(0), b"y")
    assert store.get(_key(0)) == b"y"


def test_remove_of_a_directory_in_place_of_an_entry_removes_it(tmp_path) -> None:
    store = _store(tmp_path)
    (store._path(_key(0)) / "below").mkdir(parents=True)
    store.remove(_key(0))
    assert list(store.entries()) == []


def test_files_of_others_below_the_directory_are_left_alone(tmp_path) -> None:
    store = _store(tmp_path, 10)
    store.put(_key(0), b"x")
    note = store._path(_key(0)).parent / "notes.txt"
    note.write_bytes(bytes(1000))
    (note.parent / "loop").symlink_to("loop")
    store.put(_key(1), b"y")
    assert {stored.key for stored in store.entries()} == {_key(0), _key(1)}
    store.prune()
    assert note.exists()


def test_directories_are_the_owners_alone(tmp_path) -> None:
    old = os.umask(0)
    try:
        store = _store(tmp_path)
        store.put(_key(0), b"x")
        store.lock_path(_key(0))
    finally:
        os.umask(old)
    below = [store.root, *(p for p in store.root.rglob("*") if p.is_dir())]
    assert {p.stat().st_mode & 0o777 for p in below} == {0o700}


def test_directory_that_others_can_write_is_refused_unless_entries_are_signed(tmp_path) -> None:
    root = tmp_path / "open"
    root.mkdir()
    root.chmod(0o777)
    with pytest.raises(UnsafeDirectoryError, match="777"):
        DirectoryStore(root, 1000)
    DirectoryStore(root, 1000, trusted=True).put(_key(0), b"x")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_another_user_is_refused(tmp_path) -> None:
    root = tmp_path / "theirs"
    root.mkdir()
    os.chown(root, 4711, 4711)
    with pytest.raises(UnsafeDirectoryError, match="4711"):
        DirectoryStore(root, 1000)


def test_put_into_a_vanished_directory_makes_it_anew(tmp_path) -> None:
    store = _store(tmp_path)
    store.put(_key(0), b"x")
    shutil.rmtree(store.root)
    assert store.get(_key(0)) is None
    store.put(_key(1), b"y")
    assert store.get(_key(1)) == b"y"


def test_put_that_fails_half_way_leaves_the_old_content(tmp_path) -> None:
    store = _store(tmp_path)
    store.put(_key(0), b"old")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            store.put(_key(0), bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.get(_key(0)) == b"old"
    assert [s.key for s in store.entries()] == [_key(0)]
    assert not list(store.root.rglob(".*"))
