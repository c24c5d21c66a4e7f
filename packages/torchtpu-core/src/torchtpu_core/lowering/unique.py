# SPDX-License-Identifier: Apache-2.0
"""Ops whose result shape depends on data: nonzero, masked_select, unique.

Each is a composite: torch code that runs at every call and reads the host once, for
the size. Positions are padded to a power of two before they are cut to size, so that
a mask whose count varies does not compile a new search each time.
"""

from __future__ import annotations

import itertools
import traceback
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dims, masks
from torchtpu_core.lowering.table import Lowering, composite, native


def _nonzero_static(self: jax.Array, *, size: int, fill_value: int = -1) -> jax.Array:
    """`(size, ndim)` positions of the nonzero elements, row-major, padded with `fill_value`."""
    if self.ndim == 0 or size == 0:
        return dims.zeros((size, self.ndim), np.dtype(np.int64))
    blank = lax.full((size,), np.int32(-1))
    if self.size:
        mask = self != np.zeros((), self.dtype)
        ranks = masks.mask_ranks(mask)
        flat = lax.reshape(mask, (self.size,))
        where = jnp.where(flat, ranks, np.array(size, ranks.dtype))
        position = lax.iota(ranks.dtype, self.size)
        blank = blank.astype(ranks.dtype).at[where].set(position, mode="drop")
    columns, rest = [], jnp.maximum(blank, blank.dtype.type(0))
    for length in reversed(self.shape):
        columns.append(rest % blank.dtype.type(max(length, 1)))
        rest = rest // blank.dtype.type(max(length, 1))
    found = jnp.stack(columns[::-1], axis=1).astype(np.int64)
    return jnp.where((blank >= 0)[:, None], found, np.int64(fill_value))


def padded_count(count: int) -> int:
    """The power of two that `count` positions are searched with."""
    return 1 << max(count - 1, 0).bit_length() if count else 0


def _nonzero(self: torch.Tensor) -> torch.Tensor:
    return positions(self, int(torch.count_nonzero(self)))


def positions(self: torch.Tensor, count: int) -> torch.Tensor:
    """`(count, ndim)` positions of the nonzero elements, found on the device.

    Args:
        self: what is searched.
        count: how many there are.
    """
    if self.dim() == 0 or count == 0:
        return torch.empty((count, self.dim()), dtype=torch.int64, device=self.device)
    found = torch.nonzero_static(self, size=padded_count(count))[:count]
    return found.t().clone(memory_format=torch.contiguous_format).t()  # as CPU lays them out


def _is_printing() -> bool:
    """Whether a tensor is being printed, whose masks are on the host (`csrc/printing.h`)."""
    frames = itertools.islice(traceback.walk_stack(None), 4)
    return any(frame.f_code.co_filename == torch._tensor_str.__file__ for frame, _ in frames)


def _masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    if mask.device.type == "cpu" != self.device.type and _is_printing():
        return torch.masked_select(self.cpu(), mask)
    x, where = torch.broadcast_tensors(self, mask)
    positions = where.reshape(-1).nonzero().reshape(-1)
    return x.reshape(-1).index_select(0, positions)


def _runs(
    changed: torch.Tensor, return_counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Starts of runs, the run of each element, and run lengths if asked for.

    Args:
        changed: `(n,)` bool, true where a new run starts; ``changed[0]`` is true.
        return_counts: whether to measure the runs.
    """
    starts = changed.nonzero().reshape(-1)
    run = changed.cumsum(0) - 1
    counts = starts.new_empty(0)
    if return_counts:
        counts = torch.cat([starts[1:], starts.new_full((1,), changed.numel())]) - starts
    return starts, run, counts


def _changes(rows: torch.Tensor) -> torch.Tensor:
    """`(n,)` bool: where a row of `rows` `(n, ...)` differs from the one before."""
    differs = rows[1:] != rows[:-1]
    if differs.dim() > 1:
        differs = differs.flatten(1).any(1)
    return torch.cat([differs.new_ones(1), differs])


def _no_index(self: torch.Tensor, shape: Sequence[int] = (0,)) -> torch.Tensor:
    return torch.empty(tuple(shape), dtype=torch.int64, device=self.device)


def _unique2(
    self: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if self.numel() == 0:
        inverse = _no_index(self, self.shape if return_inverse else (0,))
        return self.new_empty(0), inverse, _no_index(self)
    values, order = self.reshape(-1).sort(stable=True)
    starts, run, counts = _runs(_changes(values), return_counts)
    inverse = _no_index(self)
    if return_inverse:
        inverse = torch.empty_like(run).scatter(0, order, run).reshape(self.shape)
    return values.index_select(0, starts), inverse, counts


def _unique(
    self: torch.Tensor, sorted: bool = True, return_inverse: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    values, inverse, _ = _unique2(self, sorted, return_inverse)
    return values, inverse


def _unique_consecutive(
    self: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if dim is not None:
        return _unique_dim_consecutive(self, dim, return_inverse, return_counts)
    if self.numel() == 0:
        inverse = _no_index(self, self.shape if return_inverse else (0,))
        return self.new_empty(0), inverse, _no_index(self)
    flat = self.reshape(-1)
    starts, run, counts = _runs(_changes(flat), return_counts)
    inverse = run.reshape(self.shape) if return_inverse else _no_index(self)
    return flat.index_select(0, starts), inverse, counts


def _unique_dim_consecutive(
    self: torch.Tensor, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if self.numel() == 0:
        return self.clone(), _no_index(self), _no_index(self)
    starts, run, counts = _runs(_changes(self.movedim(dim, 0)), return_counts)
    # Unlike the flat form, PyTorch returns the inverse here whether asked for or not.
    return self.index_select(dim, starts), run, counts


def _unique_dim(
    self: torch.Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Slices in lexicographic order; inverse and counts are returned, asked for or not."""
    if self.size(dim) == 0:
        return self.clone(), _no_index(self), _no_index(self)
    if self.numel() == 0:
        raise RuntimeError(
            "There are 0 sized dimensions, and they aren't selected, so unique cannot be applied"
        )
    rows = self.movedim(dim, 0).reshape(self.size(dim), -1)
    order = torch.arange(rows.size(0), device=self.device)
    for column in reversed(range(rows.size(1))):  # least significant first: each sort is stable
        step = rows.select(1, column).index_select(0, order).argsort(stable=True)
        order = order.index_select(0, step)
    starts, run, counts = _runs(_changes(rows.index_select(0, order)), return_counts=True)
    inverse = torch.empty_like(run).scatter(0, order, run)
    return self.index_select(dim, order.index_select(0, starts)), inverse, counts


TABLE: tuple[Lowering, ...] = (
    native("aten::nonzero_static", _nonzero_static),
    composite("aten::nonzero", _nonzero),
    composite("aten::masked_select", _masked_select),
    composite("aten::_unique2", _unique2),
    composite("aten::_unique", _unique),
    composite("aten::unique_consecutive", _unique_consecutive),
    composite("aten::unique_dim_consecutive", _unique_dim_consecutive),
    composite("aten::unique_dim", _unique_dim),
)
