# SPDX-License-Identifier: Apache-2.0
"""Optimizers of parameters of which only some are DTensors, as tensor parallelism leaves them.

By default an optimizer updates all parameters of a device other than the CPU by operators on
lists (``foreach``), and DTensor (torch 2.13) refuses lists of DTensors and other tensors. On
the CPU the default is one by one, which works; so it is here for such parameters. What the
user has chosen stays. Goes when torch chooses so itself.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

_registered: list[Any] = []


def register() -> None:
    """Look at the parameters of optimizers before each step; once."""
    if not _registered:
        _registered.append(register_optimizer_step_pre_hook(_choose))


def _choose(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    for group in optimizer.param_groups:
        undecided = group.get("foreach", False) is None and not group.get("fused")
        if undecided and _is_mixed(group["params"]):
            group["foreach"] = False


def _is_mixed(parameters: list[torch.Tensor]) -> bool:
    kinds = {isinstance(p, DTensor) for p in parameters if p.device.type == "tpu"}
    return len(kinds) > 1
