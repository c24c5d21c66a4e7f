# SPDX-License-Identifier: Apache-2.0
"""Jobs about who runs asynchronous collectives: whoever waits at once, or a thread of the group."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torchtpu_distributed import host_running

#: Longer than a test may take: a collective that is run meanwhile was not left to a thread.
FOR_EVER_S = 600.0


def run_by_who_waits(mine: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Ten calls and waits in turn: the last result, and how many other threads ran."""
    x, others = mine.to("tpu"), 0
    perform = host_running.HostRunner.perform

    def counted(self: host_running.HostRunner, *args: Any) -> None:
        nonlocal others
        others += threading.current_thread() is not threading.main_thread()
        perform(self, *args)

    with (
        mock.patch.object(host_running, "_GRACE_S", FOR_EVER_S),
        mock.patch.object(host_running.HostRunner, "perform", counted),
    ):
        for _ in range(10):
            dist.all_reduce(x, async_op=True).wait()
        dist.all_reduce(x.new_zeros(1), async_op=True).get_future().wait()  # lets a thread end
    return x.cpu(), others


def run_though_nobody_waits(mine: torch.Tensor) -> list[torch.Tensor]:
    """Results that a future, a synchronous collective, and asking bring about."""
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    first, second, third = (mine.to("tpu") * i for i in (1, 2, 3))
    with mock.patch.object(host_running, "_GRACE_S", FOR_EVER_S):
        future = dist.all_reduce(first, async_op=True).get_future()
        while not future.done():
            pass
        dist.all_reduce(second, async_op=True)
        dist.all_reduce(torch.zeros(1, device="tpu"))
    work = dist.all_reduce(third, async_op=True)
    while not work.is_completed():
        pass
    return [x.cpu() for x in (first, second, third)]
