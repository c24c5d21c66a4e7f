# SPDX-License-Identifier: Apache-2.0
"""Names of `torch.cuda` that `torch.tpu` does not have, and what a script does instead.

They raise AttributeError, so `hasattr` answers truthfully; the message says what to use.
"""

from __future__ import annotations

from collections.abc import Mapping

_GRAPHS = (
    "XLA compiles programs; there is nothing to capture. Use torch.compile(model, backend='tpu')."
)
_ALLOCATOR = "XLA manages the device's memory, and no other allocator can be put in its place."
_SENSORS = (
    "the sensors of a TPU are not read. torch.tpu.memory_summary() and torch.profiler show what "
    "the device does."
)
_TYPES = (
    "typed tensor classes are legacy. Use torch.tensor(..., dtype=..., device='tpu') and "
    "torch.set_default_device('tpu')."
)
_LIBRARY = "it is a library of NVIDIA's. Operators of the device are compiled by XLA."
_SYNC = "torch.tpu.counters() counts what stops the host, and Debug Eager waits after every op."

_SCALARS = ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")

#: Why a name is not there.
ABSENT: Mapping[str, str] = {
    **dict.fromkeys(
        ("CUDAGraph", "graph", "graphs", "graph_pool_handle", "make_graphed_callables"), _GRAPHS
    ),
    **dict.fromkeys(
        (
            *("CUDAPluggableAllocator", "MemPool", "use_mem_pool", "change_current_allocator"),
            *("caching_allocator_alloc", "caching_allocator_delete", "get_allocator_backend"),
            *("caching_allocator_enable", "caching_allocator_disabled", "memory_snapshot"),
        ),
        _ALLOCATOR,
    ),
    **dict.fromkeys(
        ("utilization", "temperature", "power_draw", "clock_rate", "memory_usage"), _SENSORS
    ),
    **{f"{scalar}{kind}": _TYPES for scalar in _SCALARS for kind in ("Tensor", "Storage")},
    **dict.fromkeys(("cudart", "nccl", "jiterator", "tunable", "list_gpu_processes"), _LIBRARY),
    **dict.fromkeys(("current_blas_handle", "current_solver_handle"), _LIBRARY),
    **dict.fromkeys(("set_sync_debug_mode", "get_sync_debug_mode"), _SYNC),
    "nvtx": "use torch.profiler.record_function(name) to mark a range.",
    "profiler": "use torch.profiler.profile().",
    "ExternalStream": "streams of other libraries cannot be wrapped. Use torch.tpu.Stream().",
    "get_stream_from_external": "streams of other libraries cannot be wrapped.",
    "max_memory_cached": "use torch.tpu.max_memory_reserved().",
    "memory_cached": "use torch.tpu.memory_reserved().",
    "reset_max_memory_allocated": "use torch.tpu.reset_peak_memory_stats().",
    "reset_max_memory_cached": "use torch.tpu.reset_peak_memory_stats().",
    "sparse": "tensors on the device are dense.",
}


def explain(name: str) -> str:
    """The message of the AttributeError for a name that `torch.tpu` does not have.

    Args:
        name: the attribute asked for.
    """
    reason = ABSENT.get(name)
    return f"module 'torch.tpu' has no attribute {name!r}" + (f": {reason}" if reason else "")
