# SPDX-License-Identifier: Apache-2.0
"""Functions of `torch.tpu` in compiled code.

Dynamo knows those of `torch.cuda` by name. Of ours, what does not change is a constant of the
graph, the device's index is guarded, and what acts on the device is called between graphs.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torchtpu_core.tpu import devices
from torchtpu_core.tpu.devices import Device, index_of

#: Functions of ``torch.tpu`` that act on the device and have no tensors.
_OUTSIDE_OF_GRAPHS = (
    "counters",
    "empty_cache",
    "get_device_properties",
    "get_rng_state",
    "get_rng_state_all",
    "initial_seed",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "reset_counters",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_target",
    "wait_for_compiles",
)

#: Functions of ``torch.tpu`` whose results stay as they are.
_CONSTANT = (
    "device_count",
    "get_device_capability",
    "get_device_name",
    "is_available",
)


def register() -> None:
    """Tell Dynamo, once it is there."""
    for name in _CONSTANT:
        torch.compiler.assume_constant_result(getattr(torch.tpu, name))
    _register_contexts()
    for original, traced in _TRACED.items():
        torch.compiler.substitute_in_graph(original)(traced)
    for name in _OUTSIDE_OF_GRAPHS:
        reason = (
            f"torch.tpu.{name}() acts on the device, not on tensors; call it before or after "
            "the compiled function"
        )
        kept_out = torch.compiler.disable(getattr(torch.tpu, name), reason=reason)
        for module in (torch.tpu, sys.modules.get("torch_tpu")):  # the facade, if it is there
            if hasattr(module, name):
                setattr(module, name, kept_out)


def _register_contexts() -> None:
    from torch._dynamo.variables import ctx_manager

    class CurrentDevice(ctx_manager.AcceleratorDeviceIndexVariable):  # type: ignore[misc]
        """``with torch.tpu.device(1):`` in a graph."""

        _exchange_fn = staticmethod(_exchange)
        _maybe_exchange_fn = staticmethod(_exchange)
        _get_device_index_fn = staticmethod(lambda device, **_: _changed_to(device))

        def module_name(self) -> str:
            return "torch.tpu"

        def fn_name(self) -> str:
            return "device"

        def python_type(self) -> type:
            return devices.device

    if ctx_manager.get_device_context_manager(devices.device) is None:
        ctx_manager.register_device_context_manager(devices.device, CurrentDevice)


def _exchange(index: int) -> int:
    """Make a device current, while a graph is traced, and return the one that was.

    Torch keeps what fake tensors a call gives, and ``ones(2, device="tpu")`` is kept without the
    device that was current.
    """
    FakeTensorMode.cache_clear()
    return torch._C._accelerator_exchangeDevice(index)


def _changed_to(device: Device) -> int:
    """The device that a context makes current; a negative index does nothing."""
    is_none = isinstance(device, int) and device < 0
    return torch.accelerator.current_device_index() if is_none else index_of(device)


def _current_device() -> int:
    return torch.accelerator.current_device_index()


def _index_of(device: Device) -> int:
    if device is None:
        return torch.accelerator.current_device_index()
    if isinstance(device, int):
        index = device
    else:
        named = torch.device(device)
        if named.type != "tpu":
            raise ValueError(f"Expected a tpu device, but got: {named}")
        index = torch.accelerator.current_device_index() if named.index is None else named.index
    if not 0 <= index < torch.tpu.device_count():
        raise RuntimeError(f"tpu:{index} does not exist.")  # the call itself says more
    return index


def _current_stream(device: Device = None) -> torch.Stream:
    if device is None:
        return torch.accelerator.current_stream()
    return torch.accelerator.current_stream(_index_of(device))


def _synchronize(device: Device = None) -> None:
    torch.accelerator.synchronize(_index_of(device))


def _stream(stream: torch.Stream | None) -> AbstractContextManager[Any]:
    return contextlib.nullcontext() if stream is None else stream


#: What Dynamo traces instead: it knows the accelerator's functions, and guards their results.
_TRACED: Mapping[Callable[..., object], Callable[..., object]] = MappingProxyType(
    {
        index_of: _index_of,
        torch.tpu.current_device: _current_device,
        torch.tpu.current_stream: _current_stream,
        torch.tpu.stream: _stream,
        torch.tpu.synchronize: _synchronize,
    }
)
