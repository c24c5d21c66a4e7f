# SPDX-License-Identifier: Apache-2.0
"""Matrix work: the multiplications and additions of products and convolutions.

Two operations for each multiply-add. A convolution counts only the multiplications
with an element of the input: not those with padding, nor with the holes that dilation
of the input (a transposed convolution) leaves.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable

from torchtpu_core.errors import ProgramTextError
from torchtpu_core.simulator.cost import MatmulClass, Precision
from torchtpu_core.simulator.hlo_text import Operation
from torchtpu_core.simulator.tensor_type import TensorType, dtype_bits
from torchtpu_core.units import ceil_div

_CONTRACTING = re.compile(r"contracting_dims = \[([\d, ]*)\] x")
_PRECISION = re.compile(r"precision(?:_config)? = \[(?:#stablehlo<precision )?([A-Z]+)")
_LAYOUT = re.compile(r"dim_numbers = \[(.*?)\]x\[(.*?)\]->\[(.*?)\]")
_PADDING = re.compile(r"pad = \[(\[.*?\])\]")
_PAIR = re.compile(r"\[(-?\d+), (-?\d+)\]")

Work = tuple[MatmulClass, int]


def dot_general_work(operation: Operation) -> Work:
    """``2 x result elements x contracted elements``."""
    left, right = operation.operand_types
    match = _CONTRACTING.search(operation.text)
    contracted = _integers(match[1]) if match else []
    depth = math.prod(left.sizes[dim] for dim in contracted)
    return _class(operation, left, right), 2 * operation.result_types[0].elements * depth


def dot_work(operation: Operation) -> Work:
    """The product of a vector or matrix with a vector or matrix, as `dot_general_work`."""
    left, right = operation.operand_types
    depth = left.sizes[-1]
    return _class(operation, left, right), 2 * operation.result_types[0].elements * depth


def convolution_work(operation: Operation) -> Work:
    """``2 x batch x output features x input features per group x taps``.

    The taps are pairs of an output place and a kernel place that meet an input element,
    which the axes of the window contribute independently.
    """
    left, right = operation.operand_types
    layout = _LAYOUT.search(operation.text)
    if layout is None:
        raise ProgramTextError(f"A convolution without dim_numbers: {operation.text[:120]}")
    left_dims, right_dims, out_dims = (layout[part].split(", ") for part in (1, 2, 3))
    result = operation.result_types[0]
    axes = [name for name in right_dims if name.isdigit()]
    window = _window(operation.text, len(axes))
    taps = 1
    for axis in axes:
        stride, low, spread, dilation = window[int(axis)]
        taps *= valid_taps(
            left.sizes[left_dims.index(axis)],
            right.sizes[right_dims.index(axis)],
            result.sizes[out_dims.index(axis)],
            stride=stride,
            low=low,
            spread=spread,
            dilation=dilation,
        )
    features = result.sizes[out_dims.index("f")] * right.sizes[right_dims.index("i")]
    flops = 2 * result.sizes[out_dims.index("b")] * features * taps
    return _class(operation, left, right), flops


@functools.lru_cache(maxsize=4096)
def valid_taps(
    length: int, kernel: int, outputs: int, *, stride: int, low: int, spread: int, dilation: int
) -> int:
    """Pairs of an output place and a kernel place that meet an input element, on one axis.

    Output ``o`` and kernel place ``k`` meet place ``o stride + k dilation - low`` of the
    input, whose elements stand `spread` apart.

    >>> valid_taps(4, 3, 4, stride=1, low=1, spread=1, dilation=1)
    10
    """
    end = (length - 1) * spread
    period = spread // math.gcd(spread, stride)
    taps = 0
    for tap in range(kernel):
        start = tap * dilation - low
        first = max(0, ceil_div(-start, stride))
        past = min(outputs, (end - start) // stride + 1)
        # Every `period`-th of these places falls on an element, not on a hole.
        for place in range(first, min(past, first + period)):
            if (start + place * stride) % spread == 0:
                taps += len(range(place, past, period))
    return taps


def _window(text: str, axes: int) -> list[tuple[int, int, int, int]]:
    """Stride, low padding, dilation of the input and of the kernel, for each axis."""
    padding = _PADDING.search(text)
    low = [int(pair[0]) for pair in _PAIR.findall(padding[1])] if padding else [0] * axes
    stride = _attribute(text, "stride", axes)
    spread = _attribute(text, "lhs_dilate", axes)
    dilation = _attribute(text, "rhs_dilate", axes)
    return list(zip(stride, low, spread, dilation, strict=True))


def _attribute(text: str, name: str, axes: int) -> list[int]:
    """The integers of a window attribute; all 1 where it is left out."""
    match = re.search(name + r" = \[([\d, ]*)\]", text)
    return _integers(match[1]) if match else [1] * axes


def _integers(text: str) -> list[int]:
    return [int(word) for word in text.split(",") if word.strip()]


def _class(operation: Operation, left: TensorType, right: TensorType) -> MatmulClass:
    """The class of the wider operand, which decides the rate."""
    wider = max(left.dtype, right.dtype, key=dtype_bits)
    match = _PRECISION.search(operation.text)
    word = match[1].lower() if match else "default"
    known = word in (precision.value for precision in Precision)
    return MatmulClass(wider, Precision(word) if known else Precision.DEFAULT)


COUNTERS: dict[str, Callable[[Operation], Work]] = {
    "stablehlo.dot_general": dot_general_work,
    "stablehlo.dot": dot_work,
    "stablehlo.convolution": convolution_work,
}
