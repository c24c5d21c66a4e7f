# SPDX-License-Identifier: Apache-2.0
"""How many samples a layer reads, for the rate that a plan states.

A linear layer reads rows, and a sample may have many of them, such as the frames of a wave. They
are joined by views, whose base knows its samples, or by copies, whose results are told here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

_KNOWN = "_torchtpu_plan_samples"
#: Copies of a value whose rows may be joined.
_COPIES = frozenset({"_to_copy", "_unsafe_view", "clone"})


def follow(name: str, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
    """Keeps how many samples a copy holds.

    Args:
        name: of the operator, without its overload.
        inputs: the tensors among its arguments.
        outputs: its results.
    """
    if name in _COPIES and inputs and outputs and not isinstance(inputs[0], torch.nn.Parameter):
        setattr(outputs[0], _KNOWN, _count(inputs[0]))


def read(name: str, inputs: Sequence[torch.Tensor]) -> int:
    """Samples that a layer reads: a convolution, or products of rows; 0 for other operators."""
    if name == "convolution":
        return inputs[0].shape[0]
    return _count(inputs[-2]) if name in ("mm", "addmm") else 0


def _count(tensor: torch.Tensor) -> int:
    """Of a value; a parameter has none."""
    base = tensor._base
    if base is not None and base.numel() == tensor.numel() and base.ndim:
        tensor = base
    if isinstance(tensor, torch.nn.Parameter) or not tensor.ndim:
        return 0
    known: int = getattr(tensor, _KNOWN, tensor.shape[0])
    return known
