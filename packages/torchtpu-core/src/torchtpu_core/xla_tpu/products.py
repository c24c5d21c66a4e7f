# SPDX-License-Identifier: Apache-2.0
"""Matrix work of an HLO convolution or dot, which on TPU is what every product becomes.

A batched product is a convolution whose windows have one valid tap per place, so taps are
counted one by one. Imports neither torch nor JAX.

Legend: ``[m, k] x [k, n]``.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

from torchtpu_core.xla_tpu.hlo import Array, Instruction

_WINDOW_PART = re.compile(r"(\w+)=([\dx_\-]+)")
_LABELS = re.compile(r"dim_labels=(\w+)_(\w+)->(\w+)")
_COUNT = r"{}=(\d+)"
_PRECISION = re.compile(r"operand_precision=\{(\w+)")


@dataclass(frozen=True, slots=True)
class Product:
    """One matrix product.

    Attributes:
        m: rows of the result, over all batches.
        k: depth.
        n: columns.
        dtype: of the left operand.
        passes: passes over the matrix unit for its precision.
    """

    m: int
    k: int
    n: int
    dtype: str
    passes: int = 1

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * self.m * self.k * self.n


def product_of(instruction: Instruction, operands: list[Array]) -> Product | None:
    """The product of a ``convolution`` or ``dot``; None for what is neither.

    Args:
        instruction: the instruction.
        operands: the arrays of its two operands.
    """
    if instruction.opcode not in ("convolution", "dot") or len(operands) < 2:
        return None
    left, right = operands[:2]
    passes = _passes(instruction.text, left.dtype)
    result = instruction.arrays[0]
    if instruction.opcode == "dot":
        depth = math.prod(left.dims[d] for d in _dims("lhs_contracting_dims", instruction.text))
        batch = math.prod(left.dims[d] for d in _dims("lhs_batch_dims", instruction.text))
        columns = max(1, right.elements // max(1, depth * batch))
        return Product(max(1, result.elements // columns), depth, columns, left.dtype, passes)
    labels = _LABELS.search(instruction.text)
    if labels is None:
        return None
    left_labels, right_labels, out_labels = labels.groups()
    groups = _number("feature_group_count", instruction.text)
    batches = _number("batch_group_count", instruction.text)
    columns = result.dims[out_labels.index("f")] // max(groups, batches)
    depth = right.dims[right_labels.index("i")]
    rows = max(1, result.elements // max(1, columns))
    taps = 1.0
    window = dict(_WINDOW_PART.findall(instruction.attribute("window")))
    spatial = [label for label in out_labels if label.isdigit()]
    for label in spatial:
        place = int(label)
        taps *= _taps(
            result.dims[out_labels.index(label)],
            left.dims[left_labels.index(label)],
            _part(window, "size", place, "1"),
            _part(window, "stride", place, "1"),
            _part(window, "pad", place, "0_0"),
            _part(window, "lhs_dilate", place, "1"),
            _part(window, "rhs_dilate", place, "1"),
        ) / max(1, result.dims[out_labels.index(label)])
    return Product(rows, max(1, round(depth * taps)), columns, left.dtype, passes)


def _part(window: dict[str, str], key: str, place: int, default: str) -> str:
    parts = window.get(key, "").split("x")
    return parts[place] if place < len(parts) and parts[place] else default


@functools.lru_cache(maxsize=4096)
def _taps(out: int, size: int, window: str, stride: str, pad: str, base: str, dilation: str) -> int:
    """Pairs of an output place and a tap that meet an element of the input.

    >>> _taps(8, 8, "8", "7", "7_7", "8", "1"), _taps(4, 4, "3", "1", "1_1", "1", "1")
    (8, 10)
    """
    low = int(pad.split("_")[0])
    step, hole, apart = int(stride), int(base), int(dilation)
    last = (size - 1) * hole
    count = 0
    for tap in range(int(window)):
        first = tap * apart - low
        for place in range(out):
            at = first + place * step
            count += 0 <= at <= last and at % hole == 0
    return count


def _number(name: str, text: str) -> int:
    match = re.search(_COUNT.format(name), text)
    return int(match[1]) if match else 1


def _dims(name: str, text: str) -> list[int]:
    match = re.search(rf"{name}=\{{([\d,]*)\}}", text)
    return [int(d) for d in match[1].split(",") if d] if match else []


def _passes(text: str, dtype: str) -> int:
    """Passes of the matrix unit: a float32 product of the highest precision takes six."""
    if dtype != "f32":
        return 1
    match = _PRECISION.search(text)
    return {"highest": 6, "high": 3}.get(match[1], 1) if match else 1
