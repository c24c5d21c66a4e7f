# SPDX-License-Identifier: Apache-2.0
"""The Dynamo backend `tpu`, found among the plugins when `torch.compile` asks for it.

The name is core's, as an entry point, and the compiler a plugin's: without one the error says
what to install, where torch alone would call the backend invalid.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtpu_core import env_vars, plugins
from torchtpu_core.errors import MissingExtraError


def __getattr__(name: str) -> Any:
    if name == "tpu":
        return backend()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def backend() -> Callable[..., Any]:
    """The compiler of Dynamo's graphs.

    Raises:
        MissingExtraError: no plugin brings one.
    """
    found = [compiler for _, compiler in plugins.collect("torchtpu_compile_backend")]
    if not found:
        disabled = env_vars.read("TORCH_TPU_DISABLE_PLUGINS")
        raise MissingExtraError.for_extra("compile", 'torch.compile(backend="tpu")', disabled)
    return found[0]  # type: ignore[no-any-return]
