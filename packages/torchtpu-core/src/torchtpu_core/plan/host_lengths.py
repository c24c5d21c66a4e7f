# SPDX-License-Identifier: Apache-2.0
"""Lengths on the host that a CTC loss takes, which PyTorch reads and a plan cannot.

Its composite operator lets tensors without values stay where they are and divides losses of the
device by lengths of the host. A plan copies the lengths first, as the device does.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("aten", "IMPL")
_ctc_loss = torch.ops.aten.ctc_loss.Tensor


@functools.cache
def register() -> None:
    """Copy them, for the rest of the process."""
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _library.impl("ctc_loss.Tensor", _copied, key)


def _copied(
    log_probs: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor, *rest: Any
) -> Tensor:
    moved = (x.to(log_probs.device) for x in (lengths, target_lengths))
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    loss: Tensor = _ctc_loss._op_dk(composite, log_probs, targets, *moved, *rest)
    return loss
