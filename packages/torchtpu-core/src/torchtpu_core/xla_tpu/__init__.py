# SPDX-License-Identifier: Apache-2.0
"""XLA's TPU compiler on a machine without a TPU: compile, report, price its schedule."""

from __future__ import annotations

from torchtpu_core.xla_tpu.compiling import (
    ENVIRONMENT,
    TIMEOUT_S,
    Compiled,
    compile_for,
    require_libtpu,
)
from torchtpu_core.xla_tpu.report import out_of_memory, report_of
from torchtpu_core.xla_tpu.topologies import topology_of

__all__ = [
    "ENVIRONMENT",
    "TIMEOUT_S",
    "Compiled",
    "compile_for",
    "out_of_memory",
    "report_of",
    "require_libtpu",
    "topology_of",
]
