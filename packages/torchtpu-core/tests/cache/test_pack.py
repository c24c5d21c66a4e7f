# SPDX-License-Identifier: Apache-2.0
"""Packs and inspection of what a directory holds."""

from __future__ import annotations

import zipfile

import pytest
from torchtpu_core.cache import Entry, Kind, encode
from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.cache.inspection import faults
from torchtpu_core.cache.pack import PackError, read_pack, write_pack

_HERE = {"host": "h1", "host_facts": {"jax": "1", "CPU features": "avx avx2"}}
_ELSEWHERE = {"host": "h2", "host_facts": {"jax": "1", "CPU features": "avx sse"}}


def _entries(name: str, number: int, host: str = "h1") -> list[Entry]:
    executable = Entry(
        key=f"{number:064x}", kind=Kind.EXECUTABLE, name=name, host=host, payload=bytes(50)
    )
    facts = {"executable": executable.key}
    trace = Entry(key=f"{number + 1:064x}", kind=Kind.TRACE, name=name, host=host, facts=facts)
    return [executable, trace]


@pytest.fixture
def store(tmp_path):
    store = DirectoryStore(tmp_path / "cache", 1 << 20)
    for entry in (*_entries("add", 0), *_entries("mul", 2), *_entries("old", 4, "h2")):
        store.put(entry.key, encode(entry))
    return store


def _contents(store: DirectoryStore) -> dict[str, bytes | None]:
    return {stored.key: store.read(stored.key) for stored in store.entries()}


def test_pack_round_trip_has_the_entries_of_this_platform(tmp_path, store) -> None:
    done = write_pack(tmp_path / "p", store, **_HERE)
    other = DirectoryStore(tmp_path / "other", 1 << 20)
    assert read_pack(tmp_path / "p", other, **_HERE) == done
    assert done.programs == 4
    assert _contents(other) == {k: v for k, v in _contents(store).items() if int(k, 16) < 4}


def test_pack_of_a_name_has_its_executable(tmp_path, store) -> None:
    write_pack(tmp_path / "p", store, match="mul", **_HERE)
    with zipfile.ZipFile(tmp_path / "p") as file:
        assert {f"programs/{n:064x}" for n in (2, 3)} < set(file.namelist())
        assert len(file.namelist()) == 3


def test_unpack_on_another_cpu_is_refused_with_what_differs(tmp_path, store) -> None:
    write_pack(tmp_path / "p", store, **_HERE)
    other = DirectoryStore(tmp_path / "other", 1 << 20)
    with pytest.raises(PackError, match="this CPU lacks avx2, that one lacks sse"):
        read_pack(tmp_path / "p", other, **_ELSEWHERE)
    assert _contents(other) == {}


@pytest.mark.parametrize("content", [b"", b"not a zip file", b"PK\x03\x04" + bytes(100)])
def test_unpack_of_another_file_is_refused(tmp_path, store, content) -> None:
    (tmp_path / "p").write_bytes(content)
    with pytest.raises(PackError, match="is not a pack"):
        read_pack(tmp_path / "p", store, **_HERE)


def test_unpack_leaves_damaged_and_stray_members_out(tmp_path, store) -> None:
    write_pack(tmp_path / "p", store, **_HERE)
    with zipfile.ZipFile(tmp_path / "p", "a") as file:
        file.writestr("../evil", b"x")
        file.writestr("programs/" + "ee" * 32, b"not an entry")
    other = DirectoryStore(tmp_path / "other", 1 << 20)
    done = read_pack(tmp_path / "p", other, **_HERE)
    assert (done.programs, done.refused) == (4, 2)
    assert not (tmp_path / "evil").exists()


def test_unpack_of_a_pack_damaged_anywhere_adds_good_entries_or_is_refused(tmp_path, store):
    write_pack(tmp_path / "p", store, **_HERE)
    content, good = (tmp_path / "p").read_bytes(), _contents(store)
    other = DirectoryStore(tmp_path / "other", 1 << 20)
    refused = 0
    for offset in range(0, len(content), 17):
        damaged = bytearray(content)
        damaged[offset] ^= 0xA5
        (tmp_path / "p").write_bytes(damaged)
        try:
            read_pack(tmp_path / "p", other, **_HERE)
        except PackError:
            refused += 1
    assert refused > 0
    assert _contents(other).items() <= good.items()


@pytest.mark.parametrize(
    "manifest",
    [
        "[" * 100_000,
        "[]",
        '{"format": 1, "host": "h2", "host_facts": ["jax"]}',
        '{"format": 1, "host": "h2", "host_facts": {"CPU features": 7}}',
        " " * 2**21 + "{}",
    ],
    ids=["deep", "list", "facts", "features", "large"],
)
def test_unpack_of_a_manifest_of_other_types_is_refused(tmp_path, store, manifest) -> None:
    with zipfile.ZipFile(tmp_path / "p", "w") as file:
        file.writestr("manifest.json", manifest)
    with pytest.raises(PackError, match="is not a pack"):
        read_pack(tmp_path / "p", store, **_HERE)


def test_unpack_with_another_key_adds_nothing(tmp_path, store) -> None:
    write_pack(tmp_path / "p", store, **_HERE)
    other = DirectoryStore(tmp_path / "other", 1 << 20)
    assert read_pack(tmp_path / "p", other, secret=b"k", **_HERE).programs == 0
    assert _contents(other) == {}


def test_faults_name_the_damaged_and_the_orphaned(store) -> None:
    assert list(faults(store, b"")) == []
    store.put(f"{0:064x}", b"damaged")
    store._path(f"{3:064x}").unlink()
    store._path(f"{3:064x}").mkdir()
    found = {fault.key: fault.why for fault in faults(store, b"")}
    assert found[f"{0:064x}"].startswith("it is not an entry")
    assert found[f"{1:064x}"] == "its executable is not here"
    assert found[f"{3:064x}"] == "it is not a regular file"
    assert len(found) == 3
