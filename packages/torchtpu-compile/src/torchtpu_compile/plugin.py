# SPDX-License-Identifier: Apache-2.0
"""The plugin: prepares torch's compiler stack when the device starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchtpu_core.hookspecs import hookimpl


@hookimpl
def torchtpu_register_kernels() -> Iterable[Callable[..., Any]]:
    """Let Dynamo and Inductor, the default backend, hand the device's graphs to us."""
    from torchtpu_compile.interfaces import hook_compiler

    return (hook_compiler,)


@hookimpl
def torchtpu_compile_backend() -> Callable[..., Any]:
    """The backend `tpu` of Dynamo."""
    from torchtpu_compile.backend import tpu

    return tpu


@hookimpl
def torchtpu_after_compile(name: str, stablehlo: str, seconds: float) -> None:
    """Tell `explain` and ``debug_callback``."""
    from torchtpu_compile import records

    records.compiled(name, stablehlo, seconds)


@hookimpl
def torchtpu_open_sizes(description: Any, sizes_seen: Any, later: bool) -> Any | None:
    """Fused Eager's ops of varying sizes, at padded sizes."""
    from torchtpu_compile import eager_sizes

    return eager_sizes.program(description, sizes_seen, later=later)
