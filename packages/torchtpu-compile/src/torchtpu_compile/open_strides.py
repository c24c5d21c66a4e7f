# SPDX-License-Identifier: Apache-2.0
"""The derivative of `as_strided` with open sizes.

PyTorch's own counts the elements of the memory with a plain number, so that a step with windows
that overlap becomes one graph per size, on every backend. For such windows this one adds the
gradient up by places in the tensor, whose sizes may be symbols. Values are those of `as_strided`,
and what it is for other views, in eager mode, in graphs without symbols and without gradients stays
PyTorch's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import guard_or_false

_as_strided = torch.ops.aten.as_strided.default
_KEY = torch._C.DispatchKey.AutogradPrivateUse1
#: The key of PyTorch's own kernel, which is not ours again.
_PYTORCHS = torch._C.DispatchKey.Autograd


class _Strided(torch.autograd.Function):  # type: ignore[misc]
    """`as_strided` of a tensor that is contiguous, from its first element on."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Sequence[int], stride: Sequence[int]) -> Tensor:
        """A view of `x`, `size`."""
        ctx.shape, ctx.size, ctx.strides = x.shape, size, stride
        view: Tensor = _as_strided(x, size, stride)
        return view

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Add up, for each place of `x`, the gradients of the elements that lie there."""
        (grad,) = grads
        row = ctx.shape[-1]
        is_whole = ctx.strides[-1] == 1 and guard_or_false(ctx.size[-1] == row)
        steps, tail = list(ctx.strides), []
        if is_whole and all(guard_or_false(step % row == 0) for step in steps[:-1]):
            steps, tail = [step // row for step in steps[:-1]], [row]
        place = torch.zeros((), dtype=torch.int64, device=grad.device)
        for count, step in zip(ctx.size, steps, strict=False):
            along = torch.arange(count, device=grad.device) * step
            place = place.unsqueeze(-1) + along
        rows = math.prod(ctx.shape[: -1 if tail else len(ctx.shape)])
        room = grad.new_zeros([rows, *tail])
        values = grad.reshape(math.prod(ctx.size[: len(steps)]), *tail)
        return room.index_add(0, place.reshape(-1), values).reshape(ctx.shape), None, None


def as_strided(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """See `torch.as_strided`."""
    is_open = any(isinstance(n, torch.SymInt) for n in (*size, *stride, *self.shape))
    if (
        is_open
        and torch.is_grad_enabled()
        and self.requires_grad
        and not torch._C._are_functorch_transforms_active()
        and self.ndim > 0
        and _overlaps(size, stride)
        and self.is_contiguous()
        and (self._base is None or guard_or_false(self._base.numel() == self.numel()))
        and all(guard_or_false(n == 0) for n in (self.storage_offset(), storage_offset or 0))
    ):
        result: Tensor = _Strided.apply(self, size, stride)  # type: ignore[no-untyped-call]
        return result
    plain: Tensor = _as_strided._op_dk(_PYTORCHS, self, size, stride, storage_offset)
    return plain


def _overlaps(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements of a row are known to lie in the next one, too.

    Nothing may be written to such a view in place. To others it may, which autograd does not allow
    with a derivative of ours.
    """
    inner = zip(size[1:], stride[1:], stride[:-1], strict=True)
    return any(guard_or_false((count - 1) * step >= outer) for count, step, outer in inner)


@functools.cache
def register() -> None:
    """Let tracing on the device use it, before derivatives are taken."""
    _as_strided.py_impl(_KEY)(as_strided)
