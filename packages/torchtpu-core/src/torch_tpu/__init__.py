# SPDX-License-Identifier: Apache-2.0
"""The facade of the project: one import for everything, re-exported and nothing else.

``torch_tpu.pallas``, ``torch_tpu.compile`` and ``torch_tpu.distributed`` come from
optional distributions; each is imported when first used, and a missing one raises an
error with the pip command. It is a regular package under the name that Google's
TorchTPU uses, so that code runs unchanged where a name exists in both.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torchtpu_core.tpu import (
    EagerMode,
    debug,
    device_count,
    is_available,
    set_eager_mode,
    set_target,
    synchronize,
)

if TYPE_CHECKING:
    from torch_tpu import compile, distributed, pallas

_SUBMODULES = frozenset({"compile", "distributed", "pallas"})


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        return importlib.import_module(f"torch_tpu.{name}")
    if name == "__version__":
        from importlib.metadata import version

        return version("torchtpu-core")
    if name == "eager_mode":
        from torchtpu_core.tpu.eager import current_mode

        return current_mode()
    raise AttributeError(f"module 'torch_tpu' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_SUBMODULES, "__version__", "eager_mode"})


__all__ = [
    "EagerMode",
    "compile",
    "debug",
    "device_count",
    "distributed",
    "is_available",
    "pallas",
    "set_eager_mode",
    "set_target",
    "synchronize",
]
