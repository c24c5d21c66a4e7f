# SPDX-License-Identifier: Apache-2.0
"""Rules for recurrent layers: steps and sequences that are padding keep the state as it is.

Lengths and batches may be open, and the rows of packed sequences: steps in the padding have no
sequences, so that only rows in the padding are left to be told from others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from torchtpu_core.lowering import recurrent_layers

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import fitted, refuse, require_plain
from torchtpu_compile.padded import Padded, is_padded, padded_size, true_size


def _by_steps(function: Callable[..., Any]) -> Rule:
    """A rule for a layer or its gradients, which `function` computes for the steps that count."""

    def rule(call: Call) -> Any:
        counts = call.arg("batch_sizes")
        operands = [
            _standard(call, x, x is not counts) if isinstance(x, Padded) else x for x in call.args
        ]
        arrays = [x.array if isinstance(x, Padded) else x for x in operands]
        input = _standard(call, call.arg("input"))
        places = range(len(input.dims) - 1)
        valid = call.sizes.valid(Padded(input.array[..., :1], input.dims), places)
        if valid is not None:  # the loop takes a part of it per step, also where no step is padding
            valid = jnp.broadcast_to(valid, (*input.array.shape[:-1], 1))
        values = function(*arrays, valid=valid)
        return [_result(call, value, index) for index, value in enumerate(values)]

    return rule


def _standard(call: Call, x: Padded, has_features: bool = True) -> Padded:
    """Zeros in its padding, and each dimension as large as its true size asks for."""
    x = call.sizes.filled(call.sizes.compact(x), 0)
    require_plain(call, x, [len(x.dims) - 1] if x.dims and has_features else [])
    dims = tuple(call.sizes.dim(true_size(d)) for d in x.dims)
    return Padded(fitted(x.array, [padded_size(d) for d in dims]), dims)


def _result(call: Call, value: jax.Array, index: int) -> Padded:
    dims = tuple(call.sizes.dim(e) for e in call.exprs(index))
    if dims and is_padded(dims[-1]):
        raise refuse(call, "has features of open size")
    return Padded(value, dims)


RULES: Mapping[str, Rule] = {
    "torchtpu::recurrent_layer": _by_steps(recurrent_layers.recurrent_layer),
    "torchtpu::recurrent_layer_backward": _by_steps(recurrent_layers.recurrent_layer_backward),
}
