# SPDX-License-Identifier: Apache-2.0
"""The tensor types of StableHLO's textual form: sizes, element types, bytes.

A dimension without a size counts as its bound where the type states one, else as 1.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from torchtpu_core.errors import ProgramTextError
from torchtpu_core.units import ceil_div

TENSOR = re.compile(r"tensor<[^<>]*(?:<[^<>]*>[^<>]*)*>")
_PARTS = re.compile(r"tensor<((?:[\d?]+x)*)([a-zA-Z]\w*(?:<\w+>)?)(.*)>")
_BOUNDS = re.compile(r"bounds<([^>]*)>")
_TRAILING_BITS = re.compile(r"[a-z]+?(\d+)")


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor type.

    Attributes:
        sizes: elements along each dimension.
        dtype: element type as StableHLO writes it, such as ``bf16`` or ``ui8``.
    """

    sizes: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.sizes)

    @property
    def size_bytes(self) -> int:
        """Bytes it takes in HBM, without padding; an ``i1`` takes a byte."""
        bits = dtype_bits(self.dtype)
        return ceil_div(self.elements * bits, 8)


@functools.lru_cache(maxsize=8192)
def parse_type(text: str) -> TensorType:
    """The type of a text such as ``tensor<8x16xbf16>``.

    >>> parse_type("tensor<?x16xbf16, #stablehlo.bounds<8, ?>>").size_bytes
    256
    """
    match = _PARTS.fullmatch(text)
    if match is None:
        raise ProgramTextError(f"{text!r} is not a tensor type of StableHLO's textual form.")
    sizes = match[1].split("x")[:-1]
    bounds = _BOUNDS.search(match[3])
    limits = re.split(r",\s*", bounds[1]) if bounds else ["1"] * len(sizes)
    known = (limit if size == "?" else size for size, limit in zip(sizes, limits, strict=True))
    return TensorType(tuple(int(size) if size != "?" else 1 for size in known), match[2])


@functools.lru_cache(maxsize=64)
def dtype_bits(dtype: str) -> int:
    """Bits of an element: ``complex<f32>`` 64, ``f8E4M3FN`` 8, ``i1`` 8, ``index`` 64."""
    if dtype.startswith("complex<"):
        return 2 * dtype_bits(dtype[len("complex<") : -1])
    if dtype == "i1":
        return 8
    match = _TRAILING_BITS.match(dtype)
    return int(match[1]) if match else 64


def types_in(text: str) -> list[TensorType]:
    """All tensor types in a piece of text, in order."""
    return [parse_type(found) for found in TENSOR.findall(text)]
