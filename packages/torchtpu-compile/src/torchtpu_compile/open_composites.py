# SPDX-License-Identifier: Apache-2.0
"""Composite ops whose C++ code takes open sizes for fixed ones.

PyTorch's own ask a tensor for its sizes as plain numbers, so that a graph with open sizes
becomes one graph per size, on every backend. These forms ask for symbols. They are for the
device only, and for tracing only; values are those of the operators they are made of. The CTC
loss is here too: PyTorch takes its lengths for plain numbers, and breaks the graph.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def max_pool1d(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`(..., length)` -> `(..., windows)`."""
    values: Tensor = aten.max_pool1d_with_indices(self, *args, **kwargs)[0]
    return values


def tensordot(
    self: Tensor, other: Tensor, dims_self: Sequence[int], dims_other: Sequence[int]
) -> Tensor:
    """The sum over pairs of dimensions: those left of `self`, then those left of `other`."""
    for a, b in zip(dims_self, dims_other, strict=True):
        if self.shape[a] == 1 and other.shape[b] != 1:  # sizes of 1 are never symbols
            other = other.sum(b, keepdim=True)
        elif other.shape[b] == 1 and self.shape[a] != 1:
            self = self.sum(a, keepdim=True)
    summed_self = [d % self.ndim for d in dims_self]
    summed_other = [d % other.ndim for d in dims_other]
    left = [d for d in range(self.ndim) if d not in summed_self]
    right = [d for d in range(other.ndim) if d not in summed_other]
    sizes = [self.shape[d] for d in left] + [other.shape[d] for d in right]
    inner = math.prod(self.shape[d] for d in summed_self)
    a = self.permute(left + summed_self).reshape(math.prod(sizes[: len(left)]), inner)
    b = other.permute(summed_other + right).reshape(inner, math.prod(sizes[len(left) :]))
    return (a @ b).reshape(sizes)


def kron(self: Tensor, other: Tensor) -> Tensor:
    """`(a, b, ...)` and `(c, d, ...)` -> `(a * c, b * d, ...)`."""
    rank = max(self.ndim, other.ndim)
    a, b = (t.reshape((1,) * (rank - t.ndim) + tuple(t.shape)) for t in (self, other))
    for d in range(rank):
        a, b = a.unsqueeze(2 * d + 1), b.unsqueeze(2 * d)
    sizes = [m * n for m, n in zip(a.shape[::2], b.shape[1::2], strict=True)]
    return (a * b).reshape(sizes)


def take_along_dim(self: Tensor, indices: Tensor, dim: int | None = None) -> Tensor:
    """The elements along `dim` at `indices`; without `dim`, of the flat tensor."""
    if dim is None:
        return self.reshape(-1).gather(0, indices.reshape(-1))
    dim %= self.ndim
    common = torch.broadcast_shapes(
        (*self.shape[:dim], 1, *self.shape[dim + 1 :]),
        (*indices.shape[:dim], 1, *indices.shape[dim + 1 :]),
    )
    sizes = [list(common) for _ in range(2)]
    sizes[0][dim], sizes[1][dim] = self.shape[dim], indices.shape[dim]
    return self.expand(sizes[0]).gather(dim, indices.expand(sizes[1]))


def affine_grid(theta: Tensor, size: Sequence[int], align_corners: bool) -> Tensor:
    """`(N, 2, 3)` or `(N, 3, 4)` matrices -> `(N, *places, 2 or 3)`, where each place looks.

    Args:
        theta: a matrix per image; the last column is added.
        size: of the images, `(N, C, H, W)` or `(N, C, D, H, W)`.
        align_corners: whether -1 and 1 are the centres of the outermost places, or their edges.
    """
    places = size[2:]
    rank = len(places)
    axes = [theta.new_ones([1] * rank)]
    for d, count in enumerate(places):
        shape = [-1 if other == d else 1 for other in range(rank)]
        axes.insert(0, _from_minus_one(theta, count, align_corners).reshape(shape))
    base = torch.stack([axis.expand(tuple(places)) for axis in axes], -1)
    flat = base.reshape(1, math.prod(places), rank + 1) @ theta.transpose(1, 2)
    return flat.reshape(size[0], *places, rank)


def block_diag(tensors: Sequence[Tensor]) -> Tensor:
    """`(a, b)`, `(c, d)`, ... -> `(a + c + ..., b + d + ...)`; vectors and numbers are rows."""
    most = max(t.ndim for t in tensors)
    torch._check(
        most <= 2,
        lambda: f"torch.block_diag: Input tensors must have 2 or fewer dimensions, but got {most}",
    )
    blocks = [t.reshape(1, -1) if t.ndim < 2 else t for t in tensors]
    width = sum(b.shape[1] for b in blocks)
    rows, before = [], 0
    for block in blocks:
        after = width - before - block.shape[1]
        rows.append(torch.constant_pad_nd(block, [before, after]))
        before = before + block.shape[1]
    return torch.cat(rows)


def gradient(
    self: Tensor, *, spacing: Any = None, dim: Any = None, edge_order: int = 1
) -> list[Tensor]:
    """Differences over neighbours, `self`'s sizes, one result per dimension."""
    dims = range(self.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    dims = [d + self.ndim if d < 0 else d for d in dims]
    spacings = list(spacing) if isinstance(spacing, (list, tuple)) else [spacing] * len(dims)
    torch._check(edge_order in (1, 2), lambda: "torch.gradient only supports edge_order=1 and 2.")
    torch._check(
        len(set(dims)) == len(dims) == len(spacings) and all(0 <= d < self.ndim for d in dims),
        lambda: (
            f"torch.gradient expected dims of a {self.ndim}-dimensional tensor, each once and "
            f"with one spacing, but got {dim} and {spacing}"
        ),
    )
    for d in dims:
        torch._check(
            self.shape[d] > edge_order,
            lambda: "torch.gradient expected each dimension size to be at least edge_order+1",
        )
    return [
        _differences(self, d, 1 if h is None else h, edge_order)
        for d, h in zip(dims, spacings, strict=True)
    ]


def _differences(x: Tensor, dim: int, spacing: Any, edge_order: int) -> Tensor:
    """Central differences, at the ends differences to one side, of first or second order."""
    inner = (x.narrow(dim, 2, x.shape[dim] - 2) - x.narrow(dim, 0, x.shape[dim] - 2)) / 2
    weights = (-1.0, 1.0) if edge_order == 1 else (-1.5, 2.0, -0.5)
    first, last = (
        sum(w * x.narrow(dim, end + step * i, 1) for i, w in enumerate(weights)) * step
        for end, step in ((0, 1), (x.shape[dim] - 1, -1))
    )
    return torch.cat([first, inner, last], dim) / spacing


def _from_minus_one(like: Tensor, count: int, align_corners: bool) -> Tensor:
    """`(count,)` from -1 to 1, or half a step within."""
    if count <= 1:
        return like.new_zeros(1)
    place = torch.arange(count, dtype=like.dtype, device=like.device)
    return place * (2 / (count - 1)) - 1 if align_corners else (place * 2 + 1) / count - 1


def ctc_loss_of_lists(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    *args: Any,
    **kwargs: Any,
) -> Tensor:
    """The CTC loss of lengths in lists, which are operands of the program like any tensor."""
    lengths = (_numbers(given, targets) for given in (input_lengths, target_lengths))
    return ctc_loss_of_tensors(log_probs, targets, *lengths, *args, **kwargs)


def _numbers(values: Sequence[int], like: Tensor) -> Tensor:
    """`(N,)` int64 of numbers that may be symbols."""
    if all(isinstance(n, int) for n in values):
        return torch.tensor(list(values), dtype=torch.int64, device=like.device)
    each = [torch.full((), n, dtype=torch.int64, device=like.device) for n in values]
    return torch.stack(each)


def ctc_loss_of_tensors(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    reduction: int = 1,
    zero_infinity: bool = False,
) -> Tensor:
    """`(T, N, C)` or `(T, C)`, targets, `(N,)`, `(N,)` -> loss, `(N,)` without a reduction.

    Lengths may be on the CPU, as they are for packed sequences.
    """
    is_batch = log_probs.ndim == 3
    probs = log_probs if is_batch else log_probs.unsqueeze(1)
    steps, lengths = (
        n.to(device=probs.device, dtype=torch.int64).reshape(-1)
        for n in (input_lengths, target_lengths)
    )
    rows = targets if is_batch else targets.reshape(1, -1)
    if rows.ndim == 1:
        rows = _rows(rows, lengths)
    loss = aten._ctc_loss.Tensor(probs, rows, steps, lengths, blank, zero_infinity)[0]
    if zero_infinity:
        loss = torch.where(loss == math.inf, 0, loss)
    if reduction == 1:
        return (loss / lengths.clamp_min(1).to(loss.dtype)).mean()
    total: Tensor = loss.sum() if reduction == 2 else loss if is_batch else loss.squeeze(0)
    return total


def _rows(joined: Tensor, lengths: Tensor) -> Tensor:
    """`(sum of lengths,)` -> `(N, sum of lengths)`: each row begins with the next targets."""
    count = joined.shape[0]
    aten._assert_async.msg(lengths.sum() == count, "ctc_loss: target_lengths must sum to targets")
    starts = lengths.cumsum(0) - lengths
    places = starts[:, None] + torch.arange(count, device=joined.device)
    return joined[places.clamp_max(count - 1)] if count else joined.new_zeros((len(lengths), 0))


_FORMS: Mapping[Any, Callable[..., Any]] = {
    aten.max_pool1d.default: max_pool1d,
    aten.tensordot.default: tensordot,
    aten.kron.default: kron,
    aten.take_along_dim.default: take_along_dim,
    aten.affine_grid_generator.default: affine_grid,
    aten.block_diag.default: block_diag,
    **dict.fromkeys(
        (
            aten.gradient.scalarint,
            aten.gradient.scalararray,
            aten.gradient.array,
            aten.gradient.scalarrayint,
            aten.gradient.scalarrayarray,
        ),
        gradient,
    ),
    aten.ctc_loss.IntList: ctc_loss_of_lists,
    aten.ctc_loss.Tensor: ctc_loss_of_tensors,
}


@functools.cache
def register() -> None:
    """Let tracing on the device use them, before derivatives are taken."""
    for op, form in _FORMS.items():
        op.py_impl(torch._C.DispatchKey.AutogradPrivateUse1)(form)
