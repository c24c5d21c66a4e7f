# SPDX-License-Identifier: Apache-2.0
"""Rules for Fourier transforms.

Along a dimension of fixed size a transform is its row's. Along an open one of true size N,
known when the program runs, it is a convolution with a chirp, which has any length: of the
padded signal, by transforms of twice the padded size.

Reference: Bluestein, "A linear filtering approach to the computation of discrete Fourier
transform", IEEE Transactions on Audio and Electroacoustics 18(4), 1970.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import dims_of, fitted
from torchtpu_compile.padded import Dim, Padded, is_padded, padded_size, true_size


def _transform(call: Call) -> Padded:
    x = call.args[0] = call.sizes.compact(call.args[0])
    along, exprs = dims_of(x, call.args[1]), call.exprs()
    dims = [call.sizes.dim(exprs[d]) if d in along else x.dims[d] for d in range(len(x.dims))]
    if not any(is_padded(dim) for d in along for dim in (x.dims[d], dims[d])):
        return Padded(call.run(), tuple(dims))
    kind = call.node.target._schema.name.removeprefix("aten::_fft_")  # type: ignore[union-attr]
    array, lengths = x.array, list(x.dims)
    array = array.astype(jnp.promote_types(array.dtype, np.complex64))
    inverse = kind == "c2r" or (kind == "c2c" and not call.arg("forward"))
    *others, last = along
    for d in others:
        array = _along(call, array, d, lengths[d], inverse)
    if kind == "c2r":  # lines are those of real signals only now
        lengths[last] = call.sizes.dim(call.arg("last_dim_size"))
        array = _mirrored(call, Padded(array, x.dims), last, lengths[last])
    array = _along(call, array, last, lengths[last], inverse)
    array = array * _factor(call, [lengths[d] for d in along]).astype(array.real.dtype)
    array = array.real if kind == "c2r" else array
    return Padded(fitted(array, [padded_size(d) for d in dims]), tuple(dims))


def _factor(call: Call, lengths: Sequence[Dim]) -> jax.Array:
    """What a sum over the signal is multiplied by: ATen's normalisations 0, 1 and 2."""
    count = jnp.ones((), np.float32)
    for dim in lengths:
        count = count * call.sizes.true(true_size(dim)).astype(np.float32)
    return (jnp.ones_like(count), lax.rsqrt(count), 1 / count)[call.arg("normalization")]


def _mirrored(call: Call, x: Padded, dim: int, length: Dim) -> jax.Array:
    """The whole spectrum of a real signal of `length`, from its first half."""
    n = call.sizes.true(true_size(length))
    given = call.sizes.true(true_size(x.dims[dim]))
    place = jnp.arange(padded_size(length), dtype=np.int64)
    is_first = place <= n // 2
    source = jnp.where(is_first, place, n - place)
    values = jnp.take(x.array, source, axis=dim, mode="clip")
    lane = [1] * x.array.ndim
    lane[dim] = -1
    values = jnp.where(is_first.reshape(lane), values, values.conj())
    return jnp.where(((source >= 0) & (source < given)).reshape(lane), values, 0)


def _along(call: Call, array: jax.Array, dim: int, length: Dim, inverse: bool) -> jax.Array:
    """An unnormalised complex transform along one dimension."""
    lines = jnp.moveaxis(array, dim, -1)
    if inverse:
        lines = lines.conj()
    if is_padded(length):
        lines = _chirped(lines, call.sizes.true(true_size(length)))
    else:
        lines = jnp.fft.fft(lines)
    return jnp.moveaxis(lines.conj() if inverse else lines, -1, dim)


def _chirped(lines: jax.Array, n: jax.Array) -> jax.Array:
    """The transform of the first `n` elements of each line."""
    room = lines.shape[-1]
    place = jnp.arange(room, dtype=np.int64)
    real = lines.real.dtype
    turn = (place * place % (2 * n)).astype(real) / n.astype(real)  # of the whole circle, halved
    chirp = lax.complex(jnp.cos(np.pi * turn), -jnp.sin(np.pi * turn)).astype(lines.dtype)
    signal = jnp.where(place < n, lines * chirp, 0)
    around = jnp.concatenate([chirp, jnp.zeros((1,), chirp.dtype), chirp[:0:-1]]).conj()
    product = jnp.fft.fft(signal, 2 * room) * jnp.fft.fft(around)
    return jnp.fft.ifft(product)[..., :room] * chirp


RULES: Mapping[str, Rule] = {f"aten::_fft_{kind}": _transform for kind in ("c2c", "c2r", "r2c")}
