# SPDX-License-Identifier: Apache-2.0
"""Reading and writing the archive of an ahead-of-time file: a manifest and programs.

Nothing in it is executed when it is read. What is damaged is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from torchtpu_compile import weights_file
from torchtpu_compile.errors import AOTFileError

FORMAT = 5
_MANIFEST, _HLO = "manifest.json", "optimized.hlo.txt"
_VERSIONED = ("torchtpu-core", "jax")
#: What reading needs of a manifest.
_KEYS = frozenset(
    {"name", "target", "versions", "programs", "weights", "state", "weights_sha256", "call"}
    | {"operands", "outputs", "symbols", "updates", "returned", "containers", "checks", "random"}
)
#: What reading a damaged archive raises; a flipped bit may ask for a password.
_UNREADABLE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    LookupError,
    ValueError,
    RuntimeError,
)


def writable(path: Path) -> Path:
    """The path of a file whose directory exists now, before time is spent on compiling.

    Raises:
        AOTFileError: it cannot be written.
    """
    with weights_file.naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.is_dir():
            raise IsADirectoryError("it is a directory")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise PermissionError("there is no permission to write it")
    return path


def write(path: Path, manifest: dict[str, Any], programs: Sequence[bytes], hlo: str) -> None:
    """Write a file; adds its format, the versions and the programs' checksums to the manifest."""
    manifest = {
        "format": FORMAT,
        "versions": {package: version(package) for package in _VERSIONED},
        "sha256": [hashlib.sha256(program).hexdigest() for program in programs],
        **manifest,
    }
    parts: dict[str, str | bytes] = {_MANIFEST: json.dumps(manifest, indent=1)}
    parts.update((_program(i), program) for i, program in enumerate(programs))
    if hlo:
        parts[_HLO] = hlo
    with (
        weights_file.naming(path),
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for name, content in parts.items():
            archive.writestr(name, content)


def _program(index: int) -> str:
    return f"program{index}.bin"


def read(path: Path) -> tuple[dict[str, Any], list[bytes]]:
    """The manifest and the programs of a file.

    Raises:
        AOTFileError: it is damaged, or of another format or version.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = json.loads(archive.read(_MANIFEST))
            if not isinstance(manifest, dict):
                raise ValueError("its manifest is no object")
            _refuse_other_format(path, manifest)
            programs = [archive.read(_program(i)) for i in range(len(manifest["sha256"]))]
    except AOTFileError:
        raise
    except _UNREADABLE as error:
        raise AOTFileError(
            f"{path} is not a readable ahead-of-time file ({error}). Compile it anew with "
            "torch_tpu.compile.aot."
        ) from error
    if [hashlib.sha256(program).hexdigest() for program in programs] != manifest["sha256"]:
        raise AOTFileError(f"{path} is damaged: its program has another checksum. Compile it anew.")
    return manifest, programs


def _refuse_other_format(path: Path, manifest: Mapping[str, Any]) -> None:
    if manifest.get("format") != FORMAT:
        raise AOTFileError(
            f"{path} has format {manifest.get('format')}, this version reads {FORMAT}. Compile it "
            "anew with torch_tpu.compile.aot."
        )
    missing = sorted((_KEYS | {"sha256"}) - set(manifest))
    if missing:
        raise AOTFileError(
            f"{path} is damaged: its manifest lacks {', '.join(missing)}. Compile it anew."
        )


def refuse_other_versions(path: Path, manifest: Mapping[str, Any]) -> None:
    """Refuse a file that was made with other versions.

    Raises:
        AOTFileError: with the versions.
    """
    for package, made_with in manifest["versions"].items():
        if (installed := _installed(package)) != made_with:
            raise AOTFileError(
                f"{path} was made with {package} {made_with}, but {installed} is "
                "installed. Compile it anew with torch_tpu.compile.aot."
            )


def _installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
