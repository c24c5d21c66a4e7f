# SPDX-License-Identifier: Apache-2.0
"""Dtypes of a layer's weights that PyTorch's meta kernels accept and its CPU kernels refuse.

As `torchtpu_core.lowering.refusals`, whose table takes these checks in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchtpu_core.lowering.refused_shapes import dtype_name

_HALVES = (torch.float16, torch.bfloat16)
_WEIGHTS = ("weight", "bias")
_STATISTICS = ("running_mean", "running_var")


def convolution(arguments: Mapping[str, Any]) -> None:
    """Kernel and bias have the input's dtype.

    Raises:
        RuntimeError: in PyTorch's words for a GPU; the CPU's name its own libraries.
    """
    dtype = arguments["input"].dtype
    for name in ("weight", "bias"):
        operand = arguments.get(name)
        if isinstance(operand, torch.Tensor) and operand.dtype != dtype:
            raise RuntimeError(
                f"Input type ({dtype_name(dtype)}) and {name} type ({dtype_name(operand.dtype)}) "
                "should be the same"
            )


def norm(arguments: Mapping[str, Any]) -> None:
    """Weights have the input's dtype, or float32 beside an input of half precision.

    Statistics of float32 beside weights of half precision, which FSDP's mixed precision makes of
    a batch norm, are taken: a GPU takes them, and the CPU merely has no kernel for them.

    Raises:
        RuntimeError: in CPU's words.
    """
    dtype = arguments["input"].dtype
    given = {name: arguments.get(name) for name in (*_WEIGHTS, *_STATISTICS)}
    weights = [
        t.dtype
        for name, t in given.items()
        if isinstance(t, torch.Tensor)
        and not (name in _STATISTICS and dtype in _HALVES and t.dtype == torch.float32)
    ]
    if not weights:
        return
    if weights[0] == dtype:
        for other in weights:
            if other != dtype:
                raise RuntimeError(
                    f"expected scalar type {dtype_name(dtype)} but found {dtype_name(other)}"
                )
    elif any(other != torch.float32 for other in weights):
        raise RuntimeError("mixed dtype (CPU): expect parameter to have scalar type of Float")
    elif dtype not in _HALVES:
        raise RuntimeError("mixed dtype (CPU): all inputs must share same datatype.")
