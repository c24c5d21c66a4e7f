# SPDX-License-Identifier: Apache-2.0
"""One program for a short trace that was never seen before.

Run one by one, each of its ops that is new needs a program, and XLA takes some 25 ms of CPU time
for the smallest. One program for all of them takes a fraction of that, and serves when the trace
comes again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchtpu_core.runtime import explanations, programs, tables, varying
from torchtpu_core.runtime.trace_key import trace_key
from torchtpu_core.runtime.trace_lowering import Description

#: Of an op. XLA:CPU compiles a kernel for each tensor of a list, wherever it is.
_MOST_OPERANDS = 8


def build_at_first_sight(
    description: Description, alone: list[Description], least: int, reason: str
) -> programs.Program | None:
    """The program of a trace, if that takes less than those of its ops.

    Args:
        description: the trace.
        alone: of each of its ops that this process has no program for; different ones.
        least: how many of them the cache of the host must not have either.
        reason: why the trace ended.

    Returns:
        None: its ops are to run one by one. Some are of sizes that vary, or known by now, or not
        of PyTorch; or it cannot be built, which then shows at the line of an op.
    """
    if not all(map(_is_plain, description["nodes"])):
        return None
    varied = [each for each in alone if varying.sizes_seen(each)]  # notes the sizes of all
    if varied or len(alone) - sum(map(_is_known, alone)) < least:
        return None
    explanations.note_compile(description, reason, again=False)
    try:
        return programs.compile_program(description)
    except Exception:
        return None


def _is_plain(node: Mapping[str, Any]) -> bool:
    return tables.is_core(node["row"]) and len(node["inputs"]) <= _MOST_OPERANDS


def _is_known(alone: Description) -> bool:
    return programs.find_program(trace_key(alone), alone["device"], remote=False) is not None
