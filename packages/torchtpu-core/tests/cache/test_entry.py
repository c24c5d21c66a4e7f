# SPDX-License-Identifier: Apache-2.0
"""Entries as bytes: what is written is read, and nothing else is accepted."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchtpu_core.cache.entry import Entry, Kind, decode, encode, peek
from torchtpu_core.errors import DamagedEntryError

_ENTRY = Entry(
    key="ab" * 32,
    kind=Kind.EXECUTABLE,
    name="add",
    host="h",
    facts={"positions": [1, 0], "checks": [["builtins:IndexError", "out", 0]]},
    payload=bytes(range(256)),
)
_CONTENT = encode(_ENTRY)


def test_entry_round_trip_is_equal() -> None:
    assert decode(_CONTENT, _ENTRY.key) == _ENTRY


def test_peek_reads_the_header_without_the_payload() -> None:
    header = peek(io.BytesIO(_CONTENT))
    assert (header.key, header.name, header.facts) == (_ENTRY.key, "add", _ENTRY.facts)
    assert header.payload == b""


@given(st.integers(0, len(_CONTENT) * 8 - 1))
def test_decode_of_one_flipped_bit_raises(bit: int) -> None:
    damaged = bytearray(_CONTENT)
    damaged[bit // 8] ^= 1 << bit % 8
    with pytest.raises(DamagedEntryError):
        decode(bytes(damaged), _ENTRY.key)


@given(st.integers(0, len(_CONTENT) - 1))
def test_decode_of_a_truncated_entry_raises(length: int) -> None:
    with pytest.raises(DamagedEntryError):
        decode(_CONTENT[:length], _ENTRY.key)


@given(st.binary(max_size=200))
def test_peek_of_anything_gives_an_entry_or_the_error(content: bytes) -> None:
    with pytest.raises(DamagedEntryError):
        peek(io.BytesIO(content))


@pytest.mark.parametrize(
    "header",
    [
        b"[" * 100_000,
        b"[]",
        b'{"key":"k","kind":"trace","name":5,"host":"h","facts":{}}',
        b'{"key":"k","kind":"trace","name":"n","host":"h","facts":[]}',
    ],
    ids=["deep", "list", "name", "facts"],
)
def test_peek_of_a_header_of_other_types_raises(header: bytes) -> None:
    fixed = len(b"torchtpu-cache-2\n") + 32
    content = _CONTENT[:fixed] + len(header).to_bytes(4, "little") + header
    with pytest.raises(DamagedEntryError):
        peek(io.BytesIO(content))


def test_decode_under_another_name_raises() -> None:
    with pytest.raises(DamagedEntryError, match="kept under another name"):
        decode(_CONTENT, "cd" * 32)


@pytest.mark.parametrize(("written", "read"), [(b"", b"k"), (b"k", b""), (b"k", b"other")])
def test_decode_with_another_secret_raises(written: bytes, read: bytes) -> None:
    with pytest.raises(DamagedEntryError, match="another key"):
        decode(encode(_ENTRY, written), _ENTRY.key, read)


def test_decode_with_the_secret_it_was_signed_with_is_equal() -> None:
    assert decode(encode(_ENTRY, b"k"), _ENTRY.key, b"k") == _ENTRY
