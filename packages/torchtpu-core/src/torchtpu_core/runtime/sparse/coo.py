# SPDX-License-Identifier: Apache-2.0
"""COO tensors of the device: to dense, coalesced, added, multiplied element by element.

Each kernel is made of operators on the positions `(S, N)` and the values `(N, V...)` of a
tensor with `S` sparse dimensions and `N` stored elements.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchtpu_core.lowering.refused_shapes import dtype_name


def flat_positions(self: torch.Tensor) -> torch.Tensor:
    """Row-major positions `(N,)` of the elements in the sparse dimensions."""
    indices = self._indices()
    flat = torch.zeros_like(indices[0]) if len(indices) else indices.new_zeros(self._nnz())
    for row, length in zip(indices, self.shape[: len(indices)], strict=True):
        flat = flat * length + row
    return flat


def of(
    indices: torch.Tensor, values: torch.Tensor, shape: Any, *, coalesced: bool = False
) -> torch.Tensor:
    """A COO tensor of parts that are known to fit."""
    return torch.sparse_coo_tensor(
        indices, values, shape, check_invariants=False, is_coalesced=coalesced
    )


def to_dense(
    self: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    """As a dense tensor; elements at one position are added."""
    sparse, dense = self.shape[: self.sparse_dim()], self.shape[self.sparse_dim() :]
    values = self._values()
    if values.dtype == torch.bool:  # a sum of truth values is whether one of them is true
        counts = of(self._indices(), values.to(torch.int32), self.shape)
        return (to_dense(counts) != 0).to(dtype or torch.bool)
    values = values.to(dtype or values.dtype)
    rows = torch.zeros((math.prod(sparse), *dense), dtype=values.dtype, device=values.device)
    if self._nnz():
        rows.index_add_(0, flat_positions(self), values)
    return rows.reshape(self.shape)


def coalesce(self: torch.Tensor) -> torch.Tensor:
    """Elements in row-major order, those of one position added; reads their number once."""
    if self.is_coalesced():
        return self
    if self._nnz() < 2:
        return self.clone()._coalesced_(True)
    flat, group = torch.unique(flat_positions(self), sorted=True, return_inverse=True)
    values = self._values()
    dtype = torch.int32 if values.dtype == torch.bool else values.dtype
    added = torch.zeros((len(flat), *values.shape[1:]), dtype=dtype, device=values.device)
    added = added.index_add_(0, group, values.to(dtype)).to(values.dtype)
    rows: list[torch.Tensor] = []
    for length in reversed(self.shape[: self.sparse_dim()]):
        rows.append(flat % length)
        flat = flat // length
    indices = torch.stack(rows[::-1]) if rows else flat.new_zeros((0, len(added)))
    return of(indices, added, self.shape, coalesced=True)


def _sum_of(self: torch.Tensor, other: torch.Tensor, alpha: Any) -> torch.Tensor:
    """`self + alpha * other` where at least one is COO."""
    if not isinstance(other, torch.Tensor):
        raise RuntimeError("add(sparse, number) is not supported: a sum with a number is dense.")
    if self.layout == other.layout:
        if self.shape != other.shape:
            raise RuntimeError(
                f"add: expected sizes of 'self' and 'other' to match, but {list(self.shape)} != "
                f"{list(other.shape)}"
            )
        kind = torch.result_type(self, other)
        values = torch.cat((self._values().to(kind), other._values().to(kind) * alpha))
        made = of(torch.cat((self._indices(), other._indices()), 1), values, self.shape)
        return made.coalesce() if self.is_coalesced() and other.is_coalesced() else made
    if self.layout != torch.strided:
        raise RuntimeError("add(sparse, dense) is not supported. Use add(dense, sparse) instead.")
    return torch.add(self, other.to_dense(), alpha=alpha)


def _into(out: torch.Tensor, made: torch.Tensor, op: str) -> torch.Tensor:
    if not torch.can_cast(made.dtype, out.dtype):
        got, wanted = dtype_name(made.dtype), dtype_name(out.dtype)
        raise RuntimeError(f"Can't convert result type {got} to output {wanted} in {op} operation")
    made = made.to(out.dtype)
    if out.layout == torch.strided and out.shape != made.shape:
        out.resize_(made.shape)
    return out.copy_(made)


def add_out(
    self: torch.Tensor, other: torch.Tensor, *, alpha: Any = 1, out: torch.Tensor
) -> torch.Tensor:
    """`out = self + alpha * other`: COO and COO, or dense and COO."""
    return _into(out, _sum_of(self, other, alpha), "add")


def _found(wanted: torch.Tensor, known: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Where each wanted position stands among the known ones (sorted), and whether it does."""
    place = torch.searchsorted(known, wanted).clamp(max=len(known) - 1)
    return place, known[place] == wanted


def _common(self: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The product of two COO tensors: of the elements that both have."""
    self, other = self.coalesce(), other.coalesce()
    kind = torch.result_type(self, other)
    if not self._nnz() or not other._nnz():
        return of(self._indices()[:, :0], self._values()[:0].to(kind), self.shape, coalesced=True)
    place, both = _found(flat_positions(self), flat_positions(other))
    kept = both.nonzero().reshape(-1)
    values = self._values()[kept] * other._values()[place[kept]]
    return of(self._indices()[:, kept], values, self.shape, coalesced=True)


def _product_of(self: Any, other: Any) -> torch.Tensor:
    if not isinstance(self, torch.Tensor):  # PyTorch's own mul_(sparse, number) turns them round
        self, other = other, self
    if not isinstance(other, torch.Tensor):
        values = self._values() * other
        return of(self._indices(), values, self.shape, coalesced=self.is_coalesced())
    if self.layout == other.layout:
        if self.shape != other.shape:
            raise RuntimeError(
                f"mul operands have incompatible sizes {list(self.shape)}, {list(other.shape)}"
            )
        return _common(self, other)
    sparse, dense = (self, other) if self.layout == torch.sparse_coo else (other, self)
    taken = dense
    if dense.dim():
        taken = dense.expand(sparse.shape)[tuple(sparse._indices())]
    values = sparse._values() * taken
    return of(sparse._indices(), values, sparse.shape, coalesced=sparse.is_coalesced())


def mul_out(self: torch.Tensor, other: Any, *, out: torch.Tensor) -> torch.Tensor:
    """`out = self * other`: COO with COO, with a dense tensor, or with a number."""
    return _into(out, _product_of(self, other), "mul")


def mask(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The elements of `self`, dense or COO, at the positions of a COO `mask`; else zero."""
    if self.shape != mask.shape:
        raise RuntimeError(
            f"sparse_mask(): operands have incompatible sizes; self has size {list(self.shape)} "
            f"but mask has size {list(mask.shape)}"
        )
    if self.layout == torch.strided:
        values = self[tuple(mask._indices())] if mask.sparse_dim() else self.unsqueeze(0)
    else:
        self = self.coalesce()
        blank = torch.zeros_like(mask._values(), dtype=self.dtype)
        values = blank
        if self._nnz() and mask._nnz():
            place, both = _found(flat_positions(mask), flat_positions(self))
            both = both.reshape(-1, *[1] * (blank.dim() - 1))
            values = torch.where(both, self._values()[place], blank)
    return of(mask._indices(), values, mask.shape, coalesced=mask.is_coalesced())


def norm(self: torch.Tensor, p: Any, dim: Any, keepdim: bool = False) -> torch.Tensor:
    """The norm of all elements; `dim` names no dimension, or each.

    Raises:
        RuntimeError: of some dimensions only; PyTorch has no such norm of sparse tensors.
    """
    whole = not dim or {d % self.dim() for d in dim} == set(range(self.dim()))
    if not whole or keepdim:
        raise RuntimeError("norm_sparse currently only supports full reductions")
    return torch.norm(self.coalesce()._values(), 2 if p is None else p)
