# SPDX-License-Identifier: Apache-2.0
"""Calls that a real TPU's compiler does not take: eager modes run them on the host."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchtpu_core.errors import HostOnlyError, UnsupportedOpError
from torchtpu_core.lowering import tpu_limits
from torchtpu_core.runtime.current import target
from torchtpu_core.targets import TargetKind

_COMPLEX_OF_TWO = frozenset({"aten::complex", "aten::polar"})

#: Why overloads of this process were left to the host.
reasons: dict[str, str] = {}


def is_host_only(overload: str, values: Iterable[Any]) -> bool:
    """Whether a call with tensors among `values` runs on the host on the current target."""
    return is_real_tpu() and tpu_limits.reason(overload, _dtypes(values)) is not None


def is_real_tpu() -> bool:
    """Whether programs are compiled for the TPU of this host."""
    return target().target.kind is TargetKind.TPU


def refuse_dtype(overload: str, dtype: torch.dtype | None) -> None:
    """Raise UnsupportedOpError if the device is a real TPU, which cannot hold such a tensor."""
    if dtype in tpu_limits.REFUSED and is_real_tpu():
        raise UnsupportedOpError.for_op(overload, tpu_limits.REFUSED[dtype])


def refuse(overload: str, arguments: Mapping[str, Any]) -> None:
    """Raise HostOnlyError if the call is for the host; called once per new signature.

    Raises:
        UnsupportedOpError: a TPU cannot hold an operand, or the result asked for.
    """
    if is_real_tpu():
        dtypes = _dtypes(arguments.values())
        for dtype in (*dtypes, arguments.get("dtype"), _promoted(overload, dtypes, arguments)):
            refuse_dtype(overload, dtype)
        why = tpu_limits.reason(overload, dtypes)
        if why is not None:
            reasons[overload] = why
            raise HostOnlyError.for_op(overload, why)


def _promoted(
    overload: str, dtypes: Iterable[torch.dtype], arguments: Mapping[str, Any]
) -> torch.dtype | None:
    """complex128 if that is the result of a float64 and a complex number, or of two float64."""
    if torch.float64 not in dtypes:
        return None
    numbers = any(isinstance(value, complex) for value in pytree.tree_leaves(dict(arguments)))
    made = overload.partition(".")[0] in _COMPLEX_OF_TWO
    found = made or numbers or any(dtype.is_complex for dtype in dtypes)
    return torch.complex128 if found else None


def _dtypes(values: Iterable[Any]) -> list[torch.dtype]:
    found = pytree.tree_leaves(list(values))
    return [value.dtype for value in found if isinstance(value, torch.Tensor)]
