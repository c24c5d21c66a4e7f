# SPDX-License-Identifier: Apache-2.0
"""Tensors in one file of the safetensors format.

The format is a length, a JSON header and the raw bytes; nothing in it is executed.
Reference: https://github.com/huggingface/safetensors, section Format.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from torchtpu_compile.errors import AOTFileError

_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.uint16: "U16",
    torch.uint32: "U32",
    torch.uint64: "U64",
    torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> str:
    """Write tensors of any device by name.

    Returns:
        The file's SHA-256, in hexadecimal.

    Raises:
        AOTFileError: a dtype the format has no name for.
    """
    header, blobs, offset = {}, [], 0
    for name, tensor in tensors.items():
        if tensor.dtype not in _NAMES:
            raise AOTFileError(
                f"weight {name!r} has dtype {tensor.dtype}, which safetensors cannot hold. "
                f"Convert it to one of {', '.join(str(d) for d in _NAMES)}."
            )
        blob = bytes(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        header[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    content = len(text).to_bytes(8, "little") + text + b"".join(blobs)
    with naming(path):
        path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Say which file could not be written, and what to do.

    Raises:
        AOTFileError: the block met an OSError.
    """
    try:
        yield
    except OSError as error:
        raise AOTFileError(
            f"{path} cannot be written: {error}. Give the path of a file in a directory that "
            "exists or can be made, with room for it."
        ) from error


def read(path: Path, sha256: str | None = None) -> dict[str, torch.Tensor]:
    """The tensors of a file, on the CPU.

    Args:
        path: of the file.
        sha256: what `write` returned; None: not known.

    Raises:
        AOTFileError: the file is not of the format, is cut off, or is not what was written.
    """
    try:
        content = path.read_bytes()
        start = 8 + int.from_bytes(content[:8], "little")
        header = json.loads(content[8:start])
        found = {}
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            low, high = entry["data_offsets"]
            blob = bytearray(content[start + low : start + high])
            if len(blob) != high - low:
                raise ValueError("the data of a tensor is missing")
            flat = torch.frombuffer(blob, dtype=torch.uint8) if blob else torch.empty(0)
            found[name] = flat.view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    except (OSError, ValueError, KeyError, RuntimeError, AttributeError, TypeError) as error:
        raise AOTFileError(
            f"{path} is not a readable safetensors file ({error}). Write it anew with "
            "torch_tpu.compile.aot."
        ) from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise AOTFileError(
            f"{path} is damaged, or belongs to another program: its checksum is not that of the "
            "weights written with the program. Put the file that was written with it beside it, "
            "or compile it anew with torch_tpu.compile.aot."
        )
    return found


def beside(path: Path) -> Path:
    """Where the weights of a program file are."""
    return Path(f"{path}.safetensors")
