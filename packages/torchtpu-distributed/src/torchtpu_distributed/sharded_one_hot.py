# SPDX-License-Identifier: Apache-2.0
"""`one_hot` of DTensors: each rank makes the rows of its own classes.

torch 2.13 takes the operator apart for DTensors of devices with a kernel of their own, and then
meets a check (`aten::_assert_async`) for which DTensor has no rule. Goes when it has one.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate

from torchtpu_distributed.sharded_attention import like

_ONE_HOT = torch.ops.aten.one_hot.default


def register() -> None:
    """Let DTensor call the function here; rules of other ops stay as they are."""
    DTensor._op_dispatcher._custom_op_handlers.setdefault(_ONE_HOT, _one_hot)


def _one_hot(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DTensor:
    classes, count = (*args, *kwargs.values(), -1)[:2]
    if count == -1 and classes.numel() > 0:  # of all ranks; one may have none
        count = int(classes.full_tensor().max().item()) + 1
    placements = [p if p.is_shard() else Replicate() for p in classes.placements]
    if placements != list(classes.placements):
        classes = classes.redistribute(classes.device_mesh, placements)
    return like(classes, _ONE_HOT(classes._local_tensor, count), (*classes.shape, count))
