# SPDX-License-Identifier: Apache-2.0
"""Products of a sparse matrix and a dense one: the rows that are needed, added up.

XLA has no sparse layouts, so `(M, K)` sparse times `(K, P)` dense gathers one row of the
dense matrix per stored element and adds it to a row of the result.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from torchtpu_core.runtime.sparse import compressed

_BY_ELEMENT = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc)


def _elements(matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    if matrix.layout == torch.sparse_coo:
        rows, columns = matrix._indices()
        return rows, columns, matrix._values()
    return (*compressed.rows_and_columns(matrix), matrix.values())


def _product(sparse: torch.Tensor, dense: torch.Tensor, *, turned: bool = False) -> torch.Tensor:
    """`sparse @ dense`, or `sparse.T @ dense` if `turned`."""
    rows, columns, values = _elements(sparse)
    height = sparse.shape[1 if turned else 0]
    rows, columns = (columns, rows) if turned else (rows, columns)
    made = torch.zeros((height, dense.shape[1]), dtype=dense.dtype, device=dense.device)
    if not values.numel():
        return made
    return made.index_add_(0, rows, values.unsqueeze(1) * dense.index_select(0, columns))


def _check(self: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    if left.dim() != 2 or right.dim() != 2:
        raise RuntimeError(
            f"addmm: matrices expected, got {left.dim()}D tensor and {right.dim()}D tensor"
        )
    if left.shape[1] != right.shape[0]:
        raise RuntimeError(
            f"addmm: mat1 and mat2 shapes cannot be multiplied ({left.shape[0]}x{left.shape[1]} "
            f"and {right.shape[0]}x{right.shape[1]})"
        )
    if not left.dtype == right.dtype == self.dtype:
        raise RuntimeError(
            f"addmm: expected operands of one dtype, got {self.dtype}, {left.dtype}, {right.dtype}"
        )


def addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """`beta * self + alpha * (mat1 @ mat2)` of operands in any layout.

    Raises:
        RuntimeError: the factors are no matrices, do not fit, or differ in dtype.
    """
    _check(self, mat1, mat2)
    if mat1.layout in _BY_ELEMENT and mat2.layout == torch.strided:
        product = _product(mat1, mat2)
    elif mat1.layout == torch.strided and mat2.layout in _BY_ELEMENT:
        product = _product(mat2, mat1.t(), turned=True).t()
    else:
        dense = [x if x.layout == torch.strided else x.to_dense() for x in (mat1, mat2)]
        product = dense[0] @ dense[1]
    product = product if alpha == 1 else product * alpha
    if beta != 0:
        added = self if self.layout == torch.strided else self.to_dense()
        product = product + (added if beta == 1 else added * beta)
    return product if self.layout == torch.strided else product.to_sparse(layout=self.layout)


def compressed_mm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    """`self @ mat2` with one compressed factor or two."""
    if torch.strided in (self.layout, mat2.layout):
        blank = torch.zeros((), dtype=self.dtype, device=self.device)
        return addmm(blank.expand(self.shape[0], mat2.shape[1]), self, mat2, beta=0)
    return (self.to_dense() @ mat2.to_dense()).to_sparse_csr()


def addmv_out(
    self: torch.Tensor,
    mat: torch.Tensor,
    vec: torch.Tensor,
    *,
    beta: Any = 1,
    alpha: Any = 1,
    out: torch.Tensor,
) -> torch.Tensor:
    """`out = beta * self + alpha * (mat @ vec)` with a compressed matrix."""
    column = self.expand(mat.shape[0]).unsqueeze(1)
    return out.copy_(addmm(column, mat, vec.unsqueeze(1), beta=beta, alpha=alpha).squeeze(1))


def mm_reduce_backward(
    self: torch.Tensor,
    grad_out: torch.Tensor,
    weight: torch.Tensor,
    reduce: str,
    arg_out: torch.Tensor | None,
    output_mask: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of `torch.sparse.mm(self, weight, reduce)` with a CSR `self`.

    `arg_out`, the element that won, is not there: PyTorch's kernel makes it only where it sees
    that gradients are wanted. It is found anew.
    """
    rows, columns, values = _elements(self)
    blank = torch.zeros_like(weight)
    if reduce in ("sum", "mean"):
        if reduce == "mean":
            grad_out = grad_out / self.crow_indices().diff().clamp(min=1).unsqueeze(1)
        taken = grad_out[rows]
        of_values = (taken * weight[columns]).sum(1)
        of_weight = blank.index_add_(0, columns, values.unsqueeze(1) * taken)
    else:
        first = _winners(rows, values.unsqueeze(1) * weight[columns], grad_out, reduce)
        won = first.clamp(max=max(len(values) - 1, 0))
        given = torch.where(first < len(values), grad_out, 0)
        place = (columns[won], torch.arange(weight.shape[1], device=won.device).expand_as(won))
        of_values = torch.zeros_like(values)
        of_values.index_add_(0, won.reshape(-1), (given * weight[place]).reshape(-1))
        of_weight = blank.index_put_(place, given * values[won], accumulate=True)
    return compressed.with_values(self, of_values), of_weight


def _winners(
    rows: torch.Tensor, products: torch.Tensor, like: torch.Tensor, reduce: str
) -> torch.Tensor:
    """`(M, P)`: the first of the elements `(N, P)` that is its row's extremum; `N` if none is."""
    worst = -math.inf if reduce == "amax" else math.inf
    best = torch.full_like(like, worst).index_reduce_(0, rows, products, reduce)
    places = torch.arange(len(rows), device=rows.device).unsqueeze(1).expand_as(products)
    places = torch.where(products == best[rows], places, len(rows))
    nothing = torch.full_like(like, len(rows), dtype=torch.int64)
    return nothing.index_reduce_(0, rows, places, "amin")
