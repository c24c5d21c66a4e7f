# SPDX-License-Identifier: Apache-2.0
"""Device memory: bytes of the values that live on a device.

XLA frees at once and keeps no cache, so reserved equals allocated. On a simulated
target the limit is the chip's HBM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from torchtpu_core import _C
from torchtpu_core.tpu.devices import Device, get_device_properties, index_of, init

#: Rows of values in `memory_summary`.
MOST_VALUES_SHOWN = 10

_fractions: dict[int, float] = {}  # by device, where set_per_process_memory_fraction was called


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveValue:
    """What one storage of a device holds.

    Attributes:
        nbytes: its size.
        shape: sizes of the tensor that wrote it.
        dtype: its dtype.
        line: the user's line that made it, or empty.
    """

    nbytes: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    line: str


def live_values(device: Device = None) -> list[LiveValue]:
    """What uses a device's memory, the largest first.

    Results of ops that have not run yet are not among them.
    """
    found = [
        LiveValue(nbytes=nbytes, shape=tuple(sizes), dtype=dtype, line=line)
        for nbytes, (sizes, _, dtype), line in _C.live_values(index_of(device))
    ]
    return sorted(found, key=lambda value: -value.nbytes)


def memory_allocated(device: Device = None) -> int:
    """Bytes in use by tensors; what Fused Eager has only recorded is launched first."""
    return int(_C.memory_counters(index_of(device))["allocated"])


def max_memory_allocated(device: Device = None) -> int:
    """Most bytes in use since the start or the last `reset_peak_memory_stats`.

    Includes the temporary memory that XLA states for each program while it runs.
    """
    return int(_C.memory_counters(index_of(device))["peak"])


def memory_reserved(device: Device = None) -> int:
    """Bytes held from the device: those in use, since nothing is cached."""
    return memory_allocated(device)


def max_memory_reserved(device: Device = None) -> int:
    """Most bytes held from the device."""
    return max_memory_allocated(device)


def reset_peak_memory_stats(device: Device = None) -> None:
    """Start a new peak from the bytes in use now."""
    _C.reset_peak_memory(index_of(device))


def memory_stats(device: Device = None) -> dict[str, int]:
    """Figures under the names of `torch.cuda.memory_stats`, for tools that read those."""
    counters = _C.memory_counters(index_of(device))
    stats: dict[str, int] = {"num_alloc_retries": 0, "num_ooms": int(counters["failures"])}
    for kind in ("allocated_bytes", "active_bytes", "reserved_bytes"):
        stats[f"{kind}.all.current"] = int(counters["allocated"])
        stats[f"{kind}.all.peak"] = int(counters["peak"])
    stats["allocation.all.allocated"] = int(counters["allocations"])
    stats["allocation.all.freed"] = int(counters["frees"])
    return stats


def memory_stats_as_nested_dict(device: Device = None) -> dict[str, Any]:
    """`memory_stats` with a dict for each part of a name, as ``["num_ooms"]``."""
    nested: dict[str, Any] = {}
    for name, value in memory_stats(device).items():
        *path, last = name.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def device_memory_used(device: Device = None) -> int:
    """Bytes of the device's memory that this process uses."""
    return memory_allocated(device)


def set_per_process_memory_fraction(fraction: float, device: Device = None) -> None:
    """Let this process use a part of a device's memory; beyond it `OutOfMemoryError` is raised.

    Args:
        fraction: between 0 and 1 of `get_device_properties(device).total_memory`.
        device: the current one if None.

    Raises:
        TypeError: `fraction` is not a number.
        ValueError: it is not between 0 and 1.
    """
    if not isinstance(fraction, (float, int)) or isinstance(fraction, bool):
        raise TypeError(f"fraction must be a number between 0 and 1, got {fraction!r}")
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0 to 1")
    index = index_of(device)
    init()
    total = get_device_properties(index).total_memory
    _C.set_memory_limit(index, max(int(total * fraction), 1))
    _fractions[index] = float(fraction)


def get_per_process_memory_fraction(device: Device = None) -> float:
    """The part of a device's memory that this process may use."""
    return _fractions.get(index_of(device), 1.0)


def ipc_collect() -> None:
    """Nothing to do: the device's memory is never shared between processes."""


def reset_accumulated_memory_stats(device: Device = None) -> None:
    """Start the counts of allocations and failures anew, as `torch.accelerator` does."""
    torch.accelerator.reset_accumulated_memory_stats(index_of(device))


def memory_summary(device: Device = None, abbreviated: bool = False) -> str:
    """What uses a device's memory, for people: bytes in use, the peak, the largest values.

    Args:
        device: the current one if None.
        abbreviated: leave out the values.
    """
    properties = get_device_properties(device)
    label = " (simulated)" if properties.simulated else ""
    lines = [
        f"Memory of tpu:{index_of(device)}, {properties.name}{label}, in bytes",
        f"  in use   {memory_allocated(device):>20,}",
        f"  peak     {max_memory_allocated(device):>20,}",
        f"  total    {properties.total_memory:>20,}",
    ]
    if not abbreviated:
        shown = live_values(device)[:MOST_VALUES_SHOWN]
        lines += ["  largest values:"] if shown else []
        lines += [
            f"    {value.nbytes:>18,}  {list(value.shape)} {value.dtype} {value.line}".rstrip()
            for value in shown
        ]
    return "\n".join(lines)


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Free and total bytes of a device."""
    total = get_device_properties(device).total_memory
    return max(total - memory_allocated(device), 0), total


def empty_cache() -> None:
    """Nothing to do: XLA's memory is freed as soon as a tensor dies."""
