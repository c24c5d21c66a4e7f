# SPDX-License-Identifier: Apache-2.0
"""Being told of every module that a script calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from torch.nn.modules import module


@contextlib.contextmanager
def followed(begins: Callable[..., Any], ends: Callable[..., Any]) -> Iterator[None]:
    """While the script runs.

    Args:
        begins: is given a module and its arguments before each call.
        ends: is given a module, its arguments and its result after each call, also if it raised.
    """
    handles = [
        module.register_module_forward_pre_hook(begins),
        module.register_module_forward_hook(ends, always_call=True),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
