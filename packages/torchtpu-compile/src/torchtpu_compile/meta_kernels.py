# SPDX-License-Identifier: Apache-2.0
"""Sizes of results that torch does not state for tensors without values.

PyTorch has no meta kernel of the fused GRU cell, which ``nn.GRUCell`` calls on any device but
the CPU: a compiled one fails as soon as its batch has an open size. Of the CTC loss it says
that a size depends on values, the longest target's; on the device that size is the room for
targets. What it has no sizes for at all it runs, on zeros: a sampler then draws numbers while it
is traced, and an open size is an error. Of the gradient of antialiased cubic resizing it has a
kernel that takes no symbols.

Legend: B batch, H hidden features.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import (
    DynamicOutputShapeException,
    UnsupportedOperatorException,
    run_fallback_kernel,
)
from torch.utils import _pytree as pytree


def _gru_cell(
    input_gates: Tensor,
    hidden_gates: Tensor,
    hx: Tensor,
    input_bias: Tensor | None = None,
    hidden_bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    batch, hidden = hx.shape
    return hx.new_empty((batch, hidden)), hx.new_empty((batch, 5 * hidden))


def _gru_cell_backward(grad_hy: Tensor, workspace: Tensor, has_bias: bool) -> tuple[Tensor, ...]:
    batch, hidden = grad_hy.shape
    shapes = ((batch, 3 * hidden), (batch, 3 * hidden), (batch, hidden))
    bias = 3 * hidden if has_bias else 0
    return tuple(grad_hy.new_empty(s) for s in (*shapes, (bias,), (bias,)))


_FAKE_QUANTIZE = torch.ops.aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default
#: Devices of tensors that get the sizes below.
_SERVED = ("tpu", "meta")


def _ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Tensor,
    target_lengths: Tensor,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[Tensor, Tensor]:
    if log_probs.device.type not in _SERVED:
        raise DynamicOutputShapeException(torch.ops.aten._ctc_loss.Tensor)
    time, batch, _ = log_probs.shape
    alphas = log_probs.new_empty((batch, time, 2 * targets.shape[-1] + 1))
    return log_probs.new_empty(batch), alphas


def _fake_quantized(self: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    if self.device.type not in _SERVED:
        raise UnsupportedOperatorException(_FAKE_QUANTIZE)
    return torch.empty_like(self), torch.empty_like(self, dtype=torch.bool)


def _ctc_loss_backward(grad: Tensor, log_probs: Tensor, *others: Any) -> Tensor:
    if log_probs.device.type not in _SERVED:
        raise UnsupportedOperatorException(torch.ops.aten._ctc_loss_backward.Tensor)
    return log_probs.new_empty(log_probs.shape)  # contiguous, as on CPU


def _resized_gradient(
    grad_output: Tensor, output_size: Any, input_size: Sequence[int | torch.SymInt], *others: Any
) -> Tensor:
    return grad_output.new_empty(tuple(input_size))


#: The operand whose sizes and dtype the one result has.
_LIKE = {
    "aten::_sample_dirichlet": 0,
    "aten::_standard_gamma_grad": 0,
    "aten::binomial": 0,
    "aten::multi_margin_loss_backward": 1,
    "aten::multilabel_margin_loss_backward": 1,
}


def _like(name: str, index: int) -> Callable[..., Tensor]:
    op = getattr(torch.ops.aten, name.removeprefix("aten::")).default

    def fake(*args: Any, **kwargs: Any) -> Tensor:
        like: Tensor = args[index]
        if like.device.type in _SERVED:
            return like.new_empty(like.shape)  # contiguous, as on CPU
        return _run_on_zeros(op, args, kwargs)

    return fake


def _run_on_zeros(op: torch._ops.OpOverload, args: Any, kwargs: Any) -> Any:
    """What torch does where nothing states the sizes."""
    values, spec = pytree.tree_flatten((args, kwargs))
    tensors = [value for value in values if isinstance(value, Tensor)]
    error = UnsupportedOperatorException(op)
    if any(t._has_symbolic_sizes_strides for t in tensors):
        raise error
    return run_fallback_kernel(tensors[0].fake_mode, op, values, spec, error)  # type: ignore[attr-defined]


#: Of tensors of the device and of none; others get what they got before.
_FAKE: Mapping[str, Callable[..., Any]] = {
    "aten::_ctc_loss.Tensor": _ctc_loss,
    "aten::_ctc_loss_backward.Tensor": _ctc_loss_backward,
    "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams": _fake_quantized,
    "aten::_upsample_bicubic2d_aa_backward": _resized_gradient,
}
_KERNELS = {
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
}


@functools.cache
def register() -> torch.library.Library:
    """Register each kernel, unless torch has one."""
    library = torch.library.Library("aten", "IMPL")
    for name, function in _KERNELS.items():
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, function, "Meta")
    likes = {name: _like(name, index) for name, index in _LIKE.items()}
    for name, fake in {**_FAKE, **likes}.items():
        torch.library.register_fake(name, fake, lib=library, allow_override=True)
    return library
