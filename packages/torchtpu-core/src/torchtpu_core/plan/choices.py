# SPDX-License-Identifier: Apache-2.0
"""Operators whose results' shapes depend on values, such as ``x[mask]``, without values.

The device runs them as composites around one count that the host reads (`lowering/unique.py`,
`lowering/masks.py`). A plan runs the same composites, and takes a share of the elements for the
count: all of them, unless the user knows better. So it prices the operators that will run, and no
script needs to be changed to be planned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchtpu_core.lowering import masks
from torchtpu_core.lowering.interpreter import overload_name
from torchtpu_core.lowering.table import Kind, Lowering
from torchtpu_core.plan import host_lengths

_aten = torch.ops.aten
_INDEXING = (_aten.index, _aten.index_put, _aten.index_put_, _aten._index_put_impl_)
_PACKING = _aten._pack_padded_sequence.default
#: How many elements it makes is a sum of values, of which their number says nothing.
_SUM = _aten.repeat_interleave.Tensor


def count(share: float, elements: int) -> int:
    """How many of some elements are taken to be chosen, if a share of all is."""
    return min(elements, math.ceil(share * elements))


def parts(
    func: Any, args: Sequence[Any], known: Mapping[str, Lowering]
) -> Callable[..., Any] | None:
    """What runs instead of an operator whose result's shape depends on values; None for others.

    Args:
        func: the operator.
        args: its positional arguments.
        known: the device's lowerings.

    Raises:
        IndexError: a mask does not cover what it indexes.
    """
    if not _may_depend_on_values(func):
        return None
    if func.overloadpacket in _INDEXING:
        if not masks.needs_mask_expansion(func._schema.name, args[1]):
            return None
        masks.check_masks(args[0].shape, args[1])
        return functools.partial(_by_positions, func)
    if func is _PACKING:
        return host_lengths.packed
    row = known.get(overload_name(func))
    return row.function if row is not None and row.kind is Kind.COMPOSITE else None


@functools.cache
def _may_depend_on_values(func: Any) -> bool:
    """Asked of every operator that is recorded."""
    if func.overloadpacket in _INDEXING or func is _PACKING:
        return True
    return torch.Tag.dynamic_output_shape in func.tags and func is not _SUM


def _by_positions(func: Any, self: Any, indices: Sequence[Any], *rest: Any, **named: Any) -> Any:
    return func(self, masks.expand_masks(indices), *rest, **named)


def refusal(func: Any, line: str) -> str:
    """Why an operator ends a plan."""
    remedy = (
        "Pass output_size=..."
        if func is _SUM
        else "Use an operator of fixed shape there, such as torch.where with three arguments, or "
        "torch.topk."
    )
    return (
        f"{func} at {line} has a result whose shape depends on values, which a plan does not "
        f"have. {remedy}"
    )
