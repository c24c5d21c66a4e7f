# SPDX-License-Identifier: Apache-2.0
"""Collectives with a root that is no rank of the group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from collectives import refusal
from torch import Tensor
from torch import distributed as dist


def wrong(kind: str) -> tuple[str, Tensor]:
    """What is said of such a root, and a sum after it."""
    root, x = dist.get_world_size(), torch.ones(2, device="tpu")
    group = dist.group.WORLD
    calls: dict[str, Callable[[], Any]] = {
        "broadcast": lambda: dist.broadcast(x, root),
        "reduce": lambda: dist.reduce(x, root),
        "gather": lambda: group.gather([[]], [x], _rooted(dist.GatherOptions(), root)),
        "scatter": lambda: group.scatter([x], [[]], _rooted(dist.ScatterOptions(), root)),
    }
    return refusal(calls[kind])


def _rooted(options: Any, root: int) -> Any:
    options.rootRank = root
    return options
