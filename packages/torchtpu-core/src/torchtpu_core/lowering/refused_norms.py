# SPDX-License-Identifier: Apache-2.0
"""Dtypes of a norm's weights that PyTorch's meta kernels accept and its CPU kernels refuse.

As `torchtpu_core.lowering.refusals`, whose table takes this check in.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from torchtpu_core.lowering.refused_shapes import dtype_name

_HALVES = (torch.float16, torch.bfloat16)
_WEIGHTS = ("weight", "bias", "running_mean", "running_var")


def dtypes(arguments: Mapping[str, Any]) -> None:
    """Weights have the input's dtype, or float32 beside an input of half precision.

    Raises:
        RuntimeError: in CPU's words.
    """
    dtype = arguments["input"].dtype
    given = (arguments.get(name) for name in _WEIGHTS)
    weights = [t.dtype for t in given if isinstance(t, torch.Tensor)]
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
