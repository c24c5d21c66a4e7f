# SPDX-License-Identifier: Apache-2.0
"""Higher-order ops under autocast, as torch lets them through on devices of its own.

torch knows the autocast keys of CPU, CUDA and XPU: there a `cond`, a `scan` or a checkpointed
region is entered as it is, and the ops within it are cast one by one. Flex attention casts its
operands. The same is stated here for the device's key; no other device has it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch._C import DispatchKey

_KEY = DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]


@functools.cache
def register() -> None:
    """Let tracing under autocast enter the higher-order ops that torch has."""
    from torch._higher_order_ops.flex_attention import flex_attention

    for op in torch._ops._higher_order_ops.values():
        op.fallthrough(_KEY)
    flex_attention.py_impl(_KEY)(_attend)


def _attend(query: Tensor, key: Tensor, value: Tensor, *rest: Any, **kwargs: Any) -> Any:
    from torch._higher_order_ops.flex_attention import flex_attention

    dtype = torch.get_autocast_dtype(query.device.type)
    cast = (x if x.dtype is torch.float64 else x.to(dtype) for x in (query, key, value))
    with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_KEY)):
        return flex_attention(*cast, *rest, **kwargs)
