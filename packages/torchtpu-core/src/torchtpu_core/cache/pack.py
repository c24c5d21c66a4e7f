# SPDX-License-Identifier: Apache-2.0
"""Packs: many entries in one file, to warm another machine of the same kind.

A pack is a zip file: ``manifest.json`` says what it was made on, ``programs/<key>`` are
entries as the directory keeps them, each with its own checksum or signature.
"""

from __future__ import annotations

import contextlib
import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.cache.entry import Kind, decode
from torchtpu_core.cache.inspection import headers
from torchtpu_core.errors import DamagedEntryError, PackError

_FORMAT = 1
_MANIFEST = "manifest.json"
_NAME = re.compile(r"programs/([0-9a-f]{64})")
_ENTRY_BYTES_MAX = 2**31
_MANIFEST_BYTES_MAX = 2**20
#: What reading another file, or a damaged pack, as a pack raises.
_NO_PACK = (zipfile.BadZipFile, KeyError, ValueError, NotImplementedError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What went into a pack or came out of one.

    Attributes:
        programs: traces and executables.
        refused: entries that are damaged or signed with another key.
        size_bytes: of the entries.
    """

    programs: int
    refused: int
    size_bytes: int


def write_pack(
    path: Path,
    store: DirectoryStore,
    *,
    host: str,
    host_facts: Mapping[str, str],
    secret: bytes = b"",
    match: str = "",
) -> Packed:
    """Write the entries that were made for this platform.

    Args:
        path: the file; replaced if it exists.
        store: where they are.
        host: this platform's fingerprint.
        host_facts: what the fingerprint is made of.
        secret: what the entries are signed with.
        match: only programs whose name contains this.

    Raises:
        OSError: the file cannot be written.
    """
    manifest = {"format": _FORMAT, "host": host, "host_facts": dict(host_facts)}
    temporary = path.with_name(f".{path.name}.part")
    programs = refused = size_bytes = 0
    try:
        with _naming(path), zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr(_MANIFEST, json.dumps(manifest, indent=1))
            for key in _chosen(store, host, match):
                content = _kept(store, key)
                if content is None:
                    continue
                if not _is_good(content, key, host, secret):
                    refused += 1
                    continue
                file.writestr(f"programs/{key}", content)
                programs += 1
                size_bytes += len(content)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return Packed(programs=programs, refused=refused, size_bytes=size_bytes)


def read_pack(
    path: Path,
    store: DirectoryStore,
    *,
    host: str,
    host_facts: Mapping[str, str],
    secret: bytes = b"",
) -> Packed:
    """Add a pack's entries to a directory.

    Args:
        path: the file.
        store: where to.
        host: this platform's fingerprint.
        host_facts: what the fingerprint is made of.
        secret: what entries must be signed with.

    Raises:
        PackError: not a pack, or made on another kind of machine; says what differs.
        OSError: the file cannot be read, or the directory not written.
    """
    programs = refused = size_bytes = 0
    try:
        with zipfile.ZipFile(path) as file:
            _require_host(path, _manifest(file), host, host_facts)
            for info in file.infolist():
                found = _NAME.fullmatch(info.filename)
                if found is None or info.file_size > _ENTRY_BYTES_MAX:
                    refused += info.filename != _MANIFEST
                    continue
                content = _read(file, info)
                if not _is_good(content, found[1], host, secret):
                    refused += 1
                    continue
                with _naming(store.place):
                    store.put(found[1], content)
                programs += 1
                size_bytes += len(content)
    except _NO_PACK as error:
        raise PackError(f"{path} is not a pack of compiled programs ({error}).") from error
    return Packed(programs=programs, refused=refused, size_bytes=size_bytes)


@contextlib.contextmanager
def _naming(place: object) -> Iterator[None]:
    """Say what could not be written where the system does not, as on a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(place)
        raise


def _chosen(store: DirectoryStore, host: str, match: str) -> list[str]:
    """Keys of the programs of this platform whose name matches, with their executables."""
    wanted: set[str] = set()
    for stored, header in headers(store):
        if header is not None and header.host == host and match in header.name:
            wanted.add(stored.key)
            if header.kind is Kind.TRACE:
                wanted.add(str(header.facts.get("executable")))
    return sorted(wanted)


def _require_host(
    path: Path, manifest: Mapping[str, Any], host: str, host_facts: Mapping[str, str]
) -> None:
    if manifest["format"] != _FORMAT:
        raise PackError(f"{path} is a pack of format {manifest['format']!s:.20}, not {_FORMAT}.")
    if manifest.get("host") == host:
        return
    made_on = manifest["host_facts"]
    differences = [
        _difference(name, made_on.get(name, ""), host_facts.get(name, ""))
        for name in sorted({*made_on, *host_facts})
        if made_on.get(name, "") != host_facts.get(name, "")
    ]
    raise PackError(
        f"{path} was made on another kind of machine; its programs may not run here. "
        f"{'; '.join(differences)}. Make the pack on a machine like this one."
    )


def _difference(name: str, there: str, here: str) -> str:
    if name == "CPU features":
        lacking, more = (
            set(there.split()) - set(here.split()),
            set(here.split()) - set(there.split()),
        )
        parts = [f"this CPU lacks {' '.join(sorted(lacking))}" if lacking else ""]
        parts.append(f"that one lacks {' '.join(sorted(more))}" if more else "")
        return ", ".join(filter(None, parts))
    return f"{name}: {there or 'none'} there, {here or 'none'} here"


def _manifest(file: zipfile.ZipFile) -> Mapping[str, Any]:
    """What a pack says of itself.

    Raises:
        ValueError, KeyError, RecursionError: it says nothing of the kind.
    """
    if file.getinfo(_MANIFEST).file_size > _MANIFEST_BYTES_MAX:
        raise ValueError("its manifest is too large")
    manifest = json.loads(_read(file, file.getinfo(_MANIFEST)))
    facts = manifest.get("host_facts") if isinstance(manifest, dict) else None
    if not isinstance(facts, dict) or not all(isinstance(v, str) for v in facts.values()):
        raise ValueError("its manifest does not say where it was made")
    return manifest


def _read(file: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    """The bytes of a member; none if they are damaged, which `zipfile` says in many ways."""
    try:
        return file.read(info)
    except Exception:
        return b""


def _kept(store: DirectoryStore, key: str) -> bytes | None:
    """The bytes of an entry, none if something else lies in its place."""
    try:
        return store.read(key)
    except DamagedEntryError:
        return b""


def _is_good(content: bytes, key: str, host: str, secret: bytes) -> bool:
    try:
        return decode(content, key, secret).host == host
    except DamagedEntryError:
        return False
