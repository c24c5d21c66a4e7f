# SPDX-License-Identifier: Apache-2.0
"""Warns a rank that trains alone: without a process group, or with one that it does not use.

A launcher such as torchrun starts many processes; a script, or a library that does not know this
device's group, that makes no process group trains a model of its own in each of them, and nothing
else would say so. The first step of an optimizer over tpu parameters tells. Who has a group, but
has called no collective by the tenth step, is told too: the script made it, and its library did
not look.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from torchtpu_distributed import active

#: Steps after which a member of a group has used it, even if parameters are averaged now and then.
_PATIENCE = 10

_watching = False
_steps = 0


def watch() -> None:
    """Look at the first step, if a launcher has started other ranks."""
    global _watching
    if not _watching and _world_size() > 1:
        _watching = True
        register_optimizer_step_post_hook(_after_step)


def _after_step(optimizer: Optimizer, *_: Any) -> None:
    global _steps
    if _steps == _PATIENCE or torch.compiler.is_compiling():
        return
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    if not any(p.device.type == "tpu" for p in parameters):
        return
    _steps += 1
    if not dist.is_initialized():
        _steps = _PATIENCE
        _warn(
            f"the launcher set WORLD_SIZE={_world_size()}, but no process group was made",
            "Call torch.distributed.init_process_group() and wrap the model in "
            "DistributedDataParallel, or use fully_shard; libraries that do not know this "
            "device's group, such as Accelerate, do neither by themselves (the how-to guide on "
            "other libraries says what they need). If that is meant, unset WORLD_SIZE.",
        )
    elif _steps == _PATIENCE and active.world is not None and not active.world.ledger.recorder.used:
        _warn(
            f"after {_PATIENCE} optimizer steps it has called no collective of its process group",
            "Wrap the model in DistributedDataParallel, or use fully_shard; Accelerate uses the "
            "group with cpu=True, the Trainer with use_cpu=True (see the how-to guide on other "
            "libraries).",
        )


def _warn(found: str, remedy: str) -> None:
    warnings.warn(
        f"rank {os.environ.get('RANK', '?')} of {_world_size()} trains alone: {found}, so "
        f"gradients are not averaged and every rank has a model of its own. {remedy}",
        stacklevel=4,  # where the script calls `step`
    )


def _world_size() -> int:
    text = os.environ.get("WORLD_SIZE", "1")
    return int(text) if text.isdecimal() else 1
