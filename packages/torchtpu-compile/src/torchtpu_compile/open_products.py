# SPDX-License-Identifier: Apache-2.0
"""The derivative of `cumprod` with open sizes.

PyTorch's own asks for the length as a plain number, so that rays with a changing number of samples
become one graph per number, on every backend. This one asks for nothing. What `cumprod` is in eager
mode, in graphs without symbols and without gradients, and derivatives of the derivative, stay
PyTorch's.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from torchtpu_compile.resampling import has_open_sizes

_cumprod = torch.ops.aten.cumprod.default
_KEY = torch._C.DispatchKey.AutogradPrivateUse1


def gradient(grad: Tensor, x: Tensor, y: Tensor, dim: int) -> Tensor:
    """The gradient of `x`, `(..., n, ...)`, from that of its cumulative products `y`.

    In front of the first zero of a row, element k is in all products from k on. To the first zero
    itself come the products without it. Behind it all products stay 0.
    """
    is_zero = x == 0
    zeros = is_zero.cumsum(dim)
    is_first = is_zero & (zeros == 1)
    later = (grad * y.conj()).flip(dim).cumsum(dim).flip(dim)
    before = torch.where(zeros == 0, later / torch.where(is_zero, 1, x).conj(), 0)
    without = _pytorchs(torch.where(is_first, 1, x), dim)
    at_first = torch.where(zeros > 0, grad * without.conj(), 0).sum(dim, keepdim=True)
    return torch.where(is_first, at_first, before)


class _Products(torch.autograd.Function):  # type: ignore[misc]
    """`cumprod` of a floating or complex tensor with dimensions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int) -> Tensor:
        """As `x`."""
        y = _pytorchs(x, dim)
        ctx.dim = dim
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, None]:
        """See `gradient`."""
        x, y = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return gradient(grads[0], x, y, ctx.dim), None
        return torch.autograd.grad(_pytorchs(x, ctx.dim), x, *grads, create_graph=True)[0], None


def cumprod(self: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor:
    """See `torch.cumprod`."""
    if (
        self.ndim > 0
        and self.requires_grad
        and torch.is_grad_enabled()
        and has_open_sizes(self)
        and not torch._C._are_functorch_transforms_active()
    ):
        x = self if dtype is None else self.to(dtype)
        result: Tensor = _Products.apply(x, dim)  # type: ignore[no-untyped-call]
        return result
    return _pytorchs(self, dim, dtype=dtype)


def _pytorchs(*args: Any, **kwargs: Any) -> Tensor:
    """PyTorch's own, and not ours again."""
    result: Tensor = _cumprod._op_dk(torch._C.DispatchKey.Autograd, *args, **kwargs)
    return result


@functools.cache
def register() -> None:
    """Let tracing on the device use it, before derivatives are taken."""
    _cumprod.py_impl(_KEY)(cumprod)
