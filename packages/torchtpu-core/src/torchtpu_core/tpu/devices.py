# SPDX-License-Identifier: Apache-2.0
"""Devices of this process: counting, choosing, describing, waiting for them."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from types import TracebackType
from typing import TypeAlias

import torch

from torchtpu_core import _C
from torchtpu_core.errors import DeviceIndexError

Device: TypeAlias = "torch.device | str | int | None"

#: Whether somebody has called `current_device`.
_was_asked_for = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceProperties:
    """Facts about one device.

    Attributes:
        name: such as ``TPU v5e``.
        total_memory: bytes of HBM the device can use.
        target: the target it belongs to.
        simulated: whether the figures come from a model of the chip.
        num_cores: TensorCores behind the device.
    """

    name: str
    total_memory: int
    target: str
    simulated: bool
    num_cores: int


def index_of(device: Device) -> int:
    """The index of a device given as index, string, torch.device or None (the current).

    Raises:
        ValueError: it is not a tpu device.
        DeviceIndexError: this process has no such device.
    """
    if device is None:
        return _C.current_device()
    if isinstance(device, int):
        index = device
    else:
        named = torch.device(device)
        if named.type != "tpu":
            raise ValueError(f"Expected a tpu device, but got: {named}")
        index = _C.current_device() if named.index is None else named.index
    _C.check_device(index)
    return int(index)


def device_count() -> int:
    """Number of devices this process can use; starts nothing."""
    return int(_C.device_count())


def is_available() -> bool:
    """Whether there is a device: a real TPU or a simulated one."""
    return device_count() > 0


def has_started() -> bool:
    """Whether the device has started in this process."""
    return bool(_C.is_started()) and not is_in_bad_fork()


def is_initialized() -> bool:
    """Whether the device has started in this process, or one was chosen that will.

    PyTorch's fake tensors are on device 0, and its device meshes choose one, as long as it is not.
    Ranks that are threads of one process, as in PyTorch's own tests, share the device that the
    process asked for before they began; a rank that has a process, or a launcher, has its own.
    """
    if has_started() or (_C.is_device_chosen() and not is_in_bad_fork()):
        return True
    is_main = threading.current_thread() is threading.main_thread()
    return _was_asked_for and not is_main and "LOCAL_RANK" not in os.environ


def is_in_bad_fork() -> bool:
    """Whether this is a forked child of a process that had used the device."""
    return bool(_C.in_bad_fork())


def init() -> None:
    """Start the device now instead of at the first tensor."""
    _C.ensure_started()


def set_target(name: str) -> None:
    """Choose what stands behind the device, before it is first used.

    Args:
        name: ``cpu``, ``tpu`` or a simulated slice such as ``v5e:2x2``.
    """
    from torchtpu_core.runtime.current import set_target as choose

    choose(name)


def current_device() -> int:
    """Index of the current device."""
    global _was_asked_for
    _was_asked_for = True
    return int(_C.current_device())


def set_device(device: Device) -> None:
    """Make a device current for this thread."""
    _C.choose_device(index_of(device))


class device:
    """Context manager that makes a device current; a negative index does nothing."""

    def __init__(self, device: Device) -> None:
        self.index = device if isinstance(device, int) and device < 0 else index_of(device)
        self.previous = -1

    def __enter__(self) -> None:
        if isinstance(self.index, int) and self.index >= 0:
            self.previous = _C.exchange_device(self.index)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.previous >= 0:
            _C.exchange_device(self.previous)


def device_of(obj: torch.Tensor) -> device:
    """Context manager that makes a tensor's device current; other tensors change nothing.

    It is a function, as compiled code knows contexts by class.
    """
    return device(obj.get_device() if obj.device.type == "tpu" else -1)


def get_device_name(device: Device = None) -> str:
    """Name of a device, such as ``TPU v5e``."""
    return get_device_properties(device).name


def get_device_properties(device: Device = None) -> DeviceProperties:
    """Facts about a device."""
    from torchtpu_core.runtime.current import target

    index_of(device)
    current = target()
    chip = current.chip
    if chip is None:
        return _properties_from_client(index_of(device))
    return DeviceProperties(
        name=current.target.device_kind or "TPU",
        total_memory=current.target.hbm_bytes_per_device or 0,
        target=current.name,
        simulated=True,
        num_cores=(chip.cores_per_chip or 1) // (chip.devices_per_chip or 1),
    )


def _properties_from_client(index: int) -> DeviceProperties:
    from torchtpu_core.runtime import clients
    from torchtpu_core.runtime.current import target

    found = clients.devices()[index]
    stats = found.memory_stats() or {}
    return DeviceProperties(
        name="TPU (XLA:CPU)" if found.platform == "cpu" else found.device_kind,
        total_memory=int(stats.get("bytes_limit", _host_memory_bytes())),
        target=target().name,
        simulated=False,
        num_cores=1,
    )


def _host_memory_bytes() -> int:
    import os

    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def get_device_capability(device: Device = None) -> dict[str, object]:
    """What the device supports, as `torch.accelerator` words it."""
    return torch.accelerator.get_device_capability(index_of(device))


def can_device_access_peer(device: Device, peer_device: Device) -> bool:
    """Whether two devices can exchange data without the host: all of one slice can."""
    first, second = index_of(device), index_of(peer_device)
    return first != second


def synchronize(device: Device = None) -> None:
    """Wait for all work of a device and raise the errors it found.

    Raises:
        IndexError: an index was out of range; the message names the line of the call.
    """
    index = index_of(device)
    if has_started():
        _C.synchronize(index)


__all__ = [
    "DeviceIndexError",
    "DeviceProperties",
    "can_device_access_peer",
    "current_device",
    "device",
    "device_count",
    "device_of",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "has_started",
    "index_of",
    "init",
    "is_available",
    "is_in_bad_fork",
    "is_initialized",
    "set_device",
    "set_target",
    "synchronize",
]
