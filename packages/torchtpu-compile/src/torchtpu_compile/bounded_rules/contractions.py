# SPDX-License-Identifier: Apache-2.0
"""Rules for products: what is summed over has zeros in its padding, on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import sympy
from torchtpu_core.lowering import attention, checks

from torchtpu_compile.aligned import align, cut, joint_dims
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import fitted, refuse, zeroed
from torchtpu_compile.padded import Dim, Padded, is_padded, padded_size, same_dim, true_size
from torchtpu_compile.symbols import same
from torchtpu_compile.true_rng import TrueRng


def _contract(call: Call, left: int, right: int, at: int, bt: int) -> tuple[Padded, Padded]:
    """The operands at positions `left`, `right`, ready to be summed over dims `at`, `bt`.

    Where batches or what is summed over have their data in different places, both operands are
    moved.
    """
    a, b = call.args[left], call.args[right]
    at, bt = at % len(a.dims), bt % len(b.dims)
    pairs = [(at, bt)] if len(a.dims) < 3 or len(b.dims) < 3 else [(at, bt), (0, 0)]
    joint = [(a.dims[d], b.dims[e]) for d, e in pairs]
    if not all(same_dim(x, y) for x, y in joint if is_padded(x) or is_padded(y)):
        a, b = call.sizes.compact(a), call.sizes.compact(b)
        for d, e in pairs:
            room = min(a.array.shape[d], b.array.shape[e])
            a, b = cut(a, d, room), cut(b, e, room)
    a, b = call.sizes.filled(a, 0, [at]), call.sizes.filled(b, 0, [bt])
    call.args[left], call.args[right] = a, b
    return a, b


def _batch(call: Call, a: Padded, b: Padded) -> Dim:
    if not same_dim(a.dims[0], b.dims[0]):
        raise refuse(call, "has batches whose padding differs")
    return a.dims[0]


def _product(call: Call) -> Padded:
    dims = _product_dims(call, 0, 1)
    return Padded(call.run(), dims)


def _product_dims(call: Call, left: int, right: int) -> tuple[Dim, ...]:
    """Dimensions of the product of two operands, which are made ready for it."""
    a, b = _contract(call, left, right, -1, -2 if len(call.args[right].dims) > 1 else -1)
    lead: tuple[Dim, ...] = (_batch(call, a, b),) if len(a.dims) == 3 else ()
    return (*lead, *a.dims[len(lead) : -1], *b.dims[len(lead) + 1 :])


def _scaled_product(call: Call) -> Padded:
    """Rows times the rows of packed weights, which have a scale each."""
    call.args[1] = call.sizes.compact(call.args[1])
    a, b = _contract(call, 0, 1, -1, -1)
    scales = call.sizes.compact(call.args[2])
    call.args[2] = Padded(fitted(scales.array, b.array.shape[:1]), b.dims[:1])
    return Padded(call.run(), (a.dims[0], b.dims[0]))


def _added_product(call: Call) -> Padded:
    dims = _product_dims(call, 1, 2)
    pairs = zip(reversed(call.args[0].dims), reversed(dims), strict=False)
    if any(own != () and is_padded(dim) and not same_dim(own, dim) for own, dim in pairs):
        call.args[:3] = [call.sizes.compact(x) for x in call.args[:3]]
        _cut_to_what_is_added(call)
        product = Padded(call.args[1].array, _product_dims(call, 1, 2))
        dims = joint_dims([call.args[0], product], call.exprs())
    return Padded(call.run(), dims)


def _cut_to_what_is_added(call: Call) -> None:
    """Leave rows and columns of a sum as much room as the one of least room has."""
    is_matrix = len(call.args[2].dims) > 1
    sources = ((2, -1), (1, -2)) if is_matrix else ((1, -2),)
    for back, (index, dim) in enumerate(sources, 1):
        added, factor = call.args[0], call.args[index]
        if len(added.dims) < back or added.dims[-back] == () or factor.dims[dim] == ():
            continue
        least = min(added.array.shape[-back], factor.array.shape[dim])
        call.args[0] = cut(added, len(added.dims) - back, least)
        call.args[index] = cut(factor, len(factor.dims) + dim, least)


def _grouped_product(call: Call) -> Padded:
    """Products of groups: the last group ends at the true size, so padding is in none.

    What a group does not hold is still multiplied by zero, and must not be NaN.
    """
    ends = call.arg("offs")
    if ends is None:
        return _product(call)
    if ends.padded_dims:
        raise refuse(call, "has an open number of groups")
    a, b = _contract(call, 0, 1, -1, -2)
    if len(a.dims) == 2 and len(b.dims) == 3:
        call.args[0] = a = call.sizes.filled(a, 0, [0])
        return Padded(call.run(), (a.dims[0], b.dims[2]))
    if len(a.dims) == 3 and len(b.dims) == 2:
        call.args[1] = b = call.sizes.filled(b, 0, [1])
        return Padded(call.run(), (a.dims[1], b.dims[1]))
    if len(a.dims) == 2:
        return Padded(call.run(), (ends.dims[0], a.dims[0], b.dims[1]))
    return Padded(call.run(), (_batch(call, a, b), a.dims[1], b.dims[2]))


def _attention(call: Call) -> Any:
    """Fused attention: keys in the padding are hidden by a bias, their values are zero."""
    q, k, v = (call.sizes.compact(call.args[i]) for i in range(3))
    k, v = (_for_each_head(call, x, q) for x in (k, v))
    v = _fitted_dim(call, v, 2, k.dims[2])
    k, v = call.sizes.filled(k, 0), call.sizes.filled(v, 0)
    q = _scaled(call, call.sizes.filled(q, 0, [3]))
    call.args[:3] = [q, k, v]
    _hide_keys(call, q, k)
    if isinstance(call.rng, TrueRng):
        call.rng.place_at(_scores(q, k))
    results = list(call.run())
    lead = q.dims[:3]
    out = [Padded(results[0], (*lead, v.dims[3])), Padded(results[1], lead)]
    return out + [call.sizes.static(r) if isinstance(r, jax.Array) else r for r in results[2:]]


def _scores(q: Padded, k: Padded) -> list[sympy.Expr]:
    """True sizes of what a dropout drops."""
    return [true_size(dim) for dim in (*q.dims[:3], k.dims[2])]


def _for_each_head(call: Call, x: Padded, q: Padded) -> Padded:
    """Keys or values with a head for each of the query's, where the number of heads is open."""
    index = _shared_heads(call, x, q)
    if index is None:
        return x
    return Padded(jnp.take(x.array, index, axis=1), (x.dims[0], q.dims[1], *x.dims[2:]))


def _shared_heads(call: Call, x: Padded, q: Padded) -> jax.Array | None:
    """Which head of keys each query head, true or padding, uses; None: rows can be folded."""
    own, heads = x.dims[1], q.dims[1]
    if same_dim(own, heads) or not (is_padded(own) or is_padded(heads)):
        return None
    true, count = (call.sizes.true(true_size(dim)) for dim in (own, heads))
    index = jnp.arange(padded_size(heads)) // jnp.maximum(count // jnp.maximum(true, 1), 1)
    return jnp.minimum(index, jnp.maximum(true - 1, 0))


def _summed_heads(call: Call, gradient: jax.Array, x: Padded, q: Padded) -> jax.Array:
    """The transpose of `_for_each_head`; query heads in the padding have gradients of zero."""
    index = _shared_heads(call, x, q)
    if index is None:
        return gradient
    member = index[:, None] == jnp.arange(padded_size(x.dims[1]))
    return jnp.einsum("bhse,hk->bkse", gradient, member.astype(gradient.dtype), precision="highest")


def _fitted_dim(call: Call, x: Padded, dim: int, like: Dim) -> Padded:
    """`x` with the padding of a dimension that must be as long as one of its own.

    PyTorch checks that keys, values and masks fit when attention runs, not when it is traced.
    """
    own = x.dims[dim]
    if own == () or same_dim(own, like):
        return x
    checks.require(
        call.sizes.true(true_size(own)) == call.sizes.true(true_size(like)),
        RuntimeError,
        "attention needs as many values and columns of its mask as keys, and a row for each query",
    )
    shape, dims = list(x.array.shape), list(x.dims)
    shape[dim], dims[dim] = padded_size(like), like
    return Padded(fitted(x.array, shape), tuple(dims))


def _scaled(call: Call, x: Padded) -> Padded:
    """`x` times what makes the row's ``1 / sqrt(width)`` that of the true width."""
    if not is_padded(x.dims[3]) or call.arg("scale") is not None:
        return x
    true = call.sizes.true(true_size(x.dims[3])).astype(np.float32)
    ratio = jnp.sqrt(np.float32(x.array.shape[3]) / true)
    return Padded((x.array * ratio).astype(x.array.dtype), x.dims)


def _hide_keys(call: Call, q: Padded, k: Padded) -> None:
    """Add the padding of the keys to the bias; with a causal mask no true query sees it."""
    bias = call.arg("attn_bias")
    if bias is not None:
        bias = _fitted_dim(call, call.sizes.compact(bias), -1, k.dims[2])
        bias = _fitted_dim(call, bias, -2, q.dims[2])
        call.set("attn_bias", bias)
    if not is_padded(k.dims[2]) or (call.arg("is_causal") and same_dim(q.dims[2], k.dims[2])):
        return
    keys = Padded(jnp.zeros((1, 1, 1, k.array.shape[2]), q.array.dtype), ((), (), (), k.dims[2]))
    if bias is None:
        call.set("attn_bias", call.sizes.filled(keys, -jnp.inf))
        return
    ok = call.sizes.valid(keys, [3])
    assert ok is not None  # the keys have padding
    hidden = False if bias.array.dtype == bool else -jnp.inf
    call.set("attn_bias", Padded(jnp.where(ok[0, 0, 0], bias.array, hidden), bias.dims))


def _attention_backward(call: Call) -> Any:
    """Zeros in all padding, and the keys hidden as in the forward pass."""
    names = ("grad_out", "query", "key", "value", "out", "logsumexp")
    for name in names:
        call.set(name, call.sizes.compact(call.arg(name)))
    zeroed(call, *names)
    q, k, v = (call.arg(n) for n in ("query", "key", "value"))
    wide = _for_each_head(call, v, q)
    call.set("key", _for_each_head(call, k, q))
    call.set("value", _fitted_dim(call, wide, 2, k.dims[2]))
    had_bias = call.arg("attn_bias") is not None
    _hide_keys(call, q, k)
    for name in ("max_q", "max_k"):
        call.set(name, 0)  # the row does not use them
    call.set("query", _scaled(call, q))
    words = (call.sizes.compact(call.arg(f"philox_{n}")).array for n in ("seed", "offset"))
    call.set("philox_seed", TrueRng.of(attention.stream(*words), call.sizes, _scores(q, k)))
    results = list(call.run())
    results[0] = _scaled(call, Padded(results[0], q.dims)).array
    results[1] = _summed_heads(call, results[1], k, q)
    results[2] = _summed_heads(call, fitted(results[2], wide.array.shape), v, q)
    if len(results) > 3:
        results[3] = _bias_gradient(call, results[3]) if had_bias else None
    return [Padded(r, x.dims) for r, x in zip(results, (q, k, v), strict=False)] + results[3:]


def _bias_gradient(call: Call, gradient: jax.Array | None) -> Padded | None:
    """Scores in the padding have no gradient; a bias that was widened to hide keys is summed."""
    if gradient is None:
        return None
    dims = [call.sizes.dim(e) for e in call.exprs(3)]
    widened = [
        d
        for d, (n, dim) in enumerate(zip(gradient.shape, dims, strict=True))
        if n > 1 and dim == ()
    ]
    total = jnp.sum(gradient, axis=tuple(widened), keepdims=True)
    return Padded(fitted(total, [padded_size(dim) for dim in dims]), tuple(dims))


def _convolution(call: Call) -> Padded:
    x, w = call.sizes.compact(call.args[0]), call.args[1]
    if w.padded_dims:
        raise refuse(call, "has a weight of open size")
    call.args[0] = call.sizes.filled(x, 0, range(1, len(x.dims)))
    exprs = call.exprs()
    dims = [x.dims[0], call.sizes.dim(exprs[1])]
    for d in range(2, len(x.dims)):
        same_size = same(true_size(x.dims[d]), exprs[d])
        dims.append(x.dims[d] if same_size else call.sizes.dim(exprs[d]))
    return Padded(call.run(), tuple(dims))


def _convolution_backward(call: Call) -> Any:
    for name in ("grad_output", "input"):
        call.set(name, call.sizes.compact(call.arg(name)))
    zeroed(call, "grad_output", "input")
    x, w = call.arg("input"), call.arg("weight")
    if w.padded_dims:
        raise refuse(call, "has a weight of open size")
    results = call.run()
    dims = (x.dims, w.dims, call.arg("grad_output").dims[1:2])
    return [None if r is None else Padded(r, d) for r, d in zip(results, dims, strict=True)]


def _distances(call: Call) -> Padded:
    # aten::_cdist_forward(x1, x2, p, compute_mode): coordinates in the padding do not differ
    x, y = (call.sizes.compact(a) for a in call.args[:2])
    call.args[:2] = [_filled_last(call, x), _filled_last(call, y)]
    lead = joint_dims(align(call.sizes, [_leading(x), _leading(y)]))
    return Padded(call.run(), (*lead, x.dims[-2], y.dims[-2]))


def _leading(x: Padded) -> Padded:
    """The batch dimensions of `x` alone."""
    return Padded(x.array[..., 0, 0], x.dims[:-2])


def _filled_last(call: Call, x: Padded) -> Padded:
    return call.sizes.filled(x, 0, [len(x.dims) - 1])


def _distances_backward(call: Call) -> Padded:
    # aten::_cdist_backward(grad, x1, x2, p, cdist)
    for i in (0, 1, 2, 4):
        call.args[i] = call.sizes.filled(call.sizes.compact(call.args[i]), 0)
    return Padded(call.run(), call.args[1].dims)


def _multilinear(call: Call) -> Padded:
    """Sums of products of all operands: zeros in the padding add nothing."""
    for i, value in enumerate(call.args):
        if isinstance(value, Padded):
            call.args[i] = call.sizes.filled(call.sizes.compact(value), 0)
    return call.result(call.run())


_ATTENTION = "aten::_scaled_dot_product_fused_attention_overrideable"

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("aten::mm", "aten::_int_mm", "aten::bmm", "aten::mv", "aten::dot"), _product),
    "aten::_grouped_mm": _grouped_product,
    "aten::_weight_int8pack_mm": _scaled_product,
    **dict.fromkeys(("aten::addbmm", "aten::_trilinear"), _multilinear),
    **dict.fromkeys(("aten::addmm", "aten::baddbmm", "aten::addmv"), _added_product),
    _ATTENTION: _attention,
    f"{_ATTENTION}_backward": _attention_backward,
    "aten::_cdist_forward": _distances,
    "aten::_cdist_backward": _distances_backward,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
}
