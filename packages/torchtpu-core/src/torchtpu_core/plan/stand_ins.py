# SPDX-License-Identifier: Apache-2.0
"""What a plan puts in place of functions that need values, other ranks or a compiler.

Each is a context manager's patch: the originals come back when the plan is made.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import distributed as dist
from torch import nn
from torch.nn import functional


def enter_all(stack: contextlib.ExitStack) -> None:
    """Puts every stand-in in place until the stack is left."""
    for patch in (_compile(), _module_compile(), _grouped_attention(), _loading_in_process()):
        stack.enter_context(patch)
    for name, replacement in _OBJECTS.items():
        stack.enter_context(mock.patch.object(dist, name, replacement))


def _compile() -> Any:
    """``torch.compile`` gives the function back: operators are fused by the plan's own rule."""

    def compile_(model: Callable[..., Any] | None = None, **_: Any) -> Any:
        return model if model is not None else (lambda function: function)

    return mock.patch.object(torch, "compile", compile_)


def _module_compile() -> Any:
    def compile_(self: nn.Module, *_: Any, **__: Any) -> None:
        """Compiles nothing."""

    return mock.patch.object(nn.Module, "compile", compile_)


def _grouped_attention() -> Any:
    """Attention with fewer key than query heads is a fused kernel too."""
    real = functional.scaled_dot_product_attention

    def attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        if kwargs.pop("enable_gqa", False) and query.shape[-3] != key.shape[-3]:
            repeats = query.shape[-3] // key.shape[-3]
            key, value = (part.repeat_interleave(repeats, -3) for part in (key, value))
        return real(query, key, value, *args, **kwargs)

    return mock.patch.object(functional, "scaled_dot_product_attention", attention)


def _loading_in_process() -> Any:
    """Data loaders make no processes: a child would run without the recorder."""
    real = torch.utils.data.DataLoader.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        kwargs["num_workers"] = 0
        for name in ("persistent_workers", "prefetch_factor", "multiprocessing_context"):
            kwargs.pop(name, None)
        kwargs["pin_memory"] = False
        real(self, *args, **kwargs)

    return mock.patch.object(torch.utils.data.DataLoader, "__init__", __init__)


def _all_gather_object(object_list: list[Any], obj: Any, *_: Any, **__: Any) -> None:
    """Every rank says what this one does."""
    object_list[:] = [obj] * len(object_list)


def _gather_object(obj: Any, object_gather_list: list[Any] | None = None, **_: Any) -> None:
    """Every rank says what this one does."""
    if object_gather_list is not None:
        object_gather_list[:] = [obj] * len(object_gather_list)


def _broadcast_object_list(*_: Any, **__: Any) -> None:
    """This rank has the objects already, or gets none."""


def _barrier(*_: Any, **__: Any) -> None:
    """Nobody else is waited for."""


_OBJECTS = {
    "all_gather_object": _all_gather_object,
    "gather_object": _gather_object,
    "broadcast_object_list": _broadcast_object_list,
    "barrier": _barrier,
}
