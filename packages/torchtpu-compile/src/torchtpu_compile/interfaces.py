# SPDX-License-Identifier: Apache-2.0
"""What torch's compiler stack asks about the device: Dynamo's interface, Inductor's scheduling.

torch 2.13 registers an interface and a code generator of its own for the name `tpu`.
Ours replace them through torch's registration functions: Dynamo then sees the real
devices and streams, and Inductor, the default backend, hands its graphs to us
(`inductor`). Importing Dynamo or sympy takes seconds, so nothing here imports them before
the user does.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch

log = logging.getLogger("torchtpu")


@functools.cache
def register() -> None:
    """Register the device's interface with Dynamo."""
    from torch._dynamo import device_interface

    device_interface.get_registered_device_interfaces()  # torch registers its own first
    interface = _interface(device_interface.DeviceInterface)
    device_interface.register_interface_for_device("tpu", interface)
    for index in range(torch.tpu.device_count()):
        device_interface.register_interface_for_device(f"tpu:{index}", interface)


def hook_compiler() -> None:
    """Tell Inductor and Dynamo about the device, now or as soon as they are imported."""
    for name, action in _AFTER_IMPORT.items():
        module = sys.modules.get(name)
        if module is not None:
            action(module)
        elif not any(isinstance(f, _Finder) and f.name == name for f in sys.meta_path):
            sys.meta_path.insert(0, _Finder(name, action))


#: What to do as soon as a module of torch is there.
_AFTER_IMPORT: Mapping[str, Callable[[ModuleType], None]] = {
    "torch._inductor.codegen.common": lambda module: _prepare_inductor(module),
    "torch._inductor.fx_passes.joint_graph": lambda module: _prepare_patterns(module),
    "torch._inductor.fx_passes.replace_random": lambda module: _prepare_draws(module),
    "torch._inductor.inductor_prims": lambda module: _prepare_prims(),
    "torch._dynamo": lambda module: _prepare_dynamo(),
}

#: Functions in Python that serve operators: not the user's code, and not for Dynamo to trace
#: when an operator runs between two graphs.
_KERNELS = (
    *("torchtpu_core.lowering", "torchtpu_core.runtime"),
    "torchtpu_compile.recurrent_notice",
    "torchtpu_compile.interfaces",  # the finder below, where the code imports something
)


def _prepare_inductor(registry: ModuleType) -> None:
    from torchtpu_compile import inductor

    inductor.register(registry)


def _prepare_patterns(joint_graph: ModuleType) -> None:
    from torchtpu_compile import scaled_sums

    scaled_sums.register(joint_graph)


def _prepare_draws(replace_random: ModuleType) -> None:
    from torchtpu_compile import random_ops

    random_ops.register(replace_random)


def _prepare_prims() -> None:
    from torchtpu_compile import open_numbers

    open_numbers.register_prims()


def _prepare_dynamo() -> None:
    from torch._dynamo import trace_rules

    from torchtpu_compile import (
        associative_scans,
        autocast,
        device_functions,
        flex_attention,
        image_layouts,
        margin_losses,
        meta_kernels,
        open_composites,
        open_numbers,
        open_products,
        open_strides,
        recurrent_notice,
        resampling,
        transformed_numbers,
    )

    register()
    associative_scans.register()
    autocast.register()
    device_functions.register()
    flex_attention.admit_device()
    meta_kernels.register()
    image_layouts.register()
    margin_losses.register()
    open_composites.register()
    open_strides.register()
    open_numbers.register()
    open_products.register()
    resampling.register()
    recurrent_notice.register()
    transformed_numbers.register()
    for package in _KERNELS:
        trace_rules.add(package)


class _Finder(importlib.abc.MetaPathFinder):
    """Sees the import of one module, once, and changes nothing about it.

    Args:
        name: of the module.
        action: called with the module once it is loaded.
    """

    def __init__(self, name: str, action: Callable[[ModuleType], None]) -> None:
        self.name = name
        self.action = action

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The ordinary spec, with a loader that acts after loading."""
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def load(module: ModuleType) -> None:
                execute(module)
                try:
                    self.action(module)
                except Exception as error:  # of torch's internals; its import must not fail
                    message = "<TorchTpu/plugins> %s is not prepared for tpu: %s: %s"
                    log.warning(message, self.name, type(error).__name__, error)

            spec.loader.exec_module = load  # type: ignore[method-assign]
        return spec


def _interface(base: type) -> Any:
    module = torch.tpu

    class Worker:
        """What a compile worker may ask; it has no device of its own."""

        set_device = staticmethod(module.set_device)
        current_device = staticmethod(module.current_device)
        get_device_properties = staticmethod(module.get_device_properties)

    functions = (
        "current_device",
        "set_device",
        "device_count",
        "is_available",
        "stream",
        "current_stream",
        "set_stream",
        "synchronize",
        "get_device_properties",
        "memory_allocated",
    )
    members: dict[str, Any] = {name: staticmethod(getattr(module, name)) for name in functions}
    members.update(
        Worker=Worker,
        device=module.device,
        Event=torch.Event,
        Stream=torch.Stream,
        exchange_device=staticmethod(_exchange_device),
        maybe_exchange_device=staticmethod(_exchange_device),
        get_raw_stream=staticmethod(lambda index: 0),
        get_compute_capability=staticmethod(lambda device=None: ""),
        is_bf16_supported=staticmethod(lambda including_emulation=False: True),
        is_dtype_supported=staticmethod(lambda dtype, including_emulation=False: True),
    )
    return type("TpuInterface", (base,), members)


def _exchange_device(index: int) -> int:
    before = torch.tpu.current_device()
    if index >= 0:
        torch.tpu.set_device(index)
    return before
