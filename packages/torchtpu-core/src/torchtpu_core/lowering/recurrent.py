# SPDX-License-Identifier: Apache-2.0
"""The fused cells into which PyTorch sends LSTM and GRU steps on a PrivateUse1 device.

The workspace between forward and backward is private to this file.

Legend: B batch, H hidden; gates are stored side by side, `(B, 4H)` in the order input,
forget, cell, output for LSTM, `(B, 3H)` in the order reset, update, new for GRU.
"""

from __future__ import annotations

from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.table import Lowering, native

Maybe: TypeAlias = "jax.Array | None"


def _compute(x: jax.Array) -> jax.Array:
    return x.astype(dtypes.opmath(x.dtype))


def _biased(gates: jax.Array, bias: Maybe) -> jax.Array:
    x = _compute(gates)
    return x if bias is None else x + bias.astype(x.dtype)


def lstm_cell(
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    cx: jax.Array,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Hidden and cell state `(B, H)`, and the activated gates `(B, 4H)`."""
    gates = _biased(input_gates, input_bias) + _biased(hidden_gates, hidden_bias)
    i, f, g, o = jnp.split(gates, 4, axis=1)
    i, f, g, o = lax.logistic(i), lax.logistic(f), lax.tanh(g), lax.logistic(o)
    cell = f * cx.astype(gates.dtype) + i * g
    hidden = o * lax.tanh(cell)
    workspace = jnp.concatenate([i, f, g, o], axis=1)
    dtype = input_gates.dtype
    return hidden.astype(dtype), cell.astype(dtype), workspace.astype(dtype)


def lstm_hidden(workspace: jax.Array, cell: jax.Array) -> jax.Array:
    """The hidden states `(..., H)` that `lstm_cell` returned with these `(..., 4H)`, `(..., H)`."""
    _, _, _, o = jnp.split(_compute(workspace), 4, axis=-1)
    return (o * lax.tanh(_compute(cell))).astype(workspace.dtype)


def lstm_cell_backward(
    grad_hy: Maybe,
    grad_cy: Maybe,
    cx: jax.Array,
    cy: jax.Array,
    workspace: jax.Array,
    has_bias: bool,
) -> tuple[jax.Array, jax.Array, Maybe]:
    """Gradients of the gates `(B, 4H)`, the cell state `(B, H)` and each bias `(4H,)`."""
    i, f, g, o = jnp.split(_compute(workspace), 4, axis=1)
    one = i.dtype.type(1)
    squashed = lax.tanh(_compute(cy))
    zero = jnp.zeros_like(squashed)
    d_hidden = zero if grad_hy is None else _compute(grad_hy)
    d_cell = zero if grad_cy is None else _compute(grad_cy)
    d_cell = d_cell + d_hidden * o * (one - squashed * squashed)
    parts = (
        d_cell * g * i * (one - i),
        d_cell * _compute(cx) * f * (one - f),
        d_cell * i * (one - g * g),
        d_hidden * squashed * o * (one - o),
    )
    gates = jnp.concatenate(parts, axis=1)
    bias = jnp.sum(gates, axis=0).astype(workspace.dtype) if has_bias else None
    return gates.astype(workspace.dtype), (d_cell * f).astype(cx.dtype), bias


def gru_cell(
    input_gates: jax.Array,
    hidden_gates: jax.Array,
    hx: jax.Array,
    input_bias: Maybe = None,
    hidden_bias: Maybe = None,
) -> tuple[jax.Array, jax.Array]:
    """Hidden state `(B, H)`, and the workspace `(B, 5H)`: r, z, n, old state, hidden part of n."""
    inputs = jnp.split(_biased(input_gates, input_bias), 3, axis=1)
    hiddens = jnp.split(_biased(hidden_gates, hidden_bias), 3, axis=1)
    r, z = (lax.logistic(a + b) for a, b in zip(inputs[:2], hiddens[:2], strict=True))
    n = lax.tanh(inputs[2] + r * hiddens[2])
    old = hx.astype(n.dtype)
    hidden = n + z * (old - n)
    workspace = jnp.concatenate([r, z, n, old, hiddens[2]], axis=1)
    return hidden.astype(input_gates.dtype), workspace.astype(input_gates.dtype)


def gru_cell_backward(
    grad_hy: jax.Array, workspace: jax.Array, has_bias: bool
) -> tuple[jax.Array, jax.Array, jax.Array, Maybe, Maybe]:
    """Gradients of both kinds of gates `(B, 3H)`, the old state `(B, H)` and the biases."""
    r, z, n, old, hidden_n = jnp.split(_compute(workspace), 5, axis=1)
    grad, one = _compute(grad_hy), r.dtype.type(1)
    d_n = grad * (one - z) * (one - n * n)
    d_z = grad * (old - n) * z * (one - z)
    d_r = d_n * hidden_n * r * (one - r)
    inputs = jnp.concatenate([d_r, d_z, d_n], axis=1)
    hiddens = jnp.concatenate([d_r, d_z, d_n * r], axis=1)
    results = [inputs, hiddens, grad * z]
    biases = [jnp.sum(g, axis=0) if has_bias else None for g in (inputs, hiddens)]
    dtype = workspace.dtype
    return tuple(x if x is None else x.astype(dtype) for x in [*results, *biases])  # type: ignore[return-value]


TABLE: tuple[Lowering, ...] = (
    native("aten::_thnn_fused_lstm_cell", lstm_cell),
    native("aten::_thnn_fused_lstm_cell_backward_impl", lstm_cell_backward),
    native("aten::_thnn_fused_gru_cell", gru_cell),
    native("aten::_thnn_fused_gru_cell_backward", gru_cell_backward),
)
