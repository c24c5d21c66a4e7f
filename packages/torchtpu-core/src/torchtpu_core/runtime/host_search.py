# SPDX-License-Identifier: Apache-2.0
"""Where elements are not zero, found by the host where the device's memory is host memory.

The host has to know how many there are, and waits for the mask: it then finds them in less time
than a program takes to start. `torchtpu_core.lowering.unique` has the search on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from torchtpu_core import _C
from torchtpu_core.lowering import unique
from torchtpu_core.runtime import clients, compiling
from torchtpu_core.simulator.cost import ProgramCost


def kernel(overload: str) -> Callable[..., torch.Tensor] | None:
    """What serves a composite instead of its row, unless the device has memory of its own."""
    if overload == "aten::nonzero" and clients.client().platform == "cpu":
        return _nonzero
    return None


@functools.cache
def _cpu_searches(dtype: torch.dtype) -> bool:
    """Whether CPU PyTorch can find positions in tensors of a dtype; it lacks small floats."""
    try:
        torch.nonzero(torch.empty(1, dtype=dtype))
    except NotImplementedError:
        return False
    return True


def _nonzero(self: torch.Tensor) -> torch.Tensor:
    if not _cpu_searches(self.dtype):
        return unique.positions(self, int(torch.count_nonzero(self)))
    found = _C.nonzero_on_host(self)
    if not isinstance(found, torch.Tensor):
        return unique.positions(self, found)
    _C.add_device_time(found.device.index, _time_ps(self.nbytes + found.nbytes))
    return found


def time_of_moving_ps(moved_bytes: int) -> int:
    """Device time of reading and writing so many bytes, as a program of the device would."""
    return _time_ps(moved_bytes)


@functools.lru_cache(maxsize=4096)
def _time_ps(moved_bytes: int) -> int:
    return compiling.device_time_ps(lambda: ProgramCost(bytes_hbm=moved_bytes))
