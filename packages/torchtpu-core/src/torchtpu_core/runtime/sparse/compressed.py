# SPDX-License-Identifier: Apache-2.0
"""CSR, CSC, BSR and BSC tensors of the device: to dense and back, added, multiplied.

The compressed positions are bounds `(B..., H + 1)` of runs in the plain positions
`(B..., N)`; each kernel makes row and column of every element of them.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_BY_ROW = (torch.sparse_csr, torch.sparse_bsr)
_BLOCKED = (torch.sparse_bsr, torch.sparse_bsc)


def _parts(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if self.layout in _BY_ROW:
        return self.crow_indices(), self.col_indices()
    return self.ccol_indices(), self.row_indices()


def _runs(bounds: torch.Tensor, plain: torch.Tensor) -> torch.Tensor:
    """The run `(B..., N)` that each element lies in."""
    places = torch.arange(plain.shape[-1], dtype=bounds.dtype, device=bounds.device)
    places = places.expand(plain.shape).contiguous()
    return torch.searchsorted(bounds.contiguous(), places, right=True) - 1


def rows_and_columns(self: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Row and column `(B..., N)` of each element, or block."""
    bounds, plain = _parts(self)
    runs = _runs(bounds, plain)
    return (runs, plain) if self.layout in _BY_ROW else (plain, runs)


def with_values(like: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A tensor with the positions of `like` and other values."""
    made: torch.Tensor = torch.sparse_compressed_tensor(
        *_parts(like), values, like.shape, layout=like.layout, check_invariants=False
    )
    return made


class _Blocks:
    """A compressed tensor as rows of a table of all its blocks, batch first.

    Attributes:
        flat: which row of the table each stored block is.
    """

    def __init__(self, self_: torch.Tensor) -> None:
        rows, columns = rows_and_columns(self_)
        values, lead = self_.values(), rows.dim()
        self.shape, self.values_shape = self_.shape, values.shape
        self.batch = math.prod(self_.shape[: lead - 1])
        blocked = self_.layout in _BLOCKED
        self.block = tuple(values.shape[lead : lead + 2]) if blocked else (1, 1)
        self.dense = tuple(values.shape[lead + 2 * blocked :])
        height, width = self_.shape[lead - 1 : lead + 1]
        self.grid = (height // self.block[0], width // self.block[1])
        of_batch = torch.arange(self.batch, device=rows.device)
        of_batch = of_batch.reshape(*self_.shape[: lead - 1], 1)
        self.flat = ((of_batch * self.grid[0] + rows) * self.grid[1] + columns).reshape(-1)

    def scatter(self, values: torch.Tensor) -> torch.Tensor:
        """The dense tensor that holds `values`."""
        count = self.batch * math.prod(self.grid)
        table = values.new_zeros((count, *self.block, *self.dense))
        if self.flat.numel():
            table[self.flat] = values.reshape(-1, *self.block, *self.dense)
        table = table.reshape(self.batch, *self.grid, *self.block, *self.dense)
        return table.transpose(2, 3).reshape(self.shape)

    def gather(self, dense: torch.Tensor) -> torch.Tensor:
        """The values at the stored positions of a dense tensor."""
        (high, wide), (height, width) = self.grid, self.block
        table = dense.reshape(self.batch, high, height, wide, width, *self.dense).transpose(2, 3)
        table = table.reshape(self.batch * high * wide, height, width, *self.dense)
        return table[self.flat].reshape(self.values_shape)


def to_dense(
    self: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    """As a dense tensor."""
    return _Blocks(self).scatter(self.values().to(dtype or self.dtype))


def mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements of `self`, dense or compressed, at the positions of `mask`."""
    dense = self if self.layout == torch.strided else self.to_dense()
    return with_values(mask, _Blocks(mask).gather(dense.expand(mask.shape)))


def sampled_addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """`beta * self + alpha * (mat1 @ mat2)` at the positions of `self`, which is CSR."""
    if self.dim() == 2:
        rows, columns = rows_and_columns(self)
        product = (mat1[rows] * mat2.t()[columns]).sum(1)
    else:
        product = _Blocks(self).gather(mat1 @ mat2)
    values = product if alpha == 1 else product * alpha
    return with_values(self, values if beta == 0 else values + self.values() * beta)


def _like(self: torch.Tensor, dense: torch.Tensor) -> torch.Tensor:
    """What is not zero in `dense`, in the layout of `self`."""
    if self.layout in _BLOCKED:
        lead = self.values().dim() - self.dense_dim()
        blocksize = tuple(self.values().shape[lead - 2 : lead])
        return dense.to_sparse(layout=self.layout, blocksize=blocksize)
    return dense.to_sparse(layout=self.layout)


def add(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """`self + alpha * other`; dense if one of them is."""
    if torch.strided in (self.layout, other.layout):
        dense = [x if x.layout == torch.strided else x.to_dense() for x in (self, other)]
        return torch.add(*dense, alpha=alpha)
    if self.layout in _BLOCKED or self.layout != other.layout or self.dim() != 2:
        return _like(self, torch.add(self.to_dense(), other.to_dense(), alpha=alpha))
    made = torch.add(self.to_sparse_coo(), other.to_sparse_coo(), alpha=alpha)
    return made.coalesce().to_sparse(layout=self.layout)


def mul(self: torch.Tensor, other: Any) -> torch.Tensor:
    """`self * other`, with a tensor of any layout or a number."""
    if not isinstance(other, torch.Tensor):
        return with_values(self, self.values() * other)
    sparse, factor = (other, self) if self.layout == torch.strided else (self, other)
    if factor.layout == torch.strided:
        taken = factor if factor.dim() == 0 else _Blocks(sparse).gather(factor.expand(sparse.shape))
        return with_values(sparse, sparse.values() * taken)
    if self.layout in _BLOCKED or self.layout != other.layout or self.dim() != 2:
        return _like(self, self.to_dense() * other.to_dense())
    return (self.to_sparse_coo() * other.to_sparse_coo()).to_sparse(layout=self.layout)


def _replaced(self: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    if self.layout == torch.strided:
        return self.copy_(made)
    return self.resize_as_sparse_(made).copy_(made)


def add_(self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1) -> torch.Tensor:
    """`self += alpha * other`."""
    return _replaced(self, add(self, other, alpha=alpha))


def mul_(self: torch.Tensor, other: Any) -> torch.Tensor:
    """`self *= other`."""
    return _replaced(self, mul(self, other))


def _turned(self: torch.Tensor, layout: torch.layout, dense_dim: int | None) -> torch.Tensor:
    """The same matrix compressed along its other dimension."""
    if self.layout == layout:
        return self
    if self.dim() == 2 and self.layout not in _BLOCKED:
        return self.to_sparse_coo().to_sparse(layout=layout, dense_dim=dense_dim)
    return self.to_dense().to_sparse(layout=layout, dense_dim=dense_dim)


def to_csr(self: torch.Tensor, dense_dim: int | None = None) -> torch.Tensor:
    """As CSR."""
    return _turned(self, torch.sparse_csr, dense_dim)


def to_csc(self: torch.Tensor, dense_dim: int | None = None) -> torch.Tensor:
    """As CSC."""
    return _turned(self, torch.sparse_csc, dense_dim)


def _blocked(
    self: torch.Tensor, layout: torch.layout, blocksize: Any, dense_dim: int | None
) -> torch.Tensor:
    lead = self.values().dim() - self.dense_dim()
    if self.layout == layout and tuple(self.values().shape[lead - 2 : lead]) == tuple(blocksize):
        return self
    return self.to_dense().to_sparse(layout=layout, blocksize=blocksize, dense_dim=dense_dim)


def to_bsr(self: torch.Tensor, blocksize: Any, dense_dim: int | None = None) -> torch.Tensor:
    """As BSR; blocks that hold zeros alone are not kept."""
    return _blocked(self, torch.sparse_bsr, blocksize, dense_dim)


def to_bsc(self: torch.Tensor, blocksize: Any, dense_dim: int | None = None) -> torch.Tensor:
    """As BSC; blocks that hold zeros alone are not kept."""
    return _blocked(self, torch.sparse_bsc, blocksize, dense_dim)


def positions_of_coo(
    crow_indices: torch.Tensor,
    col_indices: torch.Tensor,
    *,
    out_int32: bool = False,
    transpose: bool = False,
) -> torch.Tensor:
    """`(2 or 3, N)`: bounds of rows and columns as positions; the batch comes first."""
    rows = _runs(crow_indices, col_indices)
    pair = [rows.reshape(-1), col_indices.reshape(-1).to(rows.dtype)]
    made = torch.stack(pair[::-1] if transpose else pair)
    if col_indices.dim() > 1:
        batch = torch.ones(col_indices.shape[:-1], device=rows.device).nonzero().t()
        made = torch.cat((batch.repeat_interleave(col_indices.shape[-1], 1), made))
    return made.to(torch.int32 if out_int32 else torch.int64)


def bounds_of_csr(self: torch.Tensor, size: int, *, out_int32: bool = False) -> torch.Tensor:
    """`(size + 1,)`: where each row begins among sorted row positions."""
    bounds = torch.arange(size + 1, dtype=self.dtype, device=self.device)
    return torch.searchsorted(self.contiguous(), bounds, out_int32=out_int32)


def validate(
    is_crow: bool,
    compressed: torch.Tensor,
    plain: torch.Tensor,
    cdim: int,
    dim: int,
    nnz: int,
) -> None:
    """The positions are read once, and a wrong one is refused in CPU's words."""
    torch._validate_compressed_sparse_indices(
        is_crow, compressed.cpu(), plain.cpu(), cdim, dim, nnz
    )
