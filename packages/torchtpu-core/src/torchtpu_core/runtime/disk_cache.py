# SPDX-License-Identifier: Apache-2.0
"""Compiled programs on disk, shared by the processes of a host and by later runs.

An entry is one file named by the hash of all that the executable depends on. It is
written under a temporary name and renamed, and carries a checksum: a truncated or
damaged entry, or one of another version, is never loaded; it is reported once,
recompiled and replaced. The executable is unpickled, so the directory must be the
user's own; it is made readable by nobody else.
"""

from __future__ import annotations

import functools
import hashlib
import os
import pickle
import platform
import tempfile
import warnings
from pathlib import Path
from typing import Any

import jax
import jaxlib
from jax.experimental import serialize_executable

from torchtpu_core.env_vars import settings
from torchtpu_core.runtime import clients
from torchtpu_core.units import GIB

_MAGIC = b"torchtpu-program-1\n"
_DIGEST_BYTES = 32
#: The oldest entries are removed above this size.
MAX_BYTES = 4 * GIB
_PRUNE_EVERY = 200

#: Programs loaded from disk, and compiled by XLA, in this process.
hits = 0
misses = 0
_broken_reported: set[str] = set()


class CacheWarning(UserWarning):
    """An entry or the directory of the program cache cannot be used."""


def directory() -> Path | None:
    """Where entries are kept, or None if there is no cache on disk."""
    return settings().cache_dir


@functools.cache
def _host_fingerprint() -> str:
    """What an executable of XLA's CPU client depends on besides the versions."""
    flags = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text().splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    xla_flags = os.environ.get("XLA_FLAGS", "")
    return "|".join(
        (
            platform.machine(),
            flags,
            clients.platform_version(),
            jax.__version__,
            jaxlib.__version__,
            xla_flags,
        )
    )


def key_of(text: str, device: Any) -> str:
    """Name of the entry of a StableHLO module for this host, these versions and a device.

    A serialised executable names its device by id.
    """
    digest = hashlib.sha256(f"{_host_fingerprint()}|{device.id}".encode())
    digest.update(text.encode())
    return digest.hexdigest()


def load(key: str, device: Any) -> Any | None:
    """The executable of an entry, loaded on a device; None if there is no good entry.

    Args:
        key: what `key_of` gave.
        device: the PJRT device to run on.
    """
    global hits
    path = _path(key)
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError:
        return None
    try:
        loaded = serialize_executable.deserialize_and_load(
            *pickle.loads(_checked(content)), backend=device.client, execution_devices=[device]
        )
    except Exception as error:
        _report(path, f"cannot be loaded ({type(error).__name__}: {error})")
        path.unlink(missing_ok=True)
        return None
    hits += 1
    os.utime(path)
    return loaded


def store(key: str, compiled: Any) -> None:
    """Keep an executable; any failure leaves the program uncached."""
    global misses
    misses += 1
    path = _path(key)
    if path is None:
        return
    try:
        payload = pickle.dumps(serialize_executable.serialize(compiled))
    except (NotImplementedError, ValueError, TypeError):
        return  # XLA cannot serialise it (host callbacks)
    content = _MAGIC + hashlib.sha256(payload).digest() + payload
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(content)
        Path(file.name).replace(path)
    except OSError as error:
        _report(path.parent, f"cannot be written ({error}); programs are compiled anew")
        return
    if misses % _PRUNE_EVERY == 0:
        prune()


def prune(limit: int = MAX_BYTES) -> int:
    """Remove the entries used longest ago until at most `limit` bytes remain.

    Returns:
        Number of removed entries.
    """
    root = directory()
    if root is None or not root.is_dir():
        return 0
    entries = []
    for path in root.glob("*/*"):
        try:
            stat = path.stat()
        except OSError:
            continue
        entries.append((stat.st_mtime, stat.st_size, path))
    total = sum(size for _, size, _ in entries)
    removed = 0
    for _, size, path in sorted(entries):
        if total <= limit:
            break
        path.unlink(missing_ok=True)
        total -= size
        removed += 1
    return removed


def _path(key: str) -> Path | None:
    root = directory()
    return None if root is None else root / key[:2] / key


def _checked(content: bytes) -> bytes:
    header = len(_MAGIC)
    if not content.startswith(_MAGIC):
        raise ValueError("not an entry of this version")
    digest = content[header : header + _DIGEST_BYTES]
    payload = content[header + _DIGEST_BYTES :]
    if hashlib.sha256(payload).digest() != digest:
        raise ValueError("checksum does not match")
    return payload


def _report(path: Path, what: str) -> None:
    kind = what.split("(")[0]
    if kind not in _broken_reported:
        _broken_reported.add(kind)
        warnings.warn(
            f"<TorchTpu/cache> {path} {what}. It is compiled and replaced; results are not "
            "affected. TORCH_TPU_CACHE_DIR chooses another directory.",
            CacheWarning,
            stacklevel=4,
        )
