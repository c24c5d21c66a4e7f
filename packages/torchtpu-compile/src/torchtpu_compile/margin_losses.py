# SPDX-License-Identifier: Apache-2.0
"""The multi-label margin loss in compiled code.

PyTorch's own decomposition of it, which compiled code gets on every device, lets places behind
the first -1 of a row count as labels (as of PyTorch 2.13). This one is for the device only.

Legend: N rows, C classes.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import relu

_OP = torch.ops.aten.multilabel_margin_loss_forward.default


def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: int) -> tuple[Tensor, Tensor]:
    """`(N, C)` or `(C,)` scores and labels -> loss, and which classes are labels.

    Args:
        input: scores.
        target: labels of each row; its first -1 ends them.
        reduction: 0 for a loss per row, 1 for their mean, 2 for their sum.
    """
    x, labels = torch.atleast_2d(input), torch.atleast_2d(target)
    counts = (labels < 0).cumsum(1) == 0
    safe = torch.where(counts, labels, 0)
    classes = torch.arange(x.shape[1], device=x.device)
    is_label = ((safe[:, :, None] == classes) & counts[:, :, None]).any(1)
    lacking = relu(1 - x.gather(1, safe)[:, :, None] + x[:, None, :])
    wanted = counts[:, :, None] & ~is_label[:, None, :]
    loss = torch.where(wanted, lacking, 0).sum((1, 2)) / x.shape[1]
    reduced = (loss.reshape(input.shape[:-1]), loss.mean(), loss.sum())[reduction]
    return reduced, is_label.to(input.dtype).reshape(target.shape)


@functools.cache
def register() -> None:
    """Let tracing on the device use it, before derivatives are taken."""
    _OP.py_impl(torch._C.DispatchKey.AutogradPrivateUse1)(multilabel_margin_loss)
