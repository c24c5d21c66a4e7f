# SPDX-License-Identifier: Apache-2.0
"""Sparse tensors without values: how many elements they hold, and what is touched of others.

PyTorch's meta kernels give sparse results without elements. Here a result has as many as its
operands, so equal indices count several times, also after `coalesce`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

_aten = torch.ops.aten
#: Results with the elements of all sparse operands.
_UNIONS = ("add", "sub", "cat", "_cat")


def is_sparse(tensor: Any) -> bool:
    """Whether indices and values are what the tensor has in memory."""
    return isinstance(tensor, FakeTensor) and tensor.layout is torch.sparse_coo


def parts(tensors: Iterable[Any]) -> list[Any]:
    """The tensors that have memory: of sparse ones the indices and values."""
    found: list[Any] = []
    for tensor in tensors:
        if is_sparse(tensor):
            found += [_aten._indices.default(tensor), _aten._values.default(tensor)]
        else:
            found.append(tensor)
    return found


def filled(func: Any, inputs: Sequence[Any], out: Any) -> Any:
    """The result of an operator, with elements if it is a sparse one of sparse operands."""
    given = [tensor for tensor in inputs if is_sparse(tensor)]
    if not given or not is_sparse(out) or out._nnz() or any(out is one for one in given):
        return out
    name = func._schema.name.partition("::")[2]
    count = sum(one._nnz() for one in (given if name in _UNIONS else given[:1]))
    indices, values = _aten._indices.default(out), _aten._values.default(out)
    return torch.sparse_coo_tensor(
        indices.new_empty((indices.shape[0], count)),
        values.new_empty((count, *values.shape[1:])),
        out.shape,
        is_coalesced=name == "_coalesce",
        check_invariants=False,
    )


def touched(inputs: Sequence[Any], outputs: Sequence[Any]) -> int | None:
    """Bytes that an operator touches of each dense operand; None if all operands are dense."""
    sizes = [
        one._nnz() * one.element_size() * (one.numel() // max(1, _rows(one)))
        for one in (*inputs, *outputs)
        if is_sparse(one)
    ]
    return max(sizes, default=None)


def _rows(tensor: Any) -> int:
    """Elements of the sparse dimensions."""
    rows = 1
    for size in tensor.shape[: tensor.sparse_dim()]:
        rows *= size
    return rows
