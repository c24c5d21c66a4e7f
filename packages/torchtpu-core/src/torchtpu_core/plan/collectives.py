# SPDX-License-Identifier: Apache-2.0
"""The collectives of torch.distributed, as operators of a recording.

Both spellings are read: `c10d` operators with a process group, and the functional ones
with a group's name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import distributed as dist

from torchtpu_core.errors import PlanError

#: The end of a message; its other end is a permute.
RECEIVE = "receive"
# Operator without namespace and overload -> kind as `ici.kinds` names it.
KINDS = {
    "_allgather_base_": "all_gather",
    "allgather_": "all_gather",
    "allgather_into_tensor_coalesced_": "all_gather",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "_reduce_scatter_base_": "reduce_scatter",
    "reduce_scatter_": "reduce_scatter",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "reduce_scatter_tensor_coalesced_": "reduce_scatter",
    "allreduce_": "all_reduce",
    "allreduce_coalesced_": "all_reduce",
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "alltoall_base_": "all_to_all",
    "alltoall_": "all_to_all",
    "all_to_all_single": "all_to_all",
    "broadcast_": "collective_broadcast",
    "broadcast": "collective_broadcast",
    "send": "collective_permute",
    "recv_": RECEIVE,
}
#: Operators whose first argument is where results go, and whose second is the operand.
_RESULT_FIRST = frozenset(
    {"_allgather_base_", "allgather_", "allgather_into_tensor_coalesced_"}
    | {"_reduce_scatter_base_", "reduce_scatter_", "reduce_scatter_tensor_coalesced_"}
    | {"alltoall_base_", "alltoall_"}
)
#: Operators with one peer, their third argument.
MESSAGES = ("send", "recv_")
NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd")


def group_of(flat: Sequence[Any]) -> tuple[int, ...]:
    """Ranks of the group among an operator's arguments; all ranks if none is found."""
    for argument in flat:
        if isinstance(argument, torch.ScriptObject):
            try:
                group = dist.ProcessGroup.unbox(argument)
            except RuntimeError:
                continue
            return tuple(dist.get_process_group_ranks(group))
    for argument in reversed(flat):
        if isinstance(argument, str):
            try:
                group = dist.distributed_c10d._resolve_process_group(argument)
            except (RuntimeError, ValueError, LookupError):
                continue
            return tuple(dist.get_process_group_ranks(group))
    return tuple(range(dist.get_world_size())) if dist.is_initialized() else (0,)


def put_in_bytes(name: str, args: Sequence[Any]) -> int:
    """Bytes that a rank puts in: its shard of a gather, else its whole operand or operands."""
    return sum(_sizes(args[1 if name in _RESULT_FIRST else 0]))


def parts_of(
    name: str, args: Sequence[Any], result: Any, ranks: int, line: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Bytes that an all-to-all sends to each rank, and that it receives from each.

    Args:
        name: the operator.
        args: its arguments.
        result: what it returns.
        ranks: of its group.
        line: the user's, for errors.

    Raises:
        PlanError: sizes that do not sum up to the operand's, or the result's.
    """
    if name == "alltoall_":
        return _sizes(args[1]), _sizes(args[0])
    if name in _RESULT_FIRST:
        target, source, _, target_rows, source_rows = args[:5]
    else:
        source, target_rows, source_rows = args[:3]
        target = result
    return _split(source, source_rows, ranks, line), _split(target, target_rows, ranks, line)


def _split(tensor: torch.Tensor, rows: Sequence[int], ranks: int, line: str) -> tuple[int, ...]:
    """Bytes of each part of a tensor that is split along its first dimension."""
    whole = tensor.numel() * tensor.element_size()
    if not rows:
        return (whole // ranks,) * ranks
    if sum(rows) != tensor.shape[0] or len(rows) != ranks:
        raise PlanError(
            f"the all-to-all of {ranks} ranks at {line} splits {tensor.shape[0]} rows into "
            f"{len(rows)} parts of {sum(rows)} rows: {list(rows)[:16]}. If these sizes are read "
            "from the device, a plan does not have them: it knows those that torch.histc or "
            "torch.bincount count, taken to be even, where they divide the rows."
        )
    return tuple(whole * count // max(tensor.shape[0], 1) for count in rows)


def _sizes(tree: Any) -> tuple[int, ...]:
    """Bytes of the tensors of an argument: one, a list, or a list of lists."""
    if isinstance(tree, torch.Tensor):
        return (tree.numel() * tree.element_size(),)
    return tuple(size for item in tree for size in _sizes(item))


def all_groups(group: Sequence[int], world: int) -> list[list[int]]:
    """The groups of all ranks that are alike to one.

    Raises:
        PlanError: shifts of the group do not cover the ranks.

    >>> all_groups((0, 2), 4)
    [[0, 2], [1, 3]]
    """
    first = min(group)
    offsets = sorted(rank - first for rank in group)
    free = dict.fromkeys(range(world))
    found = []
    for rank in range(world):
        if rank not in free:
            continue
        members = [rank + offset for offset in offsets]
        if any(member not in free for member in members):
            raise PlanError(
                f"the ranks {list(group)[:8]} of a collective are no part of a mesh of {world} "
                "ranks, so that one program cannot stand for all. Plan without --compiler xla-tpu."
            )
        for member in members:
            del free[member]
        found.append(members)
    return found
