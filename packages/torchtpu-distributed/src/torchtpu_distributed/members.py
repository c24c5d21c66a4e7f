# SPDX-License-Identifier: Apache-2.0
"""Whether the ranks that make a group mean the same one, and which device mesh it is for.

PyTorch numbers groups in the order in which a process makes them. Ranks whose device meshes
differ in shape hence make groups of one name and other ranks, or groups that nobody else makes.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torch import distributed as dist

#: So many frames lie at most between a device mesh and the creation of its group.
_DEPTH = 16
#: How many ranks a message lists.
_LISTED = 8
#: What `purpose` says of a group of a mesh, for messages that ask whether it is one.
OF_A_MESH = " of a device mesh of shape "


def purpose(ranks: Sequence[int]) -> str:
    """What the caller's group is, for messages: its ranks, and the axis of its device mesh.

    The mesh is read from the frame of PyTorch that makes the groups of one; without such a frame
    the group is not of a mesh, or of a version of PyTorch that makes them elsewhere.

    Args:
        ranks: of the group, by their number in the world.
    """
    shown = ", ".join(map(str, ranks[:_LISTED])) + (", ..." if len(ranks) > _LISTED else "")
    text = f"rank{'s' if len(ranks) > 1 else ''} {shown}"
    frame = sys._getframe(1)
    for _ in range(_DEPTH):
        if frame.f_code.co_name == "_init_process_groups":
            layout, axis = frame.f_locals.get("layout"), frame.f_locals.get("dim_name")
            sizes = getattr(layout, "top_level_sizes", None)
            return text if sizes is None else f"{text}, axis {axis!r}{OF_A_MESH}{tuple(sizes)}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return text


def difference(
    store: dist.Store, rank: int, name: str, ranks: Sequence[int], what: str
) -> str | None:
    """The message about a group whose name another rank has given to other ranks; None if none has.

    Ranks that each make a group of themselves alone, as for experts of their own, do not differ:
    nobody waits for them.

    Args:
        store: of the world.
        rank: this one's number in the world.
        name: PyTorch's name of the group.
        ranks: of the group, by their number in the world.
        what: of `purpose`.
    """
    members = " ".join(map(str, ranks))
    said = store.compare_set(f"members/{name}", "", f"{members}\n{rank}\n{what}")
    theirs, maker, their_what = said.decode().split("\n", 2)
    if theirs == members or (len(ranks) == 1 and " " not in theirs):
        return None
    return (
        f"new_group, group {name!r}, differs between ranks:\n  rank {rank}: {what}\n"
        f"  rank {maker}: {their_what}\nAll ranks must make the same groups, and the same device "
        "meshes, in the same order."
    )
