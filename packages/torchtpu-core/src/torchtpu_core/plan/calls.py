# SPDX-License-Identifier: Apache-2.0
"""The operators of a step with their arguments, tensors replaced by places in storages.

What `plan.program` needs to make one program of a step. Plain data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_map

from torchtpu_core.plan.records import Phase


@dataclass(frozen=True, slots=True)
class Place:
    """A tensor: a view of a storage.

    Attributes:
        storage: its number in the recording.
        sizes: of the view.
        strides: in elements.
        offset: in elements.
        dtype: element type.
        elements: of the whole storage, in this type.
    """

    storage: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    elements: int


@dataclass(slots=True)
class Call:
    """One operator.

    Attributes:
        func: the overload.
        args: positional arguments.
        kwargs: keyword arguments.
        out: what it returned.
        phase: the part of the step.
        line: the user's ``file:line``.
        index: operators recorded before it.
        group: ranks of a collective.
    """

    func: Any
    args: Any
    kwargs: Any
    out: Any
    phase: Phase
    line: str
    index: int
    group: tuple[int, ...] = ()

    def __reduce__(self) -> tuple[Any, ...]:
        rest = self.args, self.kwargs, self.out, self.phase, self.line, self.index, self.group
        return _call, (self.func.namespace, self.func._opname, self.func._overloadname, *rest)


def _call(namespace: str, name: str, overload: str, *rest: Any) -> Call:
    """A call that comes from another process; overloads cannot be sent."""
    return Call(getattr(getattr(getattr(torch.ops, namespace), name), overload), *rest)


def placed(tree: Any, number_of: Callable[[torch.Tensor], int | None]) -> Any:
    """A tree with each tensor of the device replaced by its place.

    Args:
        tree: arguments or results.
        number_of: the storage's number; None for a tensor that stays itself.
    """

    def place(leaf: Any) -> Any:
        if isinstance(leaf, (torch.ScriptObject, torch.Generator)):
            return None  # a collective's handle would keep its tensors alive
        if not isinstance(leaf, torch.Tensor):
            return leaf
        number = number_of(leaf)
        if number is None and isinstance(leaf, FakeTensor):  # of the host; such cannot be sent
            return torch.empty(leaf.shape, dtype=leaf.dtype, device="meta")
        if number is None:
            return leaf
        return Place(
            number,
            tuple(leaf.shape),
            tuple(leaf.stride()),
            leaf.storage_offset(),
            leaf.dtype,
            leaf.untyped_storage().nbytes() // leaf.element_size(),
        )

    return tree_map(place, tree)
