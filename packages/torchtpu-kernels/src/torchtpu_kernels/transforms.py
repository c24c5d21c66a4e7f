# SPDX-License-Identifier: Apache-2.0
"""Kernels under the transforms of `torch.func` and forward-mode derivatives.

The registrations of `torch.library` know reverse mode alone: under ``torch.func.grad`` they raise,
and under ``jvp`` they drop the tangents. While a transform is active a kernel is therefore called
as a `torch.autograd.Function` that has all rules; each leads to a kernel derived by JAX.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from torchtpu_kernels import call_op, registry


def active() -> bool:
    """Whether a transform of `torch.func` or a level of forward mode is in force."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def call(operands: Sequence[torch.Tensor], kernel: str) -> list[torch.Tensor]:
    """The results of a kernel under the transforms in force."""
    return list(_Transformed.apply(kernel, *operands))


class _Transformed(torch.autograd.Function):  # type: ignore[misc]
    """A kernel with the rules of every transform."""

    @staticmethod
    def forward(kernel: str, *operands: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(call_op.run(operands, kernel))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        ctx.kernel, *operands = inputs
        ctx.save_for_backward(*operands)
        ctx.save_for_forward(*operands)
        ctx.mark_non_differentiable(*(t for t in output if not call_op.differentiable(t)))
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *cotangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        pairs = zip(ctx.saved_tensors, needed, strict=True)
        ctx.wanted = [i for i, (t, n) in enumerate(pairs) if n and call_op.differentiable(t)]
        return None, *call_op.gradients_of(ctx, cotangents)

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        operands = ctx.saved_tensors
        moving = [i for i, t in enumerate(tangents) if t is not None]
        kernel = registry.jvp(ctx.kernel, len(operands), moving)
        results = call_op.call([*operands, *(t for t in tangents if t is not None)], kernel.name)
        return tuple(t if call_op.differentiable(t) else None for t in results)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], kernel: str, *operands: torch.Tensor
    ) -> tuple[tuple[torch.Tensor, ...], tuple[int, ...]]:
        over = registry.batched(kernel, in_dims[1:])
        results = call_op.call(operands, over.name)
        return tuple(results), (0,) * len(results)
