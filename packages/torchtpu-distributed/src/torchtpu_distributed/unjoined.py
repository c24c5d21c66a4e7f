# SPDX-License-Identifier: Apache-2.0
"""Warns a rank that trains without a process group.

A launcher such as torchrun starts many processes; a script, or a library that does not know this
device's group, that makes no process group trains a model of its own in each of them, and nothing
else would say so. The first step of an optimizer over tpu parameters tells.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

_watching = False
_looked = False


def watch() -> None:
    """Look at the first step, if a launcher has started other ranks."""
    global _watching
    if not _watching and _world_size() > 1:
        _watching = True
        register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    global _looked
    if _looked or torch.compiler.is_compiling():
        return
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    if not any(p.device.type == "tpu" for p in parameters):
        return
    _looked = True
    if not dist.is_initialized():
        warnings.warn(
            f"rank {os.environ.get('RANK', '?')} of {_world_size()} trains alone: the launcher set "
            f"WORLD_SIZE={_world_size()}, but no process group was made, so gradients are not "
            "averaged and every rank has a model of its own. Call "
            "torch.distributed.init_process_group() and wrap the model in "
            "DistributedDataParallel, or use fully_shard; libraries that do not know this "
            "device's group, such as Accelerate, do neither. If that is meant, unset WORLD_SIZE.",
            stacklevel=3,  # where the script calls `step`
        )


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdecimal() else 1
