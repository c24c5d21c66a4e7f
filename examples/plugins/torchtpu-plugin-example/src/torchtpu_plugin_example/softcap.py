# SPDX-License-Identifier: Apache-2.0
"""An operator of our own, for every device of torch, and its lowering for tpu.

The operator is defined with `torch.library` as for any device. What makes it run on tpu is the
row in `TABLE`, which says what the operator means in terms of JAX values. `cap` is named in
`runtime`: it enters the program as an operand, so a changing cap compiles nothing.
"""

from __future__ import annotations

from typing import Any

import jax
import torch
from jax import lax
from torch import Tensor
from torchtpu_core.lowering import promotion
from torchtpu_core.lowering.table import Lowering, native


@torch.library.custom_op("torchtpu_example::softcap", mutates_args=(), device_types="cpu")
def softcap(x: Tensor, cap: float) -> Tensor:
    """Bound logits smoothly: ``cap * tanh(x / cap)``.

    Args:
        x: any shape, floating point.
        cap: the bound, positive.

    Returns:
        A tensor of the shape and dtype of `x`, within ``(-cap, cap)``.

    Reference: Gemma 2 (arXiv 2408.00118), section 2, logit soft-capping.
    """
    return torch.tanh(x / cap) * cap


@softcap.register_fake
def _(x: Tensor, cap: float) -> Tensor:
    return torch.empty_like(x)


def _save(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
    ctx.cap = inputs[1]
    ctx.save_for_backward(output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    (output,) = ctx.saved_tensors
    return grad * (1 - (output / ctx.cap).square()), None


softcap.register_autograd(_backward, setup_context=_save)


def _softcap(x: jax.Array, cap: promotion.Operand) -> jax.Array:
    bound = promotion.cast(cap, x.dtype)
    return lax.tanh(x / bound) * bound


TABLE: tuple[Lowering, ...] = (native("torchtpu_example::softcap", _softcap, runtime={"cap"}),)
