# SPDX-License-Identifier: Apache-2.0
"""How XLA compiles our programs, by platform; the user's own JAX keeps XLA's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_CPU: Mapping[str, bool | int | float | str] = MappingProxyType(
    {
        # Kernels of microseconds are not worth waking other threads for; large ones are
        # parallel by themselves.
        "xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED",
        # LLVM's passes beyond it (XLA's default is 3) cost a tenth of the compilation and
        # make no kernel faster.
        "xla_backend_optimization_level": 2,
    }
)


def for_platform(platform: str) -> dict[str, bool | int | float | str]:
    """XLA's options for programs of a platform, as ``Lowered.compile`` takes them.

    >>> for_platform("tpu")
    {}
    """
    return dict(_CPU) if platform == "cpu" else {}
