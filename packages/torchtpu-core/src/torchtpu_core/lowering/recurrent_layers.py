# SPDX-License-Identifier: Apache-2.0
"""One direction of one recurrent layer: a loop in the program instead of a step per operator.

The input's part of the gates is one product for all steps; the loop holds the part of the state.
The backward pass runs the loop the other way round with what the forward pass saved, and the
products for weights and input follow it, again one for all steps.

Legend: T steps, B batch, F features, H hidden, G gates side by side (`4H` LSTM, `3H` GRU, `H`
otherwise), P width of the hidden state (H, unless an LSTM projects it), W width of a step's
workspace. A packed sequence has N rows, those of step t after those of step t - 1, and
``batch_sizes[t]`` sequences that are at least t + 1 long; its first sequences are the longest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import matmul, recurrent
from torchtpu_core.lowering.table import Lowering, native

Maybe: TypeAlias = "jax.Array | None"
#: The new hidden and cell state, and what the backward pass needs.
Stepped: TypeAlias = tuple[jax.Array, Maybe, jax.Array]


class _Saved(NamedTuple):
    """What the backward pass of one step knows.

    Attributes:
        work: the step's workspace, `(B, W)`.
        before: cell state before the step, None without one.
        after: cell state after it.
    """

    work: jax.Array
    before: Maybe
    after: Maybe


class _Cell(NamedTuple):
    """A kind of cell.

    Attributes:
        step: both parts of the gates, hidden and cell state -> the new states, workspace.
        back: gradients of hidden and cell state, what was saved -> gradients of both parts of
            the gates, of the cell state before, and what else reaches the hidden state.
    """

    step: Callable[[jax.Array, jax.Array, jax.Array, Maybe], Stepped]
    back: Callable[
        [jax.Array, Maybe, _Saved], tuple[jax.Array, jax.Array, Maybe, jax.Array | float]
    ]


def _lstm(x: jax.Array, h: jax.Array, hidden: jax.Array, cell: Maybe) -> Stepped:
    assert cell is not None
    return recurrent.lstm_cell(x, h, cell)


def _lstm_back(grad: jax.Array, grad_cell: Maybe, saved: _Saved) -> Any:
    assert saved.before is not None and saved.after is not None
    gates, before, _ = recurrent.lstm_cell_backward(
        grad, grad_cell, saved.before, saved.after, saved.work, False
    )
    return gates, gates, before, 0.0


def _gru(x: jax.Array, h: jax.Array, hidden: jax.Array, cell: Maybe) -> Stepped:
    new, work = recurrent.gru_cell(x, h, hidden)
    return new, None, work


def _gru_back(grad: jax.Array, grad_cell: Maybe, saved: _Saved) -> Any:
    inputs, hiddens, before, _, _ = recurrent.gru_cell_backward(grad, saved.work, False)
    return inputs, hiddens, None, before


def _tanh(x: jax.Array, h: jax.Array, hidden: jax.Array, cell: Maybe) -> Stepped:
    new = lax.tanh(x + h)
    return new, None, new


def _tanh_back(grad: jax.Array, grad_cell: Maybe, saved: _Saved) -> Any:
    gates = grad * (1 - saved.work * saved.work)
    return gates, gates, None, 0.0


def _relu(x: jax.Array, h: jax.Array, hidden: jax.Array, cell: Maybe) -> Stepped:
    new = jnp.maximum(x + h, 0)
    return new, None, new


def _relu_back(grad: jax.Array, grad_cell: Maybe, saved: _Saved) -> Any:
    gates = jnp.where(saved.work > 0, grad, 0)
    return gates, gates, None, 0.0


CELLS = {
    "lstm": _Cell(_lstm, _lstm_back),
    "gru": _Cell(_gru, _gru_back),
    "tanh": _Cell(_tanh, _tanh_back),
    "relu": _Cell(_relu, _relu_back),
}


class _Packing:
    """Where the rows of a packed sequence are in a padded one.

    Args:
        batch_sizes: `(T,)`.
        rows: N.
        batch: B.
        counted: `(N, 1)`, the rows that are no padding; None: all.

    Attributes:
        valid: `(T, B, 1)`, whether a sequence has that step.
    """

    def __init__(self, batch_sizes: jax.Array, rows: int, batch: int, counted: Maybe) -> None:
        self._counted = counted
        sizes = batch_sizes.astype(jnp.int32)
        ends = jnp.cumsum(sizes)
        starts, lanes = ends - sizes, jnp.arange(batch, dtype=jnp.int32)
        valid = lanes < sizes[:, None]
        self.valid = valid[:, :, None]
        self._row = jnp.where(valid, starts[:, None] + lanes, 0)
        row = jnp.arange(rows, dtype=jnp.int32)
        self._step = jnp.searchsorted(ends, row, side="right")
        self._lane = row - starts[self._step]

    def pad(self, packed: jax.Array) -> jax.Array:
        """`(N, ...)` -> `(T, B, ...)`, zero where there is no row."""
        return jnp.where(self.valid, packed[self._row], 0)

    def pack(self, padded: jax.Array) -> jax.Array:
        """`(T, B, H)` -> `(N, H)`, zero where a row does not count."""
        packed = padded[self._step, self._lane]
        return packed if self._counted is None else jnp.where(self._counted, packed, 0)


class _Dense:
    """Steps that are there already, of which some do not count.

    Args:
        valid: `(T, B, 1)`, which do.
    """

    def __init__(self, valid: jax.Array) -> None:
        self.valid = valid

    def pad(self, steps: jax.Array) -> jax.Array:
        """Zero where a step does not count."""
        return jnp.where(self.valid, steps, 0)

    def pack(self, steps: jax.Array) -> jax.Array:
        """As they are."""
        return steps


def _packing(
    batch_sizes: Maybe, valid: Maybe, input: jax.Array, hx: jax.Array
) -> _Packing | _Dense | None:
    """Which steps count and where they are; None: all, one after another."""
    if batch_sizes is not None:
        return _Packing(batch_sizes, input.shape[0], hx.shape[0], valid)
    return None if valid is None else _Dense(valid)


def _padded(packing: _Packing | _Dense | None, x: jax.Array) -> jax.Array:
    return packing.pad(x) if packing else x


def _kept(valid: Maybe, new: Maybe, old: Maybe) -> Maybe:
    """The new state, or the old one of sequences without this step."""
    if valid is None or new is None or old is None:
        return new
    return jnp.where(valid, new, old)


def _before(states: jax.Array, first: jax.Array, reverse: bool) -> jax.Array:
    """The state before each step `(T, B, H)`, from the states after each and the first."""
    if reverse:
        return jnp.concatenate([states[1:], first[None]])
    return jnp.concatenate([first[None], states[:-1]])


def recurrent_layer(
    input: jax.Array,
    batch_sizes: Maybe,
    hx: jax.Array,
    cx: Maybe,
    w_ih: jax.Array,
    w_hh: jax.Array,
    b_ih: Maybe,
    b_hh: Maybe,
    w_hr: Maybe,
    cell: str,
    reverse: bool,
    saving: bool,
    valid: Maybe = None,
) -> tuple[jax.Array, ...]:
    """Run one direction of a layer.

    Args:
        input: `(T, B, F)`, or `(N, F)` with `batch_sizes` `(T,)`.
        batch_sizes: of a packed sequence.
        hx: hidden state `(B, P)`.
        cx: cell state `(B, H)` of an LSTM.
        w_ih: `(G, F)`.
        w_hh: `(G, P)`.
        b_ih: `(G,)`, or None.
        b_hh: `(G,)`, or None.
        w_hr: projection `(P, H)` of an LSTM's hidden state, or None.
        cell: a key of `CELLS`.
        reverse: from the last step to the first.
        saving: keep what the backward pass needs.
        valid: `(T, B, 1)`, the steps that count, of a packed input its rows `(N, 1)`; None: all.
            The others keep the state of their sequence.

    Returns:
        Output `(T, B, P)` or `(N, P)`, last hidden state `(B, P)`, last cell state `(B, H)`,
        workspaces `(T, B, W)`, cell states `(T, B, H)`; empty where there is none.
    """
    packing = _packing(batch_sizes, valid, input, hx)
    gates = _padded(packing, matmul.linear(input, w_ih, b_ih))
    step = CELLS[cell].step

    def body(carry: tuple[jax.Array, Maybe], at: tuple[jax.Array, Maybe]) -> Any:
        (hidden, state), (x, valid) = carry, at
        new, new_state, work = step(x, matmul.linear(hidden, w_hh, b_hh), hidden, state)
        new = new if w_hr is None else matmul.linear(new, w_hr)
        new, new_state = _kept(valid, new, hidden), _kept(valid, new_state, state)
        return (new, new_state), (new, (work, new_state) if saving else None)

    steps = (gates, packing.valid if packing else None)
    (last, last_state), (states, saved) = lax.scan(body, (hx, cx), steps, reverse=reverse)
    output = packing.pack(states) if packing else states
    none = jnp.zeros((0,), input.dtype)
    results = (output, last, last_state, *(saved or (None, None)))
    return tuple(none if r is None else r for r in results)


def recurrent_layer_backward(
    grad_output: Maybe,
    grad_hidden: Maybe,
    grad_cell: Maybe,
    input: jax.Array,
    batch_sizes: Maybe,
    hx: jax.Array,
    cx: Maybe,
    w_ih: jax.Array,
    w_hh: jax.Array,
    w_hr: Maybe,
    output: jax.Array,
    work: jax.Array,
    cells: jax.Array,
    cell: str,
    reverse: bool,
    valid: Maybe = None,
) -> tuple[jax.Array, ...]:
    """Gradients of `recurrent_layer`.

    Args:
        grad_output: of the output, or None.
        grad_hidden: of the last hidden state, or None.
        grad_cell: of the last cell state, or None.
        input: as in the forward pass, like all that is not listed.
        output: its result.
        work: its workspaces.
        cells: its cell states.

    Returns:
        Gradients of input, hx, cx (empty without one), w_ih, w_hh, of b_ih and b_hh `(G,)`, and of
        w_hr (empty without one).
    """
    dtype = input.dtype
    packing = _packing(batch_sizes, valid, input, hx)
    grads = None if grad_output is None else _padded(packing, grad_output)
    states = _padded(packing, output)
    if packing is not None:
        # A later start reads the first state.
        states = jnp.where(packing.valid, states, hx)
        cells = cells if cx is None else jnp.where(packing.valid, cells, cx)
    hidden_before = _before(states, hx, reverse)
    befores = None if cx is None else _before(cells, cx, reverse)
    afters = None if cx is None else cells
    back = CELLS[cell].back

    def times(grad: jax.Array, weight: jax.Array) -> jax.Array:
        return matmul.contract(grad, weight, 1, 0, out=matmul.accumulator(dtype)).astype(dtype)

    def body(carry: tuple[jax.Array, Maybe], at: Any) -> Any:
        (grad, grad_state), (grad_out, saved, valid) = carry, at
        total = grad if grad_out is None else grad + grad_out
        d_new = total if w_hr is None else times(total, w_hr)
        d_x, d_h, state_before, direct = back(d_new, grad_state, saved)
        before = _kept(valid, times(d_h, w_hh) + direct, total)
        found: tuple[Maybe, ...] = (d_x, d_h, total if w_hr is not None else None)
        if valid is not None:
            found = tuple(g if g is None else jnp.where(valid, g, 0) for g in found)
        return (before, _kept(valid, state_before, grad_state)), found

    first = (
        jnp.zeros_like(hx) if grad_hidden is None else grad_hidden,
        None if cx is None else (jnp.zeros_like(cx) if grad_cell is None else grad_cell),
    )
    steps = (grads, _Saved(work, befores, afters), packing.valid if packing else None)
    (d_hx, d_cx), (d_x, d_h, d_projected) = lax.scan(body, first, steps, reverse=not reverse)
    d_x = packing.pack(d_x) if packing else d_x
    everything = [True, True, True]
    d_input, d_w_ih, d_b_ih = matmul.linear_backward(input, d_x, w_ih, everything)
    _, d_w_hh, d_b_hh = matmul.linear_backward(hidden_before, d_h, w_hh, [False, True, True])
    d_w_hr = None
    if w_hr is not None:
        unprojected = recurrent.lstm_hidden(work, cells)
        _, d_w_hr, _ = matmul.linear_backward(unprojected, d_projected, w_hr, [False, True, False])
    none = jnp.zeros((0,), dtype)
    results = (d_input, d_hx, d_cx, d_w_ih, d_w_hh, d_b_ih, d_b_hh, d_w_hr)
    return tuple(none if r is None else r for r in results)


TABLE: tuple[Lowering, ...] = (
    native("torchtpu::recurrent_layer", recurrent_layer),
    native("torchtpu::recurrent_layer_backward", recurrent_layer_backward),
)
