# SPDX-License-Identifier: Apache-2.0
"""Rules for lookups by index.

Indices in the padding are zero; negative ones count from the true end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from torchtpu_core.lowering import checks

from torchtpu_compile.bounded import Call, Rule, align, joint_dims
from torchtpu_compile.bounded_rules.common import dim_of, refuse
from torchtpu_compile.padded import Dim, Padded, is_padded, true_size


def _clean(call: Call, index: Padded, dim: Dim, *, negative: bool) -> Padded:
    """Indices into a dimension: 0 in the padding, non-negative and checked if it is padded."""
    index = call.sizes.filled(index, 0)
    if not is_padded(dim):
        return index
    size = call.sizes.true(true_size(dim)).astype(index.array.dtype)
    low = -size if negative else jnp.zeros_like(size)
    checks.require(
        (index.array >= low) & (index.array < size), IndexError, "index out of range in self"
    )
    return Padded(jnp.where(index.array < 0, index.array + size, index.array), index.dims)


def _embedding(call: Call) -> Padded:
    weight, indices = call.args[0], call.args[1]
    call.args[1] = _clean(call, indices, weight.dims[0], negative=False)
    return Padded(call.run(), (*indices.dims, *weight.dims[1:]))


def _embedding_backward(call: Call) -> Padded:
    grad, indices = call.args[0], call.args[1]
    lead = grad.dims[:-1]
    flat = grad
    if len(lead) == len(indices.dims) and any(
        a != b for a, b in zip(lead, indices.dims, strict=True)
    ):
        flat, indices = call.sizes.compact(flat), call.sizes.compact(indices)
    call.args[0] = call.sizes.filled(flat, 0)
    call.args[1] = call.sizes.filled(indices, 0)
    return call.result(call.run())


def _index(call: Call) -> Padded:
    x = call.sizes.compact(call.args[0])
    indices = call.args[1]
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].array.dtype in (np.bool_, np.uint8) for d in used):
        raise refuse(call, "is indexed by a mask")
    aligned = align(call.sizes, [indices[d] for d in used])
    cleaned: list[Any] = [None] * len(indices)
    for d, index in zip(used, aligned, strict=True):
        cleaned[d] = _clean(call, index, x.dims[d], negative=True)
    joint = joint_dims(aligned)
    call.args[:2] = [x, cleaned]
    rest = [dim for d, dim in enumerate(x.dims) if d not in used]
    consecutive = used == list(range(used[0], used[-1] + 1))
    at = used[0] if consecutive else 0
    return Padded(call.run(), (*rest[:at], *joint, *rest[at:]))


def _index_select(call: Call) -> Padded:
    x, index = call.sizes.compact(call.args[0]), call.args[2]
    dim = dim_of(x, call.args[1])
    call.args[0], call.args[2] = x, _clean(call, index, x.dims[dim], negative=False)
    return Padded(call.run(), (*x.dims[:dim], *index.dims, *x.dims[dim + 1 :]))


def _gather(call: Call) -> Padded:
    x, index = call.sizes.compact(call.args[0]), call.sizes.compact(call.args[2])
    dim = dim_of(x, call.args[1])
    call.args[0], call.args[2] = x, _clean(call, index, x.dims[dim], negative=False)
    return Padded(call.run(), index.dims)


def _adding_scatter(call: Call) -> Padded:
    """Adds of zero where the source is padding."""
    x = call.args[0] = call.sizes.compact(call.args[0])
    index, source = call.sizes.compact(call.args[2]), call.sizes.compact(call.args[3])
    dim = dim_of(x, call.args[1])
    call.args[2] = _clean(call, index, x.dims[dim], negative=False)
    call.args[3] = call.sizes.filled(source, 0)
    return Padded(call.run(), x.dims)


def _index_put(call: Call) -> Padded:
    x = call.sizes.compact(call.args[0])
    indices, values = call.args[1], call.args[2]
    used = [d for d, i in enumerate(indices) if i is not None]
    if any(indices[d].array.dtype in (np.bool_, np.uint8) for d in used):
        raise refuse(call, "is indexed by a mask")
    adds = bool(call.arg("accumulate"))
    if any(indices[d].padded_dims for d in used) and not adds:
        raise refuse(call, "writes through an index of open size")
    aligned = align(call.sizes, [indices[d] for d in used])
    cleaned: list[Any] = [None] * len(indices)
    for d, index in zip(used, aligned, strict=True):
        cleaned[d] = _clean(call, index, x.dims[d], negative=True)
    call.args[:3] = [x, cleaned, call.sizes.filled(values, 0) if adds else values]
    return Padded(call.run(), x.dims)


def _index_copy(call: Call) -> Padded:
    x, index = call.sizes.compact(call.args[0]), call.args[2]
    dim = dim_of(x, call.args[1])
    if index.padded_dims:
        raise refuse(call, "writes through an index of open size")
    call.args[0], call.args[3] = x, call.sizes.compact(call.args[3])
    call.args[2] = _clean(call, index, x.dims[dim], negative=False)
    return Padded(call.run(), x.dims)


RULES: Mapping[str, Rule] = {
    "aten::embedding": _embedding,
    "aten::embedding_dense_backward": _embedding_backward,
    "aten::index.Tensor": _index,
    "aten::_unsafe_index.Tensor": _index,
    "aten::index_select": _index_select,
    "aten::gather": _gather,
    "aten::scatter_add": _adding_scatter,
    "aten::index_add": _adding_scatter,
    "aten::index_put": _index_put,
    "aten::_unsafe_index_put": _index_put,
    "aten::index_copy": _index_copy,
}
