# SPDX-License-Identifier: Apache-2.0
"""Rules for softmax and normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from torchtpu_compile.bounded import Call, Rule, align
from torchtpu_compile.bounded_rules.common import dim_of, require_plain
from torchtpu_compile.padded import Padded, is_padded


def _softmax(call: Call) -> Padded:
    x = call.args[0]
    dim = dim_of(x, call.args[1])
    call.args[0] = call.sizes.filled(x, -jnp.inf, [dim])
    return Padded(call.run(), x.dims)


def _softmax_backward(call: Call) -> Padded:
    grad, output = align(call.sizes, call.args[:2])
    dim = dim_of(output, call.args[2])
    call.args[:2] = [call.sizes.filled(x, 0, [dim]) for x in (grad, output)]
    return Padded(call.run(), output.dims)


def _layer_norm(call: Call) -> Any:
    x = call.args[0]
    lead = len(x.dims) - len(call.args[1])
    require_plain(call, x, range(lead, len(x.dims)))
    out, mean, rstd = call.run()
    statistics = (*x.dims[:lead], *((),) * (len(x.dims) - lead))
    return [Padded(out, x.dims), Padded(mean, statistics), Padded(rstd, statistics)]


def _layer_norm_backward(call: Call) -> Any:
    # aten::native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, ...)
    x = call.args[1]
    lead = len(x.dims) - len(call.args[2])
    require_plain(call, x, range(lead, len(x.dims)))
    grad, x, mean, rstd = align(call.sizes, [call.args[i] for i in (0, 1, 3, 4)])
    for i, value in zip((0, 1, 3, 4), (grad, x, mean, rstd), strict=True):
        call.args[i] = call.sizes.filled(value, 0)
    results = call.run()
    own = x.dims[lead:]
    dims = (x.dims, own, own)
    return [None if r is None else Padded(r, d) for r, d in zip(results, dims, strict=True)]


def _rms_norm(call: Call) -> Any:
    x = call.args[0]
    lead = len(x.dims) - len(call.args[1])
    require_plain(call, x, range(lead, len(x.dims)))
    out, rstd = call.run()
    return [Padded(out, x.dims), Padded(rstd, (*x.dims[:lead], *((),) * (len(x.dims) - lead)))]


def _evaluated_batch_norm(call: Call) -> Any:
    """Batch norm with running statistics: each element on its own."""
    x = call.args[0]
    channel = is_padded(x.dims[1])
    if channel:
        require_plain(call, x, [1])
    results = list(call.run())
    return [Padded(results[0], x.dims), *results[1:]]


RULES: Mapping[str, Rule] = {
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_fused_rms_norm": _rms_norm,
    "aten::_native_batch_norm_legit_no_training": _evaluated_batch_norm,
}
