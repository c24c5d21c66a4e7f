# SPDX-License-Identifier: Apache-2.0
"""Collectives in `torch.inference_mode`, whose tensors may be written in that mode alone."""

from __future__ import annotations

import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch import distributed as dist


def functional_sum(mine: Tensor) -> Tensor:
    """The ranks' sum, as tensor parallel layers ask for it."""
    with torch.inference_mode():
        return functional.all_reduce(mine.to("tpu"), "sum", dist.group.WORLD).cpu()


def later_sum(mine: Tensor) -> Tensor:
    """The ranks' sum, of an asynchronous call."""
    with torch.inference_mode():
        x = mine.to("tpu")
        dist.all_reduce(x, async_op=True).wait()
        return x.cpu()
