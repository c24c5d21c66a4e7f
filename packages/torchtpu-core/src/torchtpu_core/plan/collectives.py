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


def put_in_bytes(kind: str, tensors: Sequence[torch.Tensor], out: Sequence[torch.Tensor]) -> int:
    """Bytes that a rank puts in: its shard of a gather, else its whole operand."""
    sizes = [tensor.numel() * tensor.element_size() for tensor in (*tensors, *out)]
    if not sizes:
        return 0
    if kind == "all_gather":
        return min(sizes)
    return max(sizes)


def is_uneven(args: Sequence[Any]) -> bool:
    """Whether an all-to-all's arguments ask for parts of different sizes.

    >>> is_uneven([[2, 2], [2, 2]]), is_uneven([[1, 3], [2, 2]])
    (False, True)
    """
    return any(
        isinstance(sizes, (list, tuple))
        and all(isinstance(n, int) for n in sizes)
        and len(set(sizes)) > 1
        for sizes in args
    )


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
