# SPDX-License-Identifier: Apache-2.0
"""Rules for sampling images at the points of a grid.

Positions follow from the true sizes of an image, and nothing beyond them is read. A point
in the padding of a grid looks at the middle; what it finds is padding of the result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.grid_sampler import Size, sampled

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import refuse
from torchtpu_compile.padded import Dim, Padded, is_padded, padded_size, true_size


def _operands(call: Call) -> tuple[Padded, Padded]:
    """Images, and a grid whose padding looks at the middle."""
    x, grid = (call.sizes.compact(call.arg(name)) for name in ("input", "grid"))
    if is_padded(grid.dims[-1]) or x.array.shape[0] != grid.array.shape[0]:
        raise refuse(call, "samples images and points whose numbers differ")
    return x, call.sizes.filled(grid, 0)


def _size(call: Call, dim: Dim) -> Size:
    return call.sizes.true(true_size(dim)) if is_padded(dim) else padded_size(dim)


def _modes(call: Call, x: Padded) -> tuple[Any, ...]:
    """What `sampled` takes behind its operands."""
    names = ("interpolation_mode", "padding_mode", "align_corners")
    return *(call.arg(name) for name in names), [_size(call, dim) for dim in x.dims[2:]]


def _forward(call: Call) -> Any:
    x, grid = _operands(call)
    compute = dtypes.opmath(x.array.dtype)
    result = sampled(x.array.astype(compute), grid.array.astype(compute), *_modes(call, x))
    return Padded(result, (*x.dims[:2], *grid.dims[1:-1]))


def _backward(call: Call) -> Any:
    x, grid = _operands(call)
    slope = call.sizes.filled(call.sizes.compact(call.arg("grad_output")), 0)
    compute, modes = dtypes.opmath(x.array.dtype), _modes(call, x)

    def function(images: jax.Array, points: jax.Array) -> jax.Array:
        return sampled(images, points, *modes)

    _, pull = jax.vjp(function, x.array.astype(compute), grid.array.astype(compute))
    parts = zip(pull(slope.array.astype(compute)), (x, grid), call.arg("output_mask"), strict=True)
    return [Padded(v, operand.dims) if wanted else None for v, operand, wanted in parts]


RULES: Mapping[str, Rule] = {
    f"aten::grid_sampler_{spatial}d{suffix}": rule
    for spatial in (2, 3)
    for suffix, rule in (("", _forward), ("_backward", _backward))
}
