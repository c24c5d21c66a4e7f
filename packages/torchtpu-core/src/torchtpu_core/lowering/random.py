# SPDX-License-Identifier: Apache-2.0
"""Lowerings of random ops: fills, random factories, dropout.

All bits come from `torchtpu_core.lowering.rng.Rng`, so the same seed gives the same
numbers whatever the eager mode; they are not CPU PyTorch's numbers. Parameters such
as ``p`` or ``std`` are run-time operands: a schedule compiles nothing. Distributions
whose parameters are tensors only are in ``distributions.py``. Where PyTorch decomposes an op, its
row computes as the decomposition does: graphs that hold the parts draw the same numbers.

In-place overloads get `self` for its shape and dtype only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import checks, dtypes, mxu, promotion
from torchtpu_core.lowering.promotion import Operand
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering, native

_F32, _F64 = np.dtype(np.float32), np.dtype(np.float64)

#: Random bits per uniform number: what the dtype's mantissa holds below 1.
_UNIT_BITS = {np.dtype(jnp.bfloat16): 8, np.dtype(np.float16): 11}


def compute_dtype(dtype: np.dtype) -> np.dtype:
    """The float dtype in which numbers for `dtype` are drawn."""
    return _F64 if dtype in (_F64, np.int64) else _F32


def _unit(rng: Rng, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Uniform in [0, 1) such that rounding to `dtype` never gives 1."""
    bits = _UNIT_BITS.get(np.dtype(dtype))
    if bits is None:
        return rng.uniform(shape, compute_dtype(dtype))
    drawn = rng.bits(shape) >> np.uint32(32 - bits)
    return drawn.astype(np.float32) * np.float32(2.0**-bits)


def open_unit(rng: Rng, shape: tuple[int, ...], compute: np.dtype) -> jax.Array:
    """Uniform strictly inside (0, 1), so that its logarithm is finite and not zero."""
    if compute == _F64:
        drawn = (rng.bits(shape, np.dtype(np.uint64)) >> np.uint64(12)).astype(np.float64)
        return drawn * np.float64(2.0**-52) + np.float64(2.0**-53)
    drawn = (rng.bits(shape) >> np.uint32(9)).astype(np.float32)
    return drawn * np.float32(2.0**-23) + np.float32(2.0**-24)


def _normals(rng: Rng, shape: tuple[int, ...], dtype: np.dtype) -> jax.Array:
    """Standard normal numbers; complex ones have variance 1 in all."""
    if not dtypes.is_complex(dtype):
        return rng.normal(shape, compute_dtype(dtype))
    part = _F64 if dtype == np.complex128 else _F32
    scale = part.type(np.sqrt(0.5))
    return lax.complex(rng.normal(shape, part) * scale, rng.normal(shape, part) * scale)


def _target(dtype: torch.dtype | None, fallback: np.dtype) -> np.dtype:
    # A schema default arrives as a ScalarType number, not as a torch.dtype.
    return dtypes.to_numpy(dtype) if isinstance(dtype, torch.dtype) else fallback


def _normal(self: jax.Array, mean: Operand = 0.0, std: Operand = 1.0, *, rng: Rng) -> jax.Array:
    drawn = _normals(rng, self.shape, self.dtype)
    if isinstance(std, promotion.Scalar):
        spread = promotion.cast(std, compute_dtype(drawn.real.dtype))
        checks.require(spread >= 0, RuntimeError, "normal expects std >= 0.0")
    return drawn * promotion.cast(std, drawn.dtype) + promotion.cast(mean, drawn.dtype)


def _normal_tensor(mean: Operand, std: Operand = 1.0, *, rng: Rng) -> jax.Array:
    """`normal` whose mean, or standard deviation, or both, are tensors."""
    lead = mean if isinstance(mean, jax.Array) else std
    assert isinstance(lead, jax.Array)
    compute = compute_dtype(lead.dtype)
    center, spread = jnp.broadcast_arrays(
        promotion.cast(mean, compute), promotion.cast(std, compute)
    )
    checks.require(
        spread >= compute.type(0), RuntimeError, "normal expects all elements of std >= 0.0"
    )
    return (rng.normal(center.shape, compute) * spread + center).astype(lead.dtype)


def _uniform(self: jax.Array, from_: Operand = 0.0, to: Operand = 1.0, *, rng: Rng) -> jax.Array:
    compute = compute_dtype(self.dtype)
    low, high = promotion.cast(from_, compute), promotion.cast(to, compute)
    checks.require(
        low <= high,
        RuntimeError,
        "uniform_ expects to return a [from, to) range, but found from > to",
    )
    return _unit(rng, self.shape, self.dtype) * (high - low) + low


def _log_normal(self: jax.Array, mean: Operand = 1.0, std: Operand = 2.0, *, rng: Rng) -> jax.Array:
    return jnp.exp(_normal(self, mean, std, rng=rng))


def _exponential(self: jax.Array, lambd: Operand = 1.0, *, rng: Rng) -> jax.Array:
    rate = promotion.cast(lambd, _F64)
    checks.require(rate > 0, RuntimeError, "exponential_ expects lambda > 0.0")
    compute = compute_dtype(self.dtype)
    scale = (_F64.type(-1) / rate).astype(compute)
    return jnp.log(open_unit(rng, self.shape, compute)) * scale


def _geometric(self: jax.Array, p: Operand, *, rng: Rng) -> jax.Array:
    chance = promotion.cast(p, _F64)
    checks.require((chance > 0) & (chance < 1), RuntimeError, "geometric_ expects p in (0, 1)")
    compute = compute_dtype(self.dtype)
    failures = jnp.log1p(-open_unit(rng, self.shape, compute)) / jnp.log1p(-chance).astype(compute)
    return jnp.floor(failures) + compute.type(1)


def _cauchy(self: jax.Array, median: Operand = 0.0, sigma: Operand = 1.0, *, rng: Rng) -> jax.Array:
    compute = compute_dtype(self.dtype)
    width = promotion.cast(sigma, compute)
    checks.require(width > 0, RuntimeError, "cauchy_ expects sigma > 0.0")
    u = open_unit(rng, self.shape, compute) - compute.type(0.5)
    tangent = jnp.tan(u * compute.type(np.pi))
    return tangent * width + promotion.cast(median, compute)


def _coins(p: jax.Array, shape: tuple[int, ...], rng: Rng) -> jax.Array:
    """Bool, true with probability `p`."""
    checks.require(
        (p >= 0) & (p <= 1),
        RuntimeError,
        "Expected p_in >= 0 && p_in <= 1 to be true, but got false.",
    )
    return rng.uniform(shape, p.dtype) < p


def _bernoulli(self: jax.Array, *, rng: Rng) -> jax.Array:
    p = self.astype(compute_dtype(self.dtype))
    return _coins(p, self.shape, rng).astype(self.dtype)


def _bernoulli_p(self: jax.Array, p: Operand = 0.5, *, rng: Rng) -> jax.Array:
    compute = compute_dtype(p.dtype) if isinstance(p, jax.Array) else _F32
    return _coins(promotion.cast(p, compute), self.shape, rng).astype(self.dtype)


#: Dimensions of values, such as activations, that forward and backward pass read once each.
#: Several products read probabilities `(B, H, T, S)` of attention that is written out.
FEW_READERS = 3


def _native_dropout(
    input: jax.Array, p: Operand, train: bool | None, *, rng: Rng
) -> tuple[jax.Array, jax.Array]:
    if train is False:
        return input, lax.full(input.shape, True)
    compute = dtypes.opmath(input.dtype)
    real = np.dtype(compute.type(0).real.dtype)
    drop = promotion.cast(p, real)
    keep = real.type(1) - drop
    # As PyTorch's decomposition compares, so that Inductor's graphs draw the same mask.
    mask = (rng.uniform(input.shape, _F32) > drop.astype(_F32)) | (drop == 0)
    if mxu.lowers_for("tpu") and input.ndim > FEW_READERS:
        # Bits are made of nothing that XLA would have to read, so it draws them in each fusion that
        # reads the mask: 78 vector operations for an element, in the time of moving 16 bytes.
        mask = lax.optimization_barrier(mask)
    scale = jnp.where(keep > 0, real.type(1) / keep, real.type(0))
    kept = input.astype(compute) * scale.astype(compute)
    return lax.select(mask, kept, jnp.zeros_like(kept)).astype(input.dtype), mask


def _native_dropout_backward(grad_output: jax.Array, mask: jax.Array, scale: Operand) -> jax.Array:
    dtype = grad_output.dtype
    if not dtypes.is_inexact(dtype):  # a whole number times a float, as PyTorch promotes
        dtype = dtypes.to_numpy(torch.get_default_dtype())
    compute = dtypes.opmath(dtype)
    scaled = promotion.cast(grad_output, compute) * promotion.cast(scale, compute)
    return (scaled * promotion.cast(mask, compute)).astype(dtype)


def _whole(rng: Rng, shape: tuple[int, ...], low: Operand, span: jax.Array) -> jax.Array:
    """int64 in ``[low, low + span)``; the bias of the modulus is below ``span / 2^64``.

    A span of zero is one of 2^64: every int64.
    """
    bits = rng.bits(shape, np.dtype(np.uint64))
    drawn = jnp.where(span == 0, bits, bits % jnp.maximum(span, np.uint64(1)))
    return lax.bitcast_convert_type(drawn, np.int64) + promotion.cast(low, np.dtype(np.int64))


def _span(low: Operand, high: Operand) -> jax.Array:
    wide = np.dtype(np.int64)
    checks.require(
        promotion.cast(low, wide) < promotion.cast(high, wide),
        RuntimeError,
        "random_ expects 'from' to be less than 'to'",
    )
    width = promotion.cast(high, wide) - promotion.cast(low, wide)
    return lax.bitcast_convert_type(width, np.uint64)


def _top(dtype: np.dtype) -> int:
    """The largest whole number `random_` draws into `dtype`."""
    if dtypes.is_floating(dtype):
        return 1 << (jnp.finfo(dtype).nmant + 1)
    return 1 if dtype == np.bool_ else int(min(np.iinfo(dtype).max, 2**63 - 1))


def _random(self: jax.Array, *, rng: Rng) -> jax.Array:
    span = jnp.asarray(np.uint64(_top(self.dtype) + 1))
    return _whole(rng, self.shape, 0, span).astype(self.dtype)


def _random_to(self: jax.Array, to: Operand, *, rng: Rng) -> jax.Array:
    return _whole(rng, self.shape, 0, _span(0, to)).astype(self.dtype)


def _random_from(self: jax.Array, from_: Operand, to: Operand | None, *, rng: Rng) -> jax.Array:
    span = _span(from_, _top(self.dtype)) + np.uint64(1) if to is None else _span(from_, to)
    return _whole(rng, self.shape, from_, span).astype(self.dtype)


def rand(size: Sequence[int], *, dtype: torch.dtype | None = None, rng: Rng) -> jax.Array:
    """Uniform numbers in [0, 1), of shape `size`; the default dtype if none is given."""
    target = _target(dtype, dtypes.default_float())
    return _unit(rng, tuple(size), target).astype(target)


def randn(size: Sequence[int], *, dtype: torch.dtype | None = None, rng: Rng) -> jax.Array:
    """Standard normal numbers, of shape `size`; the default dtype if none is given."""
    target = _target(dtype, dtypes.default_float())
    return _normals(rng, tuple(size), target).astype(target)


def _normal_sized(
    mean: Operand,
    std: Operand,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    rng: Rng,
) -> jax.Array:
    target = _target(dtype, dtypes.default_float())
    drawn = _normals(rng, tuple(size), target)
    scaled = drawn * promotion.cast(std, drawn.dtype) + promotion.cast(mean, drawn.dtype)
    return scaled.astype(target)


def randint_low(
    low: Operand,
    high: Operand,
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    rng: Rng,
) -> jax.Array:
    """Whole numbers in `[low, high)`, of shape `size`; int64 if no dtype is given."""
    target = _target(dtype, np.dtype(np.int64))
    return _whole(rng, tuple(size), low, _span(low, high)).astype(target)


def _randint(
    high: Operand, size: Sequence[int], *, dtype: torch.dtype | None = None, rng: Rng
) -> jax.Array:
    return randint_low(0, high, size, dtype=dtype, rng=rng)


def _rand_like(self: jax.Array, *, dtype: torch.dtype | None = None, rng: Rng) -> jax.Array:
    target = _target(dtype, self.dtype)
    return _unit(rng, self.shape, target).astype(target)


def _randn_like(self: jax.Array, *, dtype: torch.dtype | None = None, rng: Rng) -> jax.Array:
    target = _target(dtype, self.dtype)
    return _normals(rng, self.shape, target).astype(target)


def _randint_like_low(
    self: jax.Array,
    low: Operand,
    high: Operand,
    *,
    dtype: torch.dtype | None = None,
    rng: Rng,
) -> jax.Array:
    target = _target(dtype, self.dtype)
    return _whole(rng, self.shape, low, _span(low, high)).astype(target)


def _randint_like(
    self: jax.Array, high: Operand, *, dtype: torch.dtype | None = None, rng: Rng
) -> jax.Array:
    return _randint_like_low(self, 0, high, dtype=dtype, rng=rng)


def permutation(n: int, rng: Rng, *, count: jax.Array | None = None) -> jax.Array:
    """int64 `(n,)`: positions ordered by random bits.

    The position fills the low bits of the sort key, which makes one operand of the
    two that a sort by key would take (several times faster on XLA:CPU). With a `count`,
    int64 `()`, known when the program runs, the first so many are those below it.
    """
    last = jnp.maximum((n if count is None else count) - 1, np.int64(1)).astype(np.uint64)
    low = np.uint64(2**64 - 1) >> lax.clz(last)
    drawn = rng.bits((n,), np.dtype(np.uint64)) & ~low
    position = lax.iota(np.uint64, n)
    keys = lax.bitcast_convert_type(drawn | position, np.int64)
    if count is not None:
        inside = position < count.astype(np.uint64)
        keys = jnp.where(inside, keys, np.iinfo(np.int64).max)
    return lax.sort(keys) & low.astype(np.int64)


def _randperm(n: int, *, dtype: torch.dtype | None = None, rng: Rng) -> jax.Array:
    return permutation(n, rng).astype(_target(dtype, np.dtype(np.int64)))


def _randperm_out(n: int, *, out: jax.ShapeDtypeStruct, rng: Rng) -> jax.Array:
    return permutation(n, rng).astype(out.dtype)


#: (name, function, run-time arguments)
_RANDOM: tuple[tuple[str, Any, tuple[str, ...]], ...] = (
    ("normal_", _normal, ("mean", "std")),
    ("normal_functional", _normal, ("mean", "std")),
    ("normal.Tensor_float", _normal_tensor, ("std",)),
    ("normal.float_Tensor", _normal_tensor, ("mean",)),
    ("normal.Tensor_Tensor", _normal_tensor, ()),
    ("normal.float_float", _normal_sized, ("mean", "std")),
    ("uniform", _uniform, ("from", "to")),
    ("log_normal", _log_normal, ("mean", "std")),
    ("exponential", _exponential, ("lambd",)),
    ("geometric", _geometric, ("p",)),
    ("cauchy", _cauchy, ("median", "sigma")),
    ("bernoulli", _bernoulli, ()),
    ("bernoulli.p", _bernoulli_p, ("p",)),
    ("bernoulli.Tensor", _bernoulli_p, ()),
    ("bernoulli_.float", _bernoulli_p, ("p",)),
    ("native_dropout", _native_dropout, ("p",)),
    ("random", _random, ()),
    ("random.to", _random_to, ("to",)),
    ("random.from", _random_from, ("from", "to")),
    ("rand", rand, ()),
    ("rand.generator", rand, ()),
    ("rand_like", _rand_like, ()),
    ("rand_like.generator", _rand_like, ()),
    ("randn", randn, ()),
    ("randn.generator", randn, ()),
    ("randn_like", _randn_like, ()),
    ("randn_like.generator", _randn_like, ()),
    ("randint", _randint, ("high",)),
    ("randint.generator", _randint, ("high",)),
    ("randint.low", randint_low, ("low", "high")),
    ("randint.low_generator", randint_low, ("low", "high")),
    ("randint_like", _randint_like, ("high",)),
    ("randint_like.generator", _randint_like, ("high",)),
    ("randint_like.low_dtype", _randint_like_low, ("low", "high")),
    ("randint_like.low_generator_dtype", _randint_like_low, ("low", "high")),
    ("randperm", _randperm, ()),
    ("randperm.generator", _randperm, ()),
    ("randperm.generator_out", _randperm_out, ()),
)

TABLE: tuple[Lowering, ...] = (
    *(native(f"aten::{n}", f, random=True, runtime=names) for n, f, names in _RANDOM),
    native("aten::native_dropout_backward", _native_dropout_backward, runtime=("scale",)),
)
