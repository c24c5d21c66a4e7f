# SPDX-License-Identifier: Apache-2.0
"""Programs: what C++ runs for a trace.

A program is looked up by a key of the trace, which needs no tracing, or it is lowered
and compiled. The two halves are separate, so that a caller can look up at once and
compile elsewhere: both take the description of a trace, which is plain data, and may be
called from any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax

from torchtpu_core.runtime import compiling
from torchtpu_core.runtime.trace_lowering import Check, Description, trace_function


@dataclass(slots=True)
class Program:
    """A compiled program, as C++ reads it.

    Attributes:
        call: operands, then the scalar words if any, to a tuple of arrays.
        positions: live output -> index in the result.
        checks: (error, message, node) of each check; their flags are the last result.
        device_time_ps: simulated device time of one run; 0 without a chip model.
        output_bytes: bytes of the results that take new memory.
    """

    call: Callable[..., Sequence[jax.Array]]
    positions: list[int]
    checks: list[Check]
    device_time_ps: int
    output_bytes: int

    @property
    def has_checks(self) -> bool:
        """Whether the last result holds check flags."""
        return bool(self.checks)


def build_program(description: Description) -> Program:
    """The program of a trace: looked up, else lowered and compiled.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
    """
    return lookup_program(description) or compile_program(description)


def lookup_program(description: Description) -> Program | None:
    """The program of a trace if this host has it; never traces, lowers or compiles.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
    """
    return None


def compile_program(description: Description) -> Program:
    """The program of a trace, lowered and compiled by this thread.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
    """
    traced = trace_function(description)
    compiled = compiling.compile_function(
        traced.function, traced.avals, traced.donated, traced.name
    )
    return Program(
        call=compiled.call,
        positions=traced.positions,
        checks=list(traced.checks),
        device_time_ps=compiled.device_time_ps,
        output_bytes=traced.output_bytes,
    )
