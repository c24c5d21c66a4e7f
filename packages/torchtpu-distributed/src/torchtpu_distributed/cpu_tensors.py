# SPDX-License-Identifier: Apache-2.0
"""What the ranks of a group call on CPU tensors, which gloo carries (`csrc/backend.cpp`).

Checkpoints and object collectives are made of it. It is numbered and compared as the device's
collectives are, but apart from them: gloo does not order the two, and a thread of its own may save
a checkpoint. Gloo itself would fill, swap or add what does not belong together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torchtpu_core.calls import user_line

from torchtpu_distributed import _C
from torchtpu_distributed.first_calls import Pieces
from torchtpu_distributed.group import Group
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.stacks import module_of_fsdp, stand_in_line

_INTEGERS = frozenset({torch.bool, torch.int8, torch.uint8, torch.int32, torch.int64})
_FLOATS = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64})
_COMPLEX = frozenset({torch.complex64, torch.complex128})
_BITS = ("band", "bor", "bxor")
#: What gloo reduces by name; what it does not, it finds out on a thread of its own, too late.
_REDUCED = {
    **dict.fromkeys(_BITS, _INTEGERS),
    **dict.fromkeys(("product", "min", "max"), _INTEGERS | _FLOATS),
    "sum": _INTEGERS | _FLOATS | _COMPLEX,
    "avg": _FLOATS | _COMPLEX,
}

#: Calls remembered, each of one kind and size: objects come in ever new sizes.
MOST_KNOWN = 1024


class CpuTensors:
    """The collectives of CPU tensors of one group.

    Args:
        group: a group of the same ranks, which counts them.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._known: dict[Any, _C.Call] = {}

    def begin(
        self,
        kind: str,
        op: str,
        root: int,
        tensors: Sequence[torch.Tensor],
        pieces: Pieces | None,
        timeout_s: float | None,
    ) -> Pending:
        """The record of the next one, which no other rank is known to call differently.

        Args:
            kind: the collective.
            op: reduction; empty where nothing is reduced.
            root: group rank that sends or receives alone, else -1.
            tensors: those that have one dtype and number of elements on all ranks.
            pieces: what this rank exchanges with each, if only two ranks know each size.
            timeout_s: seconds it may take; None for the group's.

        Raises:
            CollectiveMismatchError: another rank calls something else.
            RuntimeError: gloo has no such reduction of these dtypes, or the group no such root.
        """
        group = self.group
        _check_reduction(op, tensors)
        if root >= group.size:
            raise RuntimeError(
                f"{kind}: invalid root rank {root}: the ranks of group {group.name!r} are 0 to "
                f"{group.size - 1}."
            )
        call = self._know(kind, op, root, tensors, pieces is None)
        pending = group.come(call, user_line() or stand_in_line(), timeout_s)
        if group.is_nearby:
            group.agree(pending, pieces, patient=False)
        return pending

    def withdraw(self, pending: Pending) -> None:
        """Forget the last one: gloo has refused its arguments."""
        self.group.take_back(pending)

    def _know(
        self, kind: str, op: str, root: int, tensors: Sequence[torch.Tensor], is_sized: bool
    ) -> _C.Call:
        sizes = tuple((t.dtype, (t.numel(),) if is_sized else ()) for t in tensors)
        key = (kind, op, root, sizes, _C.fsdp_range())
        if key not in self._known:
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            words = [f"{kind} of CPU tensors"]
            words += [f"op={op}"] if op else []
            words += [f"root={root}"] if root >= 0 else []
            for tensor in tensors:
                dtype = str(tensor.dtype).removeprefix("torch.")
                words.append(f"{dtype}[{tensor.numel()}]" if is_sized else dtype)
            self._known[key] = _C.Call(", ".join(words) + module_of_fsdp(), kind, sizes, (), 0)
        return self._known[key]


def _check_reduction(op: str, tensors: Sequence[torch.Tensor]) -> None:
    if not op:
        return
    dtypes = _REDUCED.get(op)
    if dtypes is None:
        raise RuntimeError(
            f"Cannot use ReduceOp.{op.upper()} with Gloo, which reduces CPU tensors: use SUM of "
            "what you have multiplied, or tensors of the device."
        )
    for dtype in {tensor.dtype for tensor in tensors} - dtypes:
        kind = "non-integral " if op in _BITS else ""
        raise RuntimeError(
            f"Cannot use ReduceOp.{op.upper()} with {kind}dtype {dtype} of CPU tensors: convert to "
            f"one of {', '.join(sorted(map(str, dtypes)))}."
        )
