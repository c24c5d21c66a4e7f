# SPDX-License-Identifier: Apache-2.0
"""Images with their channels last inside a program, whatever order its operands have.

XLA:CPU convolves channels-last images only: for others it transposes the operand and the
result of each convolution (jaxlib 0.10.2; a training step of a small ResNet takes 1.35
times as long). PyTorch's order is channels first. So a program of several convolutions is
rewritten: the result of a convolution is held channels last, and each operation after it
takes it in the order it has. A value returns to PyTorch's order only where an operation
has no rule, or where it leaves the program.

The rewriting interprets the jaxpr. A value is a JAX array, an `_Ordered` array whose
dimensions stand in another order, or a `_Spread`, a broadcast that is not made yet because
it can be made in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint
from jax.extend import core, source_info_util

Order = tuple[int, ...]

#: Convolutions from which a program is rewritten. A single operator with its gradient has
#: two; there a transposition is needed either way.
MIN_CONVOLUTIONS = 3
#: Elements from which a gradient of weights is transposed once, for all who read it: about those
#: that stay in a core's cache. A copy of a smaller one costs more than it saves.
MIN_MOVED_ONCE = 1 << 18


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Dimension ``i`` of `array` is dimension ``order[i]`` of the value."""

    array: jax.Array
    order: Order


@dataclass(frozen=True, slots=True)
class _Spread:
    """`operand` broadcast to `shape`; its dimension ``i`` is dimension ``dims[i]``."""

    operand: jax.Array
    shape: tuple[int, ...]
    dims: tuple[int, ...]


_Value = Any  # jax.Array, _Ordered or _Spread


def channels_last(closed: core.ClosedJaxpr) -> Callable[..., tuple[jax.Array, ...]] | None:
    """A function that computes what a jaxpr does, with images held channels last.

    Args:
        closed: any program.

    Returns:
        The function, to be traced by JAX; None if the program has too few convolutions.
    """
    if _convolutions(closed.jaxpr) < MIN_CONVOLUTIONS:
        return None

    def function(*operands: jax.Array) -> tuple[jax.Array, ...]:
        results = _evaluate(closed.jaxpr, closed.consts, operands)
        return tuple(_plain(value) for value in results)

    return function


def _convolutions(jaxpr: core.Jaxpr) -> int:
    own = sum(eqn.primitive is core.primitives.conv_general_dilated_p for eqn in jaxpr.eqns)
    return own + sum(_convolutions(inner) for inner in core.subjaxprs(jaxpr))


def _evaluate(jaxpr: core.Jaxpr, consts: Sequence[Any], operands: Sequence[_Value]) -> list[_Value]:
    values: dict[core.Var, _Value] = dict(zip(jaxpr.constvars, consts, strict=True))
    values.update(zip(jaxpr.invars, operands, strict=True))

    def read(atom: Any) -> _Value:
        return atom.val if isinstance(atom, core.Literal) else values[atom]

    for eqn in jaxpr.eqns:
        inputs = [read(atom) for atom in eqn.invars]
        names = source_info_util.current_name_stack() + eqn.source_info.name_stack
        with source_info_util.user_context(eqn.source_info.traceback, name_stack=names):
            outputs = _apply(eqn, inputs)
        values.update(zip(eqn.outvars, outputs, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def _apply(eqn: core.JaxprEqn, inputs: list[_Value]) -> list[_Value]:
    name = eqn.primitive.name
    if name == "optimization_barrier":
        arrays = _bind(eqn, [v.array if isinstance(v, _Ordered) else _plain(v) for v in inputs])
        orders = [v.order if isinstance(v, _Ordered) else range(_rank(v)) for v in inputs]
        return [_held(array, order) for array, order in zip(arrays, orders, strict=True)]
    inner = eqn.params.get(_INLINED[name]) if name in _INLINED else None
    if inner is not None:
        return _evaluate(inner.jaxpr, inner.consts, inputs)
    rule = _RULES.get(name)
    result = rule(eqn, inputs) if rule is not None else None
    return [result] if result is not None else _bind(eqn, [_plain(value) for value in inputs])


def _bind(eqn: core.JaxprEqn, inputs: Sequence[Any], **changed: Any) -> list[Any]:
    params = eqn.primitive.get_bind_params({**eqn.params, **changed})
    result = eqn.primitive.bind(*inputs, **params)
    return list(result) if eqn.primitive.multiple_results else [result]


def _in_order(value: _Value, order: Order) -> jax.Array:
    """The array whose dimension ``i`` is dimension ``order[i]`` of a value."""
    if isinstance(value, _Spread):
        places = [order.index(d) for d in value.dims]
        by_place = sorted(range(len(places)), key=places.__getitem__)
        return lax.broadcast_in_dim(
            _transposed(value.operand, tuple(by_place)),
            tuple(value.shape[d] for d in order),
            sorted(places),
        )
    if isinstance(value, _Ordered):
        return _transposed(value.array, tuple(value.order.index(d) for d in order))
    return _transposed(value, order)


def _transposed(array: jax.Array, permutation: Order) -> jax.Array:
    return (
        array
        if permutation == tuple(range(len(permutation)))
        else lax.transpose(array, permutation)
    )


def _plain(value: _Value) -> Any:
    is_held = isinstance(value, (_Ordered, _Spread))
    return _in_order(value, tuple(range(_rank(value)))) if is_held else value


def _held(array: jax.Array, order: Sequence[int]) -> _Value:
    """A value from an array whose dimension ``i`` is the value's dimension ``order[i]``."""
    order = tuple(order)
    return array if order == tuple(range(len(order))) else _Ordered(array, order)


def _rank(value: _Value) -> int:
    if isinstance(value, _Ordered):
        return value.array.ndim
    return len(value.shape) if isinstance(value, _Spread) else jax.numpy.ndim(value)


# --- rules: an equation and its inputs to its one result, or None to take PyTorch's order ---


def _elementwise(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
    if len(eqn.outvars[0].aval.shape) != max(_rank(v) for v in inputs):
        return None  # bits read as a narrower or wider dtype: a dimension comes or goes
    order = next((v.order for v in inputs if isinstance(v, _Ordered)), None)
    if order is not None:
        is_mixed = any(_rank(v) for v in inputs if not isinstance(v, (_Ordered, _Spread)))
        if is_mixed and order != (0, *range(2, len(order)), 1):
            return None  # a gradient of weights meets the weights, which are in PyTorch's order
        arrays = [_in_order(v, order) if _rank(v) else v for v in inputs]
        return _Ordered(_bind(eqn, arrays)[0], order)
    spreads = [v for v in inputs if isinstance(v, _Spread)]
    if not spreads or any(_rank(v) for v in inputs if not isinstance(v, _Spread)):
        return None
    first = spreads[0]
    shape = jax.numpy.shape(first.operand)  # of an array or of a number of the program's
    if any((s.dims, jax.numpy.shape(s.operand)) != (first.dims, shape) for s in spreads):
        return None
    small = [v.operand if isinstance(v, _Spread) else v for v in inputs]
    return _Spread(_bind(eqn, small)[0], first.shape, first.dims)


def _broadcast(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
    operand, dims = inputs[0], eqn.params["broadcast_dimensions"]
    if len(inputs) > 1 or eqn.params.get("sharding") is not None:
        return None
    if isinstance(operand, _Ordered):
        return _Spread(operand.array, eqn.params["shape"], tuple(dims[d] for d in operand.order))
    return _Spread(_plain(operand), eqn.params["shape"], dims)


def _transpose(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
    value, permutation = inputs[0], eqn.params["permutation"]
    if isinstance(value, _Spread):
        return None
    array, order = (
        (value.array, value.order)
        if isinstance(value, _Ordered)
        else (value, tuple(range(value.ndim)))
    )
    held = _held(array, [permutation.index(d) for d in order])
    of_weights = isinstance(value, _Ordered) and permutation == (1, 0, *range(2, len(order)))
    return _moved_once(held) if of_weights and array.size >= MIN_MOVED_ONCE else held


def _moved_once(gradient: _Value) -> jax.Array:
    """A gradient of weights in PyTorch's order, in which the weights and their optimizer are.

    XLA:CPU would transpose it in each loop that reads it, element by element. With a copy of its
    own, Adam's two averages of 512 x 512 x 3 x 3 take a fifth of the time, of 256 x 256 a third.
    """
    order = tuple(range(_rank(gradient)))
    return with_layout_constraint(_plain(gradient), Layout(order))


def _reduction(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
    value = inputs[0]
    if not isinstance(value, _Ordered):
        return None
    axes = eqn.params["axes"]
    array = _bind(eqn, [value.array], axes=tuple(sorted(value.order.index(a) for a in axes)))[0]
    return _held(array, _renumbered(d for d in value.order if d not in axes))


def _renumbered(dims: Any) -> list[int]:
    """Dimensions that remain, numbered as in the result."""
    kept = list(dims)
    ranks = {d: i for i, d in enumerate(sorted(kept))}
    return [ranks[d] for d in kept]


def _squeeze(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
    value = inputs[0]
    if not isinstance(value, _Ordered):
        return None
    gone = eqn.params["dimensions"]
    array = lax.squeeze(value.array, [value.order.index(d) for d in gone])
    return _held(array, _renumbered(d for d in value.order if d not in gone))


def _per_dimension(*names: str) -> Callable[[core.JaxprEqn, list[_Value]], _Value | None]:
    """The rule of an operation whose parameters `names` have one entry per dimension."""

    def rule(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
        order = next((v.order for v in inputs if isinstance(v, _Ordered)), None)
        if order is None:
            return None
        arrays = [_in_order(v, order) if _rank(v) else v for v in inputs]
        changed = {
            n: tuple(eqn.params[n][d] for d in order) for n in names if eqn.params[n] is not None
        }
        return _Ordered(_bind(eqn, arrays, **changed)[0], order)

    return rule


def _along(name: str) -> Callable[[core.JaxprEqn, list[_Value]], _Value | None]:
    """The rule of an operation along the dimension or dimensions in parameter `name`."""

    def rule(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
        order = next((v.order for v in inputs if isinstance(v, _Ordered)), None)
        if order is None:
            return None
        old = eqn.params[name]
        new = order.index(old) if isinstance(old, int) else tuple(order.index(d) for d in old)
        arrays = [_in_order(v, order) for v in inputs]
        return _Ordered(_bind(eqn, arrays, **{name: new})[0], order)

    return rule


def _dynamic_slice(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
    value, *starts = inputs
    if not isinstance(value, _Ordered) or len(starts) != value.array.ndim:
        return None
    sizes = tuple(eqn.params["slice_sizes"][d] for d in value.order)
    moved = [starts[d] for d in value.order]
    return _Ordered(_bind(eqn, [value.array, *moved], slice_sizes=sizes)[0], value.order)


def _dot(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
    if not any(isinstance(v, _Ordered) for v in inputs):
        return None
    arrays, orders = [], []
    for value in inputs:
        held = value if isinstance(value, _Ordered) else None
        arrays.append(held.array if held else _plain(value))
        orders.append(held.order if held else tuple(range(_rank(value))))
    contracted, batched = eqn.params["dimension_numbers"]
    numbers = tuple(
        tuple(tuple(o.index(d) for d in dims) for o, dims in zip(orders, pair, strict=True))
        for pair in (contracted, batched)
    )
    array = _bind(eqn, arrays, dimension_numbers=numbers)[0]
    result = list(range(len(batched[0])))
    for order, gone, shared in zip(orders, contracted, batched, strict=True):
        free = _renumbered(d for d in order if d not in gone and d not in shared)
        result += [len(result) + d for d in free]
    return _held(array, result)


def _convolution(eqn: core.JaxprEqn, inputs: list[_Value]) -> _Value | None:
    numbers = eqn.params["dimension_numbers"]
    arrays, specs = [], []
    for value, spec in zip(inputs, (numbers.lhs_spec, numbers.rhs_spec), strict=True):
        if isinstance(value, _Ordered):
            arrays.append(value.array)
            specs.append(tuple(value.order.index(d) for d in spec))
        else:
            arrays.append(_plain(value))
            specs.append(spec)
    batch, feature, *spatial = numbers.out_spec
    last = len(spatial) + 1
    changed = lax.ConvDimensionNumbers(*specs, (0, last, *range(1, last)))
    return _held(_bind(eqn, arrays, dimension_numbers=changed)[0], (batch, *spatial, feature))


#: Calls whose body is evaluated in their place, and the parameter that holds it.
_INLINED = {"jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr"}

_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh bitcast_convert_type cbrt ceil clamp
    convert_element_type copy cos cosh digamma div eq erf erf_inv erfc exp exp2 expm1 floor ge gt
    integer_pow is_finite le lgamma log log1p logistic lt max min mul ne neg nextafter not or pow
    reduce_precision rem round rsqrt select_n shift_left shift_right_arithmetic
    shift_right_logical sign sin sinh sqrt square sub tan tanh xor
"""
_WINDOW = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")

_RULES: dict[str, Callable[[core.JaxprEqn, list[_Value]], _Value | None]] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(
        ("reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or"),
        _reduction,
    ),
    **dict.fromkeys(
        ("reduce_window_sum", "reduce_window_max", "reduce_window_min"), _per_dimension(*_WINDOW)
    ),
    "select_and_scatter_add": _per_dimension("window_dimensions", "window_strides", "padding"),
    "pad": _per_dimension("padding_config"),
    "slice": _per_dimension("start_indices", "limit_indices", "strides"),
    "rev": _along("dimensions"),
    "concatenate": _along("dimension"),
    "broadcast_in_dim": _broadcast,
    "conv_general_dilated": _convolution,
    "dot_general": _dot,
    "dynamic_slice": _dynamic_slice,
    "squeeze": _squeeze,
    "transpose": _transpose,
}
