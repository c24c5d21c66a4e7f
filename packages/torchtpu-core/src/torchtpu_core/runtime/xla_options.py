# SPDX-License-Identifier: Apache-2.0
"""How XLA compiles our programs, by platform; the user's own JAX keeps XLA's defaults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
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


#: The older emitters make one module of LLVM of a program, and one of few operators is not worth
#: dividing for the threads that compile.
_OLDER_EMITTERS: Mapping[str, bool | int | float | str] = MappingProxyType(
    {"xla_cpu_use_fusion_emitters": False, "xla_cpu_parallel_codegen_split_count": 1}
)

#: Lines of StableHLO up to which a program is one operator or a few.
_FEW_LINES = 160
#: Elements from which the older emitters' loops over a padding, a transposition or the kernel of a
#: convolution cost more than a few compilations.
_MANY_ELEMENTS = 1 << 18
#: The shape of what such an operation writes, of a convolution the shape of its kernel.
_REARRANGED = re.compile(
    r"stablehlo\.(?:(?:pad|transpose) .*-> tensor<([0-9x]*)x"
    r"|convolution\(.*, tensor<([0-9x]*)x[^,]*\) ->)"
)


def for_program(platform: str, stablehlo: str) -> dict[str, bool | int | float | str]:
    """XLA's options for a program on a platform, as ``Lowered.compile`` takes them.

    Args:
        platform: of the device.
        stablehlo: text of the program.

    >>> for_program("tpu", "")
    {}
    """
    if platform != "cpu":
        return {}
    return {**_CPU, **_OLDER_EMITTERS} if _suits_older_emitters(stablehlo) else dict(_CPU)


def _suits_older_emitters(stablehlo: str) -> bool:
    """Whether XLA:CPU's older emitters should compile a program.

    They compile an operator by itself in 0.3 to 0.6 of the time and its kernels are as fast, but
    for large rearrangements. A whole step takes them longer (docs/decisions/0043).
    """
    if stablehlo.count("\n") > _FEW_LINES:
        return False
    shapes = (found[1] or found[2] for found in _REARRANGED.finditer(stablehlo))
    return all(prod(map(int, shape.split("x"))) < _MANY_ELEMENTS for shape in shapes if shape)
