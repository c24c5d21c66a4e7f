# SPDX-License-Identifier: Apache-2.0
"""Rules for bags of embeddings.

Bags in the padding start at the true end of the indices, and one more bag behind them
takes what the padding of the indices would add.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import fitted
from torchtpu_compile.bounded_rules.indexing import clean
from torchtpu_compile.padded import Padded, padded_size, true_size


def _prepare(call: Call) -> None:
    """Give the row lookups of row 0 in the padding, and bags that end there."""
    indices, offsets = call.sizes.flat(call.arg("indices")), call.sizes.compact(call.arg("offsets"))
    end = call.sizes.true(true_size(indices.dims[0])).astype(offsets.array.dtype)
    starts = jnp.append(call.sizes.filled(offsets, end).array, end)
    call.set("indices", call.sizes.filled(indices, 0))
    call.set("offsets", Padded(starts, offsets.dims))
    if "per_sample_weights_backward" not in str(call.node.target):
        weights = call.arg("per_sample_weights")
        if weights is not None:
            call.set("per_sample_weights", call.sizes.filled(call.sizes.flat(weights), 0))


def _bags(call: Call) -> Any:
    _prepare(call)
    rows = call.sizes.compact(call.arg("weight"))
    call.set("weight", rows)
    call.set("indices", clean(call, call.arg("indices"), rows.dims[0], negative=False))
    call.set("include_last_offset", False)
    results = []
    for i, value in enumerate(call.run()):
        dims = tuple(call.sizes.dim(e) for e in call.exprs(i))
        results.append(Padded(fitted(value, [padded_size(d) for d in dims]), dims))
    return results


def _one_more_bag(call: Call, name: str, bags: int) -> None:
    x = call.sizes.filled(call.sizes.compact(call.arg(name)), 0)
    shape = (bags + 1, *x.array.shape[1:]) if x.array.size else x.array.shape
    call.set(name, Padded(fitted(x.array, shape), x.dims))


def _table_gradient(call: Call) -> Padded:
    _prepare(call)
    bags = call.sizes.compact(call.arg("grad")).array.shape[0]
    for name in ("grad", "bag_size", "maximum_indices"):
        _one_more_bag(call, name, bags)
    call.set("offset2bag", jnp.zeros((0,), np.int32))  # found again, with the bag behind the end
    call.set("num_weights", padded_size(call.sizes.dim(call.arg("num_weights"))))
    return call.result(call.run())


def _weight_gradient(call: Call) -> Padded:
    _prepare(call)
    _one_more_bag(call, "grad", call.sizes.compact(call.arg("grad")).array.shape[0])
    call.set("offset2bag", jnp.zeros((0,), np.int32))
    return call.result(call.run())


RULES: Mapping[str, Rule] = {
    "aten::_embedding_bag": _bags,
    "aten::_embedding_bag_forward_only": _bags,
    "aten::_embedding_bag_backward": _table_gradient,
    "aten::_embedding_bag_per_sample_weights_backward": _weight_gradient,
}
