# SPDX-License-Identifier: Apache-2.0
"""LSTM, GRU and RNN layers as one operator per layer and direction.

PyTorch makes these of an operator per step and gate; a program then grows with the length of the
sequence, and takes minutes to compile. On the device a layer is a loop in the program instead
(`torchtpu_core.lowering.recurrent_layers`). What the loop does not cover (transforms of
`torch.func`, forward-mode derivatives, operands PyTorch would refuse) goes PyTorch's way, and so
does the derivative of a gradient.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.nn import functional

_GATES = {"lstm": 4, "gru": 3, "tanh": 1, "relu": 1}
#: Columns of a step's workspace, in units of the hidden size.
_WORK = {"lstm": 4, "gru": 5, "tanh": 1, "relu": 1}
_STEPPED = {
    "lstm": torch.ops.aten.lstm,
    "gru": torch.ops.aten.gru,
    "tanh": torch.ops.aten.rnn_tanh,
    "relu": torch.ops.aten.rnn_relu,
}
_served = torch.library.Library("aten", "IMPL")
_library = torch.library.Library("torchtpu", "FRAGMENT")
_library.define(
    "recurrent_layer(Tensor input, Tensor? batch_sizes, Tensor hx, Tensor? cx, Tensor w_ih, "
    "Tensor w_hh, Tensor? b_ih, Tensor? b_hh, Tensor? w_hr, str cell, bool reverse, bool saving) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
_library.define(
    "recurrent_layer_backward(Tensor? grad_output, Tensor? grad_hidden, Tensor? grad_cell, "
    "Tensor input, Tensor? batch_sizes, Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, "
    "Tensor? w_hr, Tensor output, Tensor work, Tensor cells, str cell, bool reverse) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
#: Called before a layer runs.
watchers: list[Callable[[], None]] = []
_KEYS = ("AutogradPrivateUse1", "PrivateUse1")


@functools.cache
def register() -> None:
    """Serve the layers of `torch.nn` on the device, and in plans, which have none."""
    for overload, function in implementations().items():
        for key in _KEYS:
            _served.impl(overload, _watched(function), key)


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        for look in watchers:
            look()
        return function(*args)

    return run


def implementations() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """What serves a call of a layer on the device, by overload."""
    dense = {packet.input: _dense(cell) for cell, packet in _STEPPED.items()}
    return {**dense, **{packet.data: _packed(cell) for cell, packet in _STEPPED.items()}}


@dataclass(frozen=True, slots=True)
class _Layers:
    """A call of `aten::lstm` and its like.

    Attributes:
        cell: lstm, gru, tanh or relu.
        hx: hidden states `(layers * directions, B, P)`, and for an LSTM cell states with H in
            the place of P; the two differ where the hidden state is projected.
        params: of every layer and direction, in PyTorch's order.
        has_biases: four of them for each, or two, and a projection.
        count: layers.
        dropout: between layers, 0 outside training.
        directions: 1 or 2.
    """

    cell: str
    hx: Sequence[torch.Tensor]
    params: Sequence[torch.Tensor]
    has_biases: bool
    count: int
    dropout: float
    directions: int

    def run(self, x: torch.Tensor, batch_sizes: torch.Tensor | None) -> tuple[torch.Tensor, ...]:
        """Output of the last layer, and the stacked last states."""
        states: list[tuple[torch.Tensor, ...]] = []
        each = self._weights()
        saving = torch.is_grad_enabled() and any(
            t.requires_grad for t in (x, *self.hx, *self.params)
        )
        for layer in range(self.count):
            outputs = []
            for direction in range(self.directions):
                first = [state.select(0, len(states)) for state in self.hx]
                cx = first[1] if self.cell == "lstm" else None
                output, hidden, state, _, _ = torch.ops.torchtpu.recurrent_layer(
                    *(x, batch_sizes, first[0], cx, *next(each)),
                    *(self.cell, direction == 1, saving),
                )
                outputs.append(output)
                states.append((hidden, state)[: len(self.hx)])
            x = outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
            if self.dropout and layer + 1 < self.count:
                x = functional.dropout(x, self.dropout, True)
        return x, *(torch.stack(kind) for kind in zip(*states, strict=True))

    def covers(self, x: torch.Tensor, batch_sizes: torch.Tensor | None) -> bool:
        """Whether the operands are as the loop expects them."""
        tensors = (x, *self.hx, *self.params)
        if len(self.hx) != (2 if self.cell == "lstm" else 1):
            return False
        if len(self.params) != self.count * self.directions * self._each:
            return False
        if x.dim() != (2 if batch_sizes is not None else 3) or 0 in x.shape:
            return False
        if _transformed() or not x.dtype.is_floating_point:
            return False
        if any(t.device != x.device or t.dtype != x.dtype for t in tensors):
            return False
        return self._fit(x, batch_sizes)

    def _fit(self, x: torch.Tensor, batch_sizes: torch.Tensor | None) -> bool:
        """Whether the shapes are those of layers."""
        widths = [state.shape[-1] for state in self.hx]
        hidden, state = widths[0], widths[-1]
        batch = self.hx[0].shape[1] if batch_sizes is not None else x.shape[1]
        rows = (self.count * self.directions, batch)
        gates, features = _GATES[self.cell] * state, x.shape[-1]
        fits = 0 not in widths and all(tuple(s.shape[:-1]) == rows for s in self.hx)
        for number, (w_ih, w_hh, *biases, w_hr) in enumerate(self._weights()):
            above = number >= self.directions
            width = hidden * self.directions if above else features
            fits = fits and tuple(w_ih.shape) == (gates, width)
            fits = fits and tuple(w_hh.shape) == (gates, hidden)
            fits = fits and all(b is None or tuple(b.shape) == (gates,) for b in biases)
            fits = fits and (w_hr is None or tuple(w_hr.shape) == (hidden, state))
        return fits

    @property
    def _projects(self) -> bool:
        """Whether the hidden state is narrower than the cell state, as PyTorch finds it out."""
        return self.hx[0].shape[-1] != self.hx[-1].shape[-1]

    @property
    def _each(self) -> int:
        """Parameters of one direction of one layer."""
        return (4 if self.has_biases else 2) + self._projects

    def _weights(self) -> Iterator[tuple[Any, ...]]:
        """`w_ih, w_hh, b_ih, b_hh, w_hr` of each direction of each layer, None where absent."""
        for start in range(0, len(self.params), self._each):
            given = list(self.params[start : start + self._each])
            projection = given.pop() if self._projects else None
            yield (*given, *(() if self.has_biases else (None, None)), projection)


def _dense(cell: str) -> Callable[..., Any]:
    packet = _STEPPED[cell]

    def run(
        input: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> Any:
        options = (has_biases, num_layers, dropout, train, bidirectional)
        x, layers = _prepared(cell, input, hx, params, *options)
        x = x.transpose(0, 1) if batch_first and x.dim() == 3 else x
        if not layers.covers(x, None):
            return _by_steps(packet.input, input, hx, params, *options, batch_first)
        output, *last = layers.run(x, None)
        return (output.transpose(0, 1) if batch_first else output), *last

    return run


def _packed(cell: str) -> Callable[..., Any]:
    packet = _STEPPED[cell]

    def run(
        data: torch.Tensor,
        batch_sizes: torch.Tensor,
        hx: Any,
        params: Sequence[torch.Tensor],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
    ) -> Any:
        options = (has_biases, num_layers, dropout, train, bidirectional)
        x, layers = _prepared(cell, data, hx, params, *options)
        if not layers.covers(x, batch_sizes):
            return _by_steps(packet.data, data, batch_sizes, hx, params, *options)
        return layers.run(x, batch_sizes.to(x.device))

    return run


def _prepared(
    cell: str,
    input: torch.Tensor,
    hx: Any,
    params: Sequence[torch.Tensor],
    has_biases: bool,
    count: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
) -> tuple[torch.Tensor, _Layers]:
    """The input and the layers of a call, in the precision that autocast asks for."""
    states = hx if cell == "lstm" else [hx]
    (x,), states, weights = _autocast([input], states, params)
    chance, directions = dropout if train else 0.0, 2 if bidirectional else 1
    return x, _Layers(cell, states, weights, has_biases, count, chance, directions)


def _by_steps(overload: torch._ops.OpOverload, *args: Any) -> Any:
    """PyTorch's own implementation of a layer: with forward-mode derivatives the one in Python,
    because the fused cells of the other have none."""
    if forward_ad._current_level >= 0:
        importlib.import_module("torch._decomp.decompositions")  # registers it
        return overload.decompose(*args)
    return overload._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args)


def _autocast(*groups: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Operands in the precision that autocast asks for, as its products are."""
    dtype = torch.get_autocast_dtype("tpu") if torch.is_autocast_enabled("tpu") else None
    for tensors in groups:
        yield [
            t.to(dtype) if dtype and t.is_floating_point() and t.dtype != torch.float64 else t
            for t in tensors
        ]


def _transformed() -> bool:
    """Whether derivatives are taken in a way that operators of `torch.library` do not support."""
    return forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active()


def _steps(input: torch.Tensor, batch_sizes: torch.Tensor | None) -> int:
    return input.shape[0] if batch_sizes is None else batch_sizes.shape[0]


@torch.library.register_fake("torchtpu::recurrent_layer", lib=_library)
def _fake(
    input: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    b_ih: torch.Tensor | None,
    b_hh: torch.Tensor | None,
    w_hr: torch.Tensor | None,
    cell: str,
    reverse: bool,
    saving: bool,
) -> tuple[torch.Tensor, ...]:
    batch, width = hx.shape
    hidden = width if cx is None else cx.shape[1]
    steps, lstm = _steps(input, batch_sizes), cx is not None
    none = (0,)
    return (
        input.new_empty((*input.shape[:-1], width)),
        input.new_empty((batch, width)),
        input.new_empty((batch, hidden) if lstm else none),
        input.new_empty((steps, batch, _WORK[cell] * hidden) if saving else none),
        input.new_empty((steps, batch, hidden) if saving and lstm else none),
    )


@torch.library.register_fake("torchtpu::recurrent_layer_backward", lib=_library)
def _fake_backward(
    grad_output: torch.Tensor | None,
    grad_hidden: torch.Tensor | None,
    grad_cell: torch.Tensor | None,
    input: torch.Tensor,
    batch_sizes: torch.Tensor | None,
    hx: torch.Tensor,
    cx: torch.Tensor | None,
    w_ih: torch.Tensor,
    w_hh: torch.Tensor,
    w_hr: torch.Tensor | None,
    output: torch.Tensor,
    work: torch.Tensor,
    cells: torch.Tensor,
    cell: str,
    reverse: bool,
) -> tuple[torch.Tensor, ...]:
    bias = (w_ih.shape[0],)
    cx_shape, projection = (() if t is None else t.shape for t in (cx, w_hr))
    shapes = (input.shape, hx.shape, cx_shape or (0,), w_ih.shape, w_hh.shape)
    return tuple(input.new_empty(s) for s in (*shapes, bias, bias, projection or (0,)))


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *operands, cell, reverse, _ = inputs
    result, _, _, work, cells = output
    ctx.save_for_backward(*operands, result, work, cells)
    ctx.mark_non_differentiable(work, cells)
    ctx.set_materialize_grads(False)
    ctx.cell, ctx.reverse = cell, reverse


def _backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    *operands, output, work, cells = ctx.saved_tensors
    input, batch_sizes, hx, cx, w_ih, w_hh, _, _, w_hr = operands
    needed = ctx.needs_input_grad[: len(operands)]
    given = grads[:3]
    if all(g is None for g in given):
        return (None,) * len(ctx.needs_input_grad)
    if torch.is_grad_enabled():
        found = _differentiable_gradients(ctx, operands, given)
    else:
        d_input, d_hx, d_cx, *d_params = torch.ops.torchtpu.recurrent_layer_backward(
            *given,
            input,
            batch_sizes,
            hx,
            cx,
            w_ih,
            w_hh,
            w_hr,
            output,
            work,
            cells,
            ctx.cell,
            ctx.reverse,
        )
        found = [d_input, None, d_hx, d_cx, *d_params]
    return (*(g if n else None for g, n in zip(found, needed, strict=True)), None, None, None)


def _differentiable_gradients(
    ctx: Any, operands: Sequence[torch.Tensor | None], grads: Sequence[torch.Tensor | None]
) -> list[torch.Tensor | None]:
    """Gradients that can be differentiated again: PyTorch's own steps, and their gradients."""
    results = _stepped(operands, ctx.cell, ctx.reverse)
    pairs = [(r, g) for r, g in zip(results, grads, strict=False) if g is not None]
    wanted = [i for i, n in enumerate(ctx.needs_input_grad[: len(operands)]) if n]
    found = torch.autograd.grad(
        [r for r, _ in pairs],
        [operands[i] for i in wanted],  # type: ignore[misc]
        [g for _, g in pairs],
        create_graph=True,
        allow_unused=True,
    )
    by_position = dict(zip(wanted, found, strict=True))
    return [by_position.get(i) for i in range(len(operands))]


def _stepped(
    operands: Sequence[torch.Tensor | None], cell: str, reverse: bool
) -> tuple[torch.Tensor, ...]:
    """What `recurrent_layer` returns, made of PyTorch's own steps: a forward layer, or the
    backward half of a bidirectional one whose forward half has the same weights."""
    x, batch_sizes, hx, cx, *params = operands
    assert x is not None and hx is not None
    twice = 2 if reverse else 1
    states = [torch.stack([s] * twice) for s in (hx, cx) if s is not None]
    state = states if cell == "lstm" else states[0]
    weights = [p for p in params if p is not None] * twice
    rest = (params[2] is not None, 1, 0.0, False, reverse)
    packet = _STEPPED[cell]
    if batch_sizes is None:
        output, *last = _by_steps(packet.input, x, state, weights, *rest, False)
    else:
        output, *last = _by_steps(packet.data, x, batch_sizes.cpu(), state, weights, *rest)
    output = output[..., hx.shape[-1] :] if reverse else output
    return output, *(s[-1] for s in last)


torch.library.register_autograd(
    "torchtpu::recurrent_layer", _backward, setup_context=_setup_context, lib=_library
)
