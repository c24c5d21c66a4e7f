# SPDX-License-Identifier: Apache-2.0
"""The plugin: three execution modes, handed to core through its hook."""

from __future__ import annotations

from collections.abc import Sequence

from torchtpu_core.execution import ExecutionMode, Observer
from torchtpu_core.hookspecs import hookimpl


def _observer() -> Observer:
    from torchtpu_eager.debug import make_observer

    return make_observer()


def _enter_fused() -> None:
    from torchtpu_eager.fused import enter

    enter()


@hookimpl
def torchtpu_execution_modes() -> Sequence[ExecutionMode]:
    """Strict, Debug and Fused."""
    return (
        ExecutionMode(name="strict"),
        ExecutionMode(name="debug", synchronous=True, observer=_observer),
        ExecutionMode(name="fused", flush_each=False, entered=_enter_fused),
    )
