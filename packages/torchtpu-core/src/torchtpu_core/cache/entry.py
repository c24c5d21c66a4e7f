# SPDX-License-Identifier: Apache-2.0
"""One entry of the cache as bytes, and back.

    magic | digest of all that follows | length of the header | header (JSON) | payload

The digest is BLAKE2b, keyed if a secret is given: then nobody without the secret can make
an entry that is accepted. Without one it finds damage, not malice. Nothing is unpickled here.
"""

from __future__ import annotations

import enum
import hashlib
import hmac
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from torchtpu_core.errors import DamagedEntryError

MAGIC = b"torchtpu-cache-2\n"
_DIGEST_BYTES = 32
_LENGTH = struct.Struct("<I")
_FIXED_BYTES = len(MAGIC) + _DIGEST_BYTES + _LENGTH.size
_HEADER_BYTES_MAX = 1 << 24


class Kind(enum.StrEnum):
    """What an entry holds."""

    TRACE = "trace"
    EXECUTABLE = "executable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry.

    Attributes:
        key: hexadecimal name; equal keys mean equal content.
        kind: what it holds.
        name: of the program, for people.
        host: fingerprint of the platform it was made for.
        facts: JSON values.
        payload: the executable; empty for a trace.
    """

    key: str
    kind: Kind
    name: str = ""
    host: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    payload: bytes = b""


def encode(entry: Entry, secret: bytes = b"") -> bytes:
    """The bytes of an entry, signed with a secret of at most 64 bytes if there is one."""
    header = {
        "key": entry.key,
        "kind": entry.kind,
        "name": entry.name,
        "host": entry.host,
        "facts": dict(entry.facts),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    body = _LENGTH.pack(len(text)) + text + entry.payload
    return MAGIC + _digest(body, secret) + body


def decode(content: bytes, key: str | None = None, secret: bytes = b"") -> Entry:
    """The entry in some bytes.

    Args:
        content: what `encode` made.
        key: the key it must have.
        secret: what it must be signed with.

    Raises:
        DamagedEntryError: they are not that entry; says what is wrong.
    """
    if not content.startswith(MAGIC):
        raise DamagedEntryError("it is not an entry of this version of the format")
    body = memoryview(content)[len(MAGIC) + _DIGEST_BYTES :]
    if not hmac.compare_digest(
        content[len(MAGIC) : len(MAGIC) + _DIGEST_BYTES], _digest(body, secret)
    ):
        raise DamagedEntryError(
            "its checksum does not match: it is truncated, altered, or signed with another key"
        )
    entry = _parsed(content)
    if key is not None and entry.key != key:
        raise DamagedEntryError(f"it is the entry {entry.key}, kept under another name")
    return entry


def peek(file: BinaryIO) -> Entry:
    """The header of an entry, unchecked and without payload, from the start of a file.

    Raises:
        DamagedEntryError: there is no header.
    """
    fixed = file.read(_FIXED_BYTES)
    if not fixed.startswith(MAGIC) or len(fixed) < _FIXED_BYTES:
        raise DamagedEntryError("it is not an entry of this version of the format")
    (length,) = _LENGTH.unpack_from(fixed, len(MAGIC) + _DIGEST_BYTES)
    return _parsed(fixed + file.read(min(length, _HEADER_BYTES_MAX)))


def _digest(body: bytes | memoryview, secret: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=_DIGEST_BYTES, key=secret).digest()


def _parsed(content: bytes) -> Entry:
    try:
        (length,) = _LENGTH.unpack_from(content, len(MAGIC) + _DIGEST_BYTES)
        if _FIXED_BYTES + length > len(content):
            raise DamagedEntryError("it is truncated")
        header = json.loads(content[_FIXED_BYTES : _FIXED_BYTES + length])
        texts = {name: header[name] for name in ("key", "name", "host")}
        if not (all(isinstance(t, str) for t in texts.values()) and type(header["facts"]) is dict):
            raise DamagedEntryError("its header holds values of other types")
        return Entry(
            **texts,
            kind=Kind(header["kind"]),
            facts=header["facts"],
            payload=content[_FIXED_BYTES + length :],
        )
    except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        raise DamagedEntryError(f"its header cannot be read ({error})") from error
