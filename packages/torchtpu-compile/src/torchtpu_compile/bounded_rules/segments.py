# SPDX-License-Identifier: Apache-2.0
"""Rules for reductions over segments.

Segments in the padding are empty and begin where the true ones end, so that elements in the
padding are in none. The lowering's check that segments cover all elements would count those
too; it is made here, of the true sizes.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax.numpy as jnp
from torchtpu_core.lowering import checks

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.padded import Padded, true_size


def _prepare(call: Call) -> None:
    """Give the op whole dimensions, and segments of no elements in the padding."""
    for name in ("data", "grad", "output"):
        if _has(call, name):
            call.set(name, call.sizes.compact(call.arg(name)))
    lengths, offsets = call.arg("lengths"), call.arg("offsets")
    if lengths is not None:
        call.set("lengths", call.sizes.filled(call.sizes.compact(lengths), 0))
    if offsets is not None:
        bounds = call.sizes.compact(offsets)
        last = call.sizes.true(true_size(bounds.dims[-1])) - 1
        end = jnp.take(bounds.array, last, axis=-1)[..., None]
        ok = call.sizes.valid(bounds, [bounds.array.ndim - 1])
        starts = bounds.array if ok is None else jnp.where(ok, bounds.array, end)
        call.set("offsets", call.sizes.filled(Padded(starts, bounds.dims), 0, _lead(bounds)))


def _has(call: Call, name: str) -> bool:
    return any(a.name == name for a in call.node.target._schema.arguments)  # type: ignore[union-attr]


def _lead(x: Padded) -> range:
    return range(x.array.ndim - 1)


def _reduced(call: Call) -> Padded:
    _prepare(call)
    data, lengths = call.arg("data"), call.arg("lengths")
    if lengths is not None and call.arg("offsets") is None and not call.arg("unsafe"):
        _require_all(call, data, lengths)
        call.set("unsafe", True)
    return call.result(call.run())


def _require_all(call: Call, data: Padded, lengths: Padded) -> None:
    message = "segment_reduce(): lengths contains negative value!"
    checks.require(lengths.array >= 0, RuntimeError, message)
    count = call.sizes.true(true_size(data.dims[lengths.array.ndim - 1]))
    complete = lengths.array.sum(-1) == count
    valid = call.sizes.valid(lengths, _lead(lengths))
    checks.require(
        complete if valid is None else complete | ~valid[..., 0],
        RuntimeError,
        "segment_reduce(): Expected all rows of lengths along axis to sum to data.size(axis) "
        "when !unsafe.",
    )


def _gradient(call: Call) -> Padded:
    _prepare(call)
    return call.result(call.run())


RULES: Mapping[str, Rule] = {
    "aten::segment_reduce": _reduced,
    "aten::_segment_reduce_backward": _gradient,
}
