# SPDX-License-Identifier: Apache-2.0
"""Lengths on the host, of sequences in a batch, which PyTorch reads and a plan cannot.

A CTC loss lets tensors without values stay where they are and divides losses of the device by
lengths of the host: a plan copies them first, as the device does. Sequences are packed by their
lengths: a plan takes those of the host as they are, and all sequences for the longest where the
device made the lengths.

Shape letters: ``B`` sequences, ``T`` steps of the longest, ``N`` steps of all.
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
    """Take them so, for the rest of the process."""
    for key in ("AutogradPrivateUse1", "PrivateUse1"):
        _library.impl("ctc_loss.Tensor", _copied, key)


def _copied(
    log_probs: Tensor, targets: Tensor, lengths: Tensor, target_lengths: Tensor, *rest: Any
) -> Tensor:
    moved = (x.to(log_probs.device) for x in (lengths, target_lengths))
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    loss: Tensor = _ctc_loss._op_dk(composite, log_probs, targets, *moved, *rest)
    return loss


def _known(numbers: Tensor) -> list[int] | None:
    """The values of a tensor of the host, if it has any."""
    from torch._subclasses.fake_tensor import FakeTensor

    real = numbers.constant if isinstance(numbers, FakeTensor) else numbers
    return None if real is None else [int(n) for n in real.tolist()]


def packed(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """`(B, T, ...)` or `(T, B, ...)` -> `(N, ...)`, and the sequences of each step, `(T,)`."""
    steps = input.transpose(0, 1) if batch_first else input
    known = _known(lengths) or [0]
    if not all(known):  # read from the device, where a plan has zeros
        known = [steps.shape[0]] * steps.shape[1]
    sizes = [sum(length > step for length in known) for step in range(max(known))]
    rows = steps.reshape((-1, *steps.shape[2:])).narrow(0, 0, sum(sizes))
    return rows, torch.tensor(sizes, dtype=torch.int64, device="cpu")
