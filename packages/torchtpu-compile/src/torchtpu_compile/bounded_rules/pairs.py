# SPDX-License-Identifier: Apache-2.0
"""Rules for the distances of all pairs of rows, which lie in one line, row by row.

The rows of the padding have pairs too, in between: the op's own row computes all pairs of the
padded rows, and the true ones are put into, or taken from, the line of true pairs.

Legend: P rows, pairs (i, j) of rows with i < j.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.padded import Padded, padded_size, true_size


def _rows(call: Call, name: str) -> Padded:
    """The rows, their coordinates in the padding equal."""
    x = call.sizes.compact(call.arg(name))
    return call.sizes.filled(x, 0, [1])


def _places(call: Call, x: Padded, room: int) -> jax.Array:
    """Where each pair of the padded rows is among the true pairs; `room` if it is none of them."""
    first, second = np.triu_indices(padded_size(x.dims[0]), 1)
    rows = call.sizes.true(true_size(x.dims[0]))
    place = first * (2 * rows - first - 1) // 2 + second - first - 1
    return jnp.where(second < rows, place, room)


def _distances(call: Call) -> Padded:
    # aten::_pdist_forward(self, p)
    x = _rows(call, "self")
    call.set("self", x)
    values, line = call.run(), call.sizes.dim(call.exprs()[0])
    room = padded_size(line)
    result = jnp.zeros((room,), values.dtype)
    return Padded(result.at[_places(call, x, room)].set(values, mode="drop"), (line,))


def _distances_backward(call: Call) -> Padded:
    # aten::_pdist_backward(grad, self, p, pdist)
    x = _rows(call, "self")
    call.set("self", x)
    for name in ("grad", "pdist"):
        line = call.sizes.compact(call.arg(name))
        places = _places(call, x, line.array.size)
        values = line.array.at[places].get(mode="fill", fill_value=0)
        call.set(name, call.sizes.static(values))
    return Padded(call.run(), x.dims)


RULES: Mapping[str, Rule] = {
    "aten::_pdist_forward": _distances,
    "aten::_pdist_backward": _distances_backward,
}
