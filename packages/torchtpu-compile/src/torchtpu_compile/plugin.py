# SPDX-License-Identifier: Apache-2.0
"""The plugin: prepares torch's compiler stack when the device starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torchtpu_core.hookspecs import hookimpl


@hookimpl
def torchtpu_register_kernels() -> Iterable[Callable[..., Any]]:
    """Keep Inductor, which cannot generate code for this device, from trying."""
    from torchtpu_compile.interfaces import guard_inductor

    return (guard_inductor,)
