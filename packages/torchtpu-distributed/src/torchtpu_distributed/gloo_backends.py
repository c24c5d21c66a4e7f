# SPDX-License-Identifier: Apache-2.0
"""gloo, for tensors of the CPU and what goes through host memory.

PyTorch gives each group of gloo a listener of its own, whose thread wakes a hundred times a
second: with forty groups an idle process makes 2,700 context switches per second, and takes 4 %
of a core. Here all groups of a process share one (94 per second). Groups that share one connect
when they are made, whatever TORCH_GLOO_LAZY_INIT says: their data would not arrive.
"""

from __future__ import annotations

import functools
import os
from datetime import timedelta
from typing import Any

from torch import distributed as dist

#: As PyTorch has it: threads that run collectives, for each device.
_THREADS = 2


def backend(
    store: dist.Store, rank: int, size: int, address: str, limit_s: float
) -> dist.ProcessGroupGloo:
    """A backend of gloo; blocks until all ranks make it.

    Args:
        store: where they meet; no other backend's.
        rank: of this process in the group.
        size: ranks of the group.
        address: of this machine, where the others connect. Interfaces that
            GLOO_SOCKET_IFNAME names take its place.
        limit_s: seconds that a collective may take.
    """
    options: Any = dist.ProcessGroupGloo._Options()
    options._devices = _devices(os.environ.get("GLOO_SOCKET_IFNAME", ""), address, os.getpid())
    options._threads = _THREADS * len(options._devices)
    options._timeout = timedelta(seconds=limit_s)
    return dist.ProcessGroupGloo(store, rank, size, options)


@functools.cache
def _devices(interfaces: str, address: str, process: int) -> list[Any]:
    """One for each network interface; of no names, for the one of the address.

    PyTorch's own choice is the address of the machine's name, which is often a loopback one.
    A process that was forked has others than its parent, whose threads it lacks.
    """
    gloo: Any = dist.ProcessGroupGloo
    names = [name for name in interfaces.split(",") if name]
    if not names:
        return [gloo.create_device(hostname=address, lazy_init=False)]
    return [gloo.create_device(interface=name, lazy_init=False) for name in names]
