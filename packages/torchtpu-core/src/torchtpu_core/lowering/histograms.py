# SPDX-License-Identifier: Apache-2.0
"""Histograms with edges: `torch.histogram` and `torch.histogramdd`.

`histc`, which returns counts alone, is in ``scatter.py``; out= forms are in ``out_forms.py``.

Legend: N points (all leading dimensions of the input), D coordinates, B bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import checks, refused_shapes
from torchtpu_core.lowering.spacing import even_steps
from torchtpu_core.lowering.table import Lowering, composite, native

Range = Sequence[float] | None


def _points(self: jax.Array) -> jax.Array:
    """`(..., D)` -> `(N, D)`."""
    return self.reshape((math.prod(self.shape[:-1]), self.shape[-1]))


def _outer_edges(points: jax.Array, range_: Range) -> tuple[jax.Array, jax.Array]:
    """First and last edge of each coordinate, `(D,)`; a range of width 0 is widened to 1."""
    if range_ is not None:
        given = np.asarray(range_, points.dtype).reshape((-1, 2))
        low, high = jnp.asarray(given[:, 0]), jnp.asarray(given[:, 1])
    elif points.shape[0] == 0:
        low = jnp.zeros((points.shape[1],), points.dtype)
        high = jnp.ones_like(low)
    else:
        low, high = jnp.min(points, axis=0), jnp.max(points, axis=0)
        finite = jnp.isfinite(low) & jnp.isfinite(high)
        checks.require(finite, RuntimeError, "torch.histogramdd: the input's range is not finite")
    half = np.array(0.5, points.dtype)
    flat = low == high
    return jnp.where(flat, low - half, low), jnp.where(flat, high + half, high)


def _even_edges(points: jax.Array, bins: Sequence[int], range_: Range) -> list[jax.Array]:
    low, high = _outer_edges(points, range_)
    return [even_steps(low[d], high[d], count + 1, points.dtype) for d, count in enumerate(bins)]


def _counts(
    points: jax.Array, edges: Sequence[jax.Array], weight: jax.Array | None, density: bool
) -> jax.Array:
    """Weights of the points per bin, `(B, ...)`; the last bin holds its right edge."""
    shape = tuple(e.shape[0] - 1 for e in edges)
    inside = jnp.ones((points.shape[0],), np.bool_)
    places = []
    for d, edge in enumerate(edges):
        x = points[:, d]
        inside &= (x >= edge[0]) & (x <= edge[-1])
        bucket = jnp.searchsorted(edge, x, side="right", method="compare_all") - 1
        places.append(jnp.clip(bucket, 0, shape[d] - 1))
    one = jnp.ones((points.shape[0],), points.dtype)
    hits = one if weight is None else weight.reshape((-1,)).astype(points.dtype)
    hits = lax.select(inside, hits, jnp.zeros_like(hits))
    total = jnp.zeros(shape, points.dtype).at[tuple(places)].add(hits, mode="promise_in_bounds")
    return _density(total, edges) if density else total


def _density(total: jax.Array, edges: Sequence[jax.Array]) -> jax.Array:
    """Counts over the volume of their bin and their sum."""
    total = total / jnp.sum(total)
    for d, edge in enumerate(edges):
        width = jnp.diff(edge)
        total = total / width.reshape((1,) * d + (-1,) + (1,) * (total.ndim - d - 1))
    return total


def histogram_bin_count(
    self: jax.Array,
    bins: int = 100,
    *,
    range: Range = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Counts `(B,)` of all elements and the edges `(B + 1,)` of equal bins."""
    points = self.reshape((self.size, 1))
    edges = _even_edges(points, [bins], range)
    return _counts(points, edges, weight, density), edges[0]


def histogram_edges(
    self: jax.Array,
    bins: jax.Array,
    *,
    weight: jax.Array | None = None,
    density: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """Counts of all elements between the given edges, and these."""
    return _counts(self.reshape((self.size, 1)), [bins], weight, density), bins


def histogramdd_edges(
    self: torch.Tensor,
    bins: Sequence[int],
    *,
    range: Range = None,
    weight: torch.Tensor | None = None,
    density: bool = False,
) -> list[torch.Tensor]:
    """Edges of equal bins of each coordinate of `(..., D)`, as torch calls.

    PyTorch has no meta kernel that would state how many results a graph's node has.
    """
    refused_shapes.points_and_bins({"self": self, "bins": bins})
    if len(bins) != self.shape[-1]:
        raise RuntimeError(
            "histogramdd: The size of bins must be equal to the innermost dimension of the "
            f"input, but there are {len(bins)} bins for {self.shape[-1]} coordinates."
        )
    points = self.reshape((math.prod(self.shape[:-1]), self.shape[-1]))
    edges = []
    for d, count in enumerate(bins):
        ends = None if range is None else range[2 * d : 2 * d + 2]
        edges.append(torch.histogram(points[:, d], count, range=ends).bin_edges)
    return edges


def histogramdd_bin_counts(
    self: jax.Array,
    bins: Sequence[int],
    *,
    range: Range = None,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    """Counts `(B_1, ..., B_D)` of points `(..., D)` in equal bins."""
    points = _points(self)
    return _counts(points, _even_edges(points, bins, range), weight, density)


def histogramdd_bin_tensors(
    self: jax.Array,
    bins: Sequence[jax.Array],
    *,
    weight: jax.Array | None = None,
    density: bool = False,
) -> jax.Array:
    """Counts of points `(..., D)` between the given edges of each coordinate."""
    return _counts(_points(self), bins, weight, density)


TABLE: tuple[Lowering, ...] = (
    native("aten::histogram.bin_ct", histogram_bin_count),
    native("aten::histogram.bins_tensor", histogram_edges),
    composite("aten::_histogramdd_bin_edges", histogramdd_edges),
    native("aten::_histogramdd_from_bin_cts", histogramdd_bin_counts),
    native("aten::_histogramdd_from_bin_tensors", histogramdd_bin_tensors),
)
