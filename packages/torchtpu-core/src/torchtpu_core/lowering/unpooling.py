# SPDX-License-Identifier: Apache-2.0
"""Maximum unpooling, and fractional maximum pooling with its backward.

Legend: P leading dimensions, S spatial, K kernel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.pooling import reduce_windows, scatter_gradient
from torchtpu_core.lowering.table import Lowering, native


def _max_unpool(
    self: jax.Array, indices: jax.Array, output_size: Sequence[int], *_: object
) -> jax.Array:
    """`(*P, *S)` values and flat indices -> `(*P, *output_size)`, zero where no index points."""
    lead = self.shape[: self.ndim - len(output_size)]
    planes, places = math.prod(lead), math.prod(output_size)
    shape = (*lead, *output_size)
    if self.size == 0 or places == 0:
        return jnp.zeros(shape, self.dtype)
    inside = (indices >= 0) & (indices < places)
    checks.require(inside, RuntimeError, f"Found an invalid max index (output size {shape})")
    flat = jnp.clip(indices, 0, places - 1).reshape((planes, -1)).astype(np.int32)
    rows = lax.broadcasted_iota(np.int32, flat.shape, 0)
    zeros = jnp.zeros((planes, places), self.dtype)
    values = self.reshape(flat.shape)
    return zeros.at[rows, flat].set(values, mode="promise_in_bounds").reshape(shape)


def _starts(samples: jax.Array, size: int, kernel: int, out: int) -> jax.Array:
    """`(*P,)` samples in [0, 1) -> `(*P, out)`: where each window begins, int32."""
    if out == 1:
        return jnp.full((*samples.shape, 1), size - kernel, np.int32)
    alpha = samples.dtype.type((size - kernel) / (out - 1))
    steps = jnp.arange(out, dtype=samples.dtype)
    u = samples[..., None]
    start = ((steps + u) * alpha).astype(np.int32) - (u * alpha).astype(np.int32)
    return jnp.where(steps == out - 1, np.int32(size - kernel), start)


def _fractional_max_pool(order: Sequence[int]) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """The row function; `order[i]` says which sample serves spatial dimension i."""
    spatial = len(order)

    def forward(
        self: jax.Array,
        kernel_size: Sequence[int],
        output_size: Sequence[int],
        random_samples: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        lead, sizes = self.shape[: self.ndim - spatial], self.shape[self.ndim - spatial :]
        samples = random_samples.astype(dtypes.opmath(random_samples.dtype))
        samples = samples.reshape((-1, spatial))[: math.prod(lead)].reshape((*lead, spatial))
        flat = jnp.zeros((1,) * (len(lead) + 2 * spatial), np.int32)
        for i in range(spatial):
            k, out = kernel_size[i], output_size[i]
            start = _starts(samples[..., order[i]], sizes[i], k, out)
            places = start[..., None] + lax.iota(np.int32, k)
            lane = [*lead, *(1,) * (2 * spatial)]
            lane[len(lead) + i], lane[len(lead) + spatial + i] = out, k
            flat = flat + places.reshape(lane) * np.int32(math.prod(sizes[i + 1 :]))
        plane = self.reshape((*lead, -1))
        index = flat.reshape((*lead, -1))
        values = jnp.take_along_axis(plane, index, axis=-1, mode="promise_in_bounds")
        axes = tuple(range(len(lead) + spatial, len(lead) + 2 * spatial))
        best, chosen = reduce_windows(values.reshape(flat.shape), flat, axes)
        return best, chosen.astype(np.int64)

    return forward


def _fractional_backward(
    grad_output: jax.Array,
    self: jax.Array,
    kernel_size: Sequence[int],
    output_size: Sequence[int],
    indices: jax.Array,
) -> jax.Array:
    grad = grad_output.astype(dtypes.opmath(grad_output.dtype))
    return scatter_gradient(grad, indices, self.shape, len(output_size)).astype(self.dtype)


TABLE: tuple[Lowering, ...] = (
    native("aten::max_unpool2d", _max_unpool),
    native("aten::max_unpool3d", _max_unpool),
    native("aten::fractional_max_pool2d", _fractional_max_pool((1, 0))),
    native("aten::fractional_max_pool3d", _fractional_max_pool((0, 1, 2))),
    native("aten::fractional_max_pool2d_backward", _fractional_backward),
    native("aten::fractional_max_pool3d_backward", _fractional_backward),
)
