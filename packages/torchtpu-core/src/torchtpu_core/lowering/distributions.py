# SPDX-License-Identifier: Apache-2.0
"""Lowerings of samplers whose parameters are tensors: multinomial, gamma, Poisson.

How gamma, Poisson and binomial numbers are drawn is in ``rejection.py``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import checks, dims, dtypes, promotion, rejection
from torchtpu_core.lowering.promotion import Operand
from torchtpu_core.lowering.random import compute_dtype, open_unit
from torchtpu_core.lowering.rng import Rng
from torchtpu_core.lowering.table import Lowering, native


def _check_probabilities(p: jax.Array, total: jax.Array, replacement: bool) -> None:
    if replacement:
        head = "invalid multinomial distribution (encountering probability entry "
        checks.require(~(p < 0), RuntimeError, head + "< 0)")
        checks.require(jnp.isfinite(p), RuntimeError, head + "= infinity or NaN)")
    else:
        checks.require(
            jnp.isfinite(p) & (p >= 0),
            RuntimeError,
            "probability tensor contains either `inf`, `nan` or element < 0",
        )
    checks.require(
        total > 0,
        RuntimeError,
        "invalid multinomial distribution (sum of probabilities <= 0)",
    )


def _multinomial(
    self: jax.Array, num_samples: int, replacement: bool = False, *, rng: Rng
) -> jax.Array:
    """Row-wise samples: by inversion with replacement, by an exponential race without."""
    p = self.astype(compute_dtype(self.dtype))
    cumulative = lax.cumsum(p, axis=p.ndim - 1)
    total = lax.slice_in_dim(cumulative, p.shape[-1] - 1, None, axis=p.ndim - 1)
    _check_probabilities(p, total, replacement)
    if not replacement or num_samples == 1:
        race = p / -jnp.log(open_unit(rng, p.shape, p.dtype))
        return lax.top_k(race, num_samples)[1].astype(np.int64)
    u = rng.uniform((*p.shape[:-1], num_samples), p.dtype) * total
    passed = jnp.sum(cumulative[..., None, :] <= u[..., None], axis=-1, dtype=np.int64)
    # Rounding may put u at the very top: the last category that can be drawn takes it.
    possible = jnp.where(p > 0, dims.iota(p.shape, p.ndim - 1, np.int64), np.int64(0))
    return jnp.minimum(passed, jnp.max(possible, axis=-1, keepdims=True))


def _poisson(self: jax.Array, *, rng: Rng) -> jax.Array:
    rate = self.astype(compute_dtype(self.dtype))
    checks.require(
        rate >= 0, RuntimeError, "invalid Poisson rate, expected rate to be non-negative"
    )
    return rejection.poisson_sample(rate, rng).astype(self.dtype)


def _binomial(count: jax.Array, prob: jax.Array, *, rng: Rng) -> jax.Array:
    compute = compute_dtype(count.dtype)
    n, p = jnp.broadcast_arrays(count.astype(compute), prob.astype(compute))
    return rejection.binomial_sample(n, p, rng).astype(count.dtype)


def _standard_gamma(self: jax.Array, *, rng: Rng) -> jax.Array:
    alpha = self.astype(compute_dtype(self.dtype))
    drawn = rejection.gamma_sample(alpha, rng)
    return jnp.maximum(drawn, jnp.finfo(alpha.dtype).tiny).astype(self.dtype)


def _standard_gamma_grad(self: jax.Array, output: jax.Array) -> jax.Array:
    compute = compute_dtype(self.dtype)
    grad = lax.random_gamma_grad(self.astype(compute), output.astype(compute))
    return grad.astype(self.dtype)


def _sample_dirichlet(self: jax.Array, *, rng: Rng) -> jax.Array:
    """Never 0 or 1, as on the CPU, so that the sample's density is finite."""
    alpha = self.astype(compute_dtype(self.dtype))
    limits = jnp.finfo(alpha.dtype)
    logs = jnp.maximum(rejection.log_gamma_sample(alpha, rng), limits.min)
    shifted = jnp.exp(logs - jnp.max(logs, axis=-1, keepdims=True))
    parts = shifted / jnp.sum(shifted, axis=-1, keepdims=True)
    return jnp.clip(parts, limits.tiny, 1 - limits.epsneg).astype(self.dtype)


def _rrelu_with_noise(
    self: jax.Array,
    noise: jax.Array,
    lower: Operand = 0.125,
    upper: Operand = 1.0 / 3.0,
    training: bool = False,
    *,
    rng: Rng,
) -> tuple[jax.Array, jax.Array]:
    """Leaky ReLU with a random slope per negative element; returns the result and the slopes."""
    compute = dtypes.opmath(self.dtype)
    x = self.astype(compute)
    low, high = promotion.cast(lower, compute), promotion.cast(upper, compute)
    if training:
        slope = rng.uniform(self.shape, compute) * (high - low) + low
        slope = jnp.where(x <= 0, slope, compute.type(1))
        return (x * slope).astype(self.dtype), slope.astype(noise.dtype)
    slope = (low + high) / compute.type(2)
    return jnp.where(x <= 0, x * slope, x).astype(self.dtype), noise


TABLE: tuple[Lowering, ...] = (
    native("aten::multinomial", _multinomial, random=True),
    native("aten::poisson", _poisson, random=True),
    native("aten::binomial", _binomial, random=True),
    native("aten::_standard_gamma", _standard_gamma, random=True),
    native("aten::_standard_gamma_grad", _standard_gamma_grad),
    native("aten::_sample_dirichlet", _sample_dirichlet, random=True),
    native("aten::rrelu_with_noise", _rrelu_with_noise, random=True),
    native("aten::rrelu_with_noise_functional", _rrelu_with_noise, random=True),
)
