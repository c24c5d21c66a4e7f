# SPDX-License-Identifier: Apache-2.0
"""Calls that a real TPU's compiler does not take: eager modes run them on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchtpu_core.errors import HostOnlyError
from torchtpu_core.lowering import tpu_limits
from torchtpu_core.runtime.current import target
from torchtpu_core.targets import TargetKind


def is_host_only(overload: str, values: Iterable[Any]) -> bool:
    """Whether a call with tensors among `values` runs on the host on the current target."""
    return is_real_tpu() and tpu_limits.reason(overload, _dtypes(values)) is not None


def is_real_tpu() -> bool:
    """Whether programs are compiled for the TPU of this host."""
    return target().target.kind is TargetKind.TPU


def refuse(overload: str, arguments: Mapping[str, Any]) -> None:
    """Raise HostOnlyError if the call is for the host; called once per new signature."""
    if is_real_tpu():
        why = tpu_limits.reason(overload, _dtypes(arguments.values()))
        if why is not None:
            raise HostOnlyError.for_op(overload, why)


def _dtypes(values: Iterable[Any]) -> list[torch.dtype]:
    found = pytree.tree_leaves(list(values))
    return [value.dtype for value in found if isinstance(value, torch.Tensor)]
