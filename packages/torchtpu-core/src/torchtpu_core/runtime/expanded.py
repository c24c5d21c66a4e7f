# SPDX-License-Identifier: Apache-2.0
"""In-place ops that CPU's kernels run on expanded tensors: each element is written in turn.

An expanded tensor has elements that are one in memory. Most ops refuse to write one; those
of `KERNELS` do not look, and what they leave is what a loop over the elements would. On the
device that is said of the memory itself: of the view without its repeated dimensions.

The recorder calls these with the schema's arguments; the result is the written tensor.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchtpu_core.lowering import refusals

Number = Any


def _warn(op: str, example: str = "tensor[mask] = scalar") -> None:
    warnings.warn(
        f"Use of {op} on expanded tensors is deprecated. Please clone() the tensor before "
        f"performing this operation. This also applies to advanced indexing e.g. {example}",
        stacklevel=3,
    )


def _repeated(view: torch.Tensor) -> list[int]:
    """The dimensions along which all elements are one in memory."""
    sizes = enumerate(zip(view.shape, view.stride(), strict=True))
    return [d for d, (n, stride) in sizes if stride == 0 and n > 1]


def _distinct(view: torch.Tensor) -> torch.Tensor:
    """The view with every repeated dimension of length 1."""
    for dim in _repeated(view):
        view = view.narrow(dim, 0, 1)
    return view


def _fill_where(self: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    """Memory that is hit through any of its elements gets the value."""
    hit = mask.expand(self.shape)
    for dim in _repeated(self):
        hit = hit.any(dim, keepdim=True)
    _distinct(self).masked_fill_(hit, value)
    return self


def _masked_fill(self: torch.Tensor, mask: torch.Tensor, value: Any) -> torch.Tensor:
    refusals.CHECKS["aten::masked_fill"]({"mask": mask})
    _warn("masked_fill_")
    return _fill_where(self, mask, value)


def _index_fill(self: torch.Tensor, dim: int, index: torch.Tensor, value: Any) -> torch.Tensor:
    _warn("index_fill_")
    hit = torch.zeros(self.shape, dtype=torch.bool, device=self.device)
    return _fill_where(self, hit.index_fill_(dim, index, 1), value)


def _tril(self: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    whole = torch.ones(self.shape, dtype=torch.bool, device=self.device)
    return _fill_where(self, whole.triu(diagonal + 1), 0)


def _triu(self: torch.Tensor, diagonal: int = 0) -> torch.Tensor:
    whole = torch.ones(self.shape, dtype=torch.bool, device=self.device)
    return _fill_where(self, whole.tril(diagonal - 1), 0)


def _threshold(self: torch.Tensor, threshold: Number, value: Number) -> torch.Tensor:
    """Applied once: a second time changes nothing."""
    torch.threshold_(_distinct(self), threshold, value)
    return self


def _addresses(view: torch.Tensor) -> torch.Tensor:
    """Where each element lies, counted from the first, in the view's shape."""
    total = torch.zeros((), dtype=torch.int64, device=view.device)
    for dim, (size, stride) in enumerate(zip(view.shape, view.stride(), strict=True)):
        steps = torch.arange(0, size, device=view.device) * stride
        total = total + steps.reshape((-1,) + (1,) * (view.ndim - dim - 1))
    return total


def _index_put(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    """The last of several values for one place stays, or all are added."""
    _warn("index_put_", "tensor[indices] = tensor")
    where = torch.ops.aten.index(_addresses(self), indices)
    extent = 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride(), strict=True))
    memory = self.as_strided((extent,), (1,))
    memory.index_put_((where,), values, accumulate)
    return self


def _accumulate(self: torch.Tensor, products: torch.Tensor, beta: Number) -> torch.Tensor:
    """``x = beta * x + product`` for the products of one place, one after the other."""
    repeated = _repeated(self)
    kept = [d for d in range(self.ndim) if d not in repeated]
    memory = _distinct(self)
    turns = products.permute(*kept, *repeated).flatten(len(kept))
    count = turns.shape[-1]
    last_first = torch.arange(count - 1, -1, -1, device=self.device, dtype=torch.float64)
    weights = torch.pow(float(beta), last_first).to(turns.dtype)
    total = (turns * weights).sum(-1).reshape(memory.shape)
    memory.copy_(total if beta == 0 else memory * beta**count + total)
    return self


def _addmv(
    self: torch.Tensor,
    mat: torch.Tensor,
    vec: torch.Tensor,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    return _accumulate(self, torch.mv(mat, vec) * alpha, beta)


def _baddbmm(
    self: torch.Tensor,
    batch1: torch.Tensor,
    batch2: torch.Tensor,
    beta: Number = 1,
    alpha: Number = 1,
) -> torch.Tensor:
    return _accumulate(self, torch.bmm(batch1, batch2) * alpha, beta)


Kernel = Callable[..., torch.Tensor]
#: By the op's name, for all its in-place overloads.
KERNELS: Mapping[str, Kernel] = {
    "aten::masked_fill_": _masked_fill,
    "aten::index_fill_": _index_fill,
    "aten::index_put_": _index_put,
    "aten::_index_put_impl_": _index_put,
    "aten::tril_": _tril,
    "aten::triu_": _triu,
    "aten::threshold_": _threshold,
    "aten::addmv_": _addmv,
    "aten::baddbmm_": _baddbmm,
}


def write(overload: str, *args: Any) -> torch.Tensor:
    """Run an overload of `KERNELS` whose `self` is expanded."""
    return KERNELS[overload.partition(".")[0]](*args)
