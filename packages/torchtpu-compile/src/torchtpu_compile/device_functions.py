# SPDX-License-Identifier: Apache-2.0
"""Functions of `torch.tpu` in compiled code.

Dynamo knows those of `torch.cuda` by name. Of ours, what does not change is a constant of the
graph, the device's index is guarded, and what acts on the device is called between graphs.
"""

from __future__ import annotations

import sys

import torch

#: Functions of ``torch.tpu`` that act on the device and have no tensors.
_OUTSIDE_OF_GRAPHS = (
    "counters",
    "current_stream",
    "default_stream",
    "empty_cache",
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
    "synchronize",
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
    torch.compiler.substitute_in_graph(torch.tpu.current_device)(_current_device)
    for name in _OUTSIDE_OF_GRAPHS:
        reason = (
            f"torch.tpu.{name}() acts on the device, not on tensors; call it before or after "
            "the compiled function"
        )
        kept_out = torch.compiler.disable(getattr(torch.tpu, name), reason=reason)
        for module in (torch.tpu, sys.modules.get("torch_tpu")):  # the facade, if it is there
            if hasattr(module, name):
                setattr(module, name, kept_out)


def _current_device() -> int:
    """What Dynamo traces instead: it knows this one, and guards its result."""
    return torch.accelerator.current_device_index()
