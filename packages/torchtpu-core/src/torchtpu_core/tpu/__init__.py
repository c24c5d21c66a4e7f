# SPDX-License-Identifier: Apache-2.0
"""`torch.tpu`: the device's own functions, named as their CUDA counterparts.

Importing it imports neither JAX nor plugins; whatever needs the running device starts
it.
"""

from __future__ import annotations

from torch import OutOfMemoryError

from torchtpu_core.tpu import absent, distributed, memory, random
from torchtpu_core.tpu.amp import (
    get_amp_supported_dtype,
    is_bf16_supported,
    is_tf32_supported,
)
from torchtpu_core.tpu.counters import counters, reset_counters
from torchtpu_core.tpu.devices import (
    DeviceProperties,
    can_device_access_peer,
    current_device,
    device,
    device_count,
    device_of,
    get_device_capability,
    get_device_name,
    get_device_properties,
    init,
    is_available,
    is_initialized,
    set_device,
    set_target,
    synchronize,
)
from torchtpu_core.tpu.devices import has_started as _has_started
from torchtpu_core.tpu.devices import is_in_bad_fork as _is_in_bad_fork
from torchtpu_core.tpu.eager import EagerMode, debug, set_eager_mode
from torchtpu_core.tpu.explain import Explanation, explain, wait_for_compiles
from torchtpu_core.tpu.memory import (
    device_memory_used,
    empty_cache,
    get_per_process_memory_fraction,
    ipc_collect,
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_stats,
    memory_stats_as_nested_dict,
    memory_summary,
    reset_accumulated_memory_stats,
    reset_peak_memory_stats,
    set_per_process_memory_fraction,
)
from torchtpu_core.tpu.random import (
    default_generators,
    get_rng_state,
    get_rng_state_all,
    initial_seed,
    manual_seed,
    manual_seed_all,
    seed,
    seed_all,
    set_rng_state,
    set_rng_state_all,
)
from torchtpu_core.tpu.streams import (
    Event,
    Stream,
    StreamContext,
    _sleep,
    current_stream,
    default_stream,
    is_current_stream_capturing,
    set_stream,
    stream,
)


def __getattr__(name: str) -> object:
    if name == "eager_mode":
        from torchtpu_core.tpu.eager import current_mode

        return current_mode()
    if name == "_initialized":  # torch.utils.checkpoint saves random states only if it is true
        return _has_started()
    raise AttributeError(absent.explain(name))


__all__ = [
    "DeviceProperties",
    "EagerMode",
    "Event",
    "Explanation",
    "OutOfMemoryError",
    "Stream",
    "StreamContext",
    "_is_in_bad_fork",
    "_sleep",
    "can_device_access_peer",
    "counters",
    "current_device",
    "current_stream",
    "debug",
    "default_generators",
    "default_stream",
    "device",
    "device_count",
    "device_memory_used",
    "device_of",
    "distributed",
    "empty_cache",
    "explain",
    "get_amp_supported_dtype",
    "get_device_capability",
    "get_device_name",
    "get_device_properties",
    "get_per_process_memory_fraction",
    "get_rng_state",
    "get_rng_state_all",
    "init",
    "initial_seed",
    "ipc_collect",
    "is_available",
    "is_bf16_supported",
    "is_current_stream_capturing",
    "is_initialized",
    "is_tf32_supported",
    "manual_seed",
    "manual_seed_all",
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory",
    "memory_allocated",
    "memory_reserved",
    "memory_stats",
    "memory_stats_as_nested_dict",
    "memory_summary",
    "random",
    "reset_accumulated_memory_stats",
    "reset_counters",
    "reset_peak_memory_stats",
    "seed",
    "seed_all",
    "set_device",
    "set_eager_mode",
    "set_per_process_memory_fraction",
    "set_rng_state",
    "set_rng_state_all",
    "set_stream",
    "set_target",
    "stream",
    "synchronize",
    "wait_for_compiles",
]
