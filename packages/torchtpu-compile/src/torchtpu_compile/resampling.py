# SPDX-License-Identifier: Apache-2.0
"""Resampling of images, as `interpolate` does it, kept whole where sizes are fixed.

PyTorch takes it apart before derivatives are taken, on every device: the gradient of the gather
that is left is a scatter, slow to run and never channels last. Here derivatives are taken of the
operator, as in eager mode. It is for the device only, and for tracing only; images of open size
are taken apart as before, for the parts have rules for padding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils import _pytree as pytree

_Key = torch._C.DispatchKey
_FAMILIES = (
    *(
        f"{name}{rank}d"
        for name in ("upsample_nearest", "_upsample_nearest_exact")
        for rank in (1, 2, 3)
    ),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d"),
    *(f"_upsample_{name}2d_aa" for name in ("bilinear", "bicubic", "lanczos")),
)


def has_open_sizes(arguments: Any) -> bool:
    """Whether a size among arguments, nested as they may be, is a symbol."""
    return any(
        isinstance(x, torch.SymInt)
        or (isinstance(x, torch.Tensor) and x._has_symbolic_sizes_strides)
        for x in pytree.tree_leaves(arguments)
    )


def _taken_apart() -> Iterator[Any]:
    """The overloads that PyTorch takes apart."""
    for family in _FAMILIES:
        packet = getattr(torch.ops.aten, family)
        for op in (packet.vec, packet.default):
            if _Key.Autograd in op.py_kernels:
                yield op


def _whole(op: Any) -> Callable[..., torch.Tensor]:
    """PyTorch's own kernel of an overload, in place of the parts, where sizes are fixed."""
    parts = op.py_kernels[_Key.Autograd]
    is_composite = op._overloadname == "vec"
    key = _Key.CompositeImplicitAutograd if is_composite else _Key.Autograd

    def run(*args: Any, **kwargs: Any) -> torch.Tensor:
        if has_open_sizes((args, kwargs)):
            return parts(*args, **kwargs)
        return op._op_dk(key, *args, **kwargs)

    return run


@functools.cache
def register() -> None:
    """Let tracing on the device use them, before derivatives are taken."""
    for op in _taken_apart():
        op.py_impl(_Key.AutogradPrivateUse1)(_whole(op))
