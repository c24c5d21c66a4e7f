# SPDX-License-Identifier: Apache-2.0
"""What users are told when the two ends of a message differ.

Compiled code compares the ends (`csrc/letters.h`). Another dtype or number of elements would be
delivered as garbage or in part, and ends the job. Another shape of as many elements is delivered
as gloo and NCCL do, which some programs mean, so that it is a warning at the end that comes last.
Dimensions of size 1 do not count: with or without them every element has its place.
"""

from __future__ import annotations

import re
import warnings

from torchtpu_distributed.group import Group
from torchtpu_distributed.pending import Pending


def refuse(group: Group, pending: Pending, said: str) -> None:
    """Fail because the other end of a message has said something else than this one.

    Args:
        group: the group of the message.
        pending: this end.
        said: the other rank's number in the group, what this end is and what the other one
            is, and its line.
    """
    group.fail(
        f"The ends of a message of group {group.name!r} differ; {_ends(group, pending, said)}\n"
        "A tensor that is sent and the one that receives it must have "
        "the same dtype and number of elements, and messages between two ranks with one tag "
        "must be received in the order in which they are sent."
    )


def warn_of_shapes(group: Group, pending: Pending, said: str) -> None:
    """Say that the ends of a message have other shapes of as many elements; see `refuse`."""
    _, mine, other = said.split("\n")[:3]
    if _dims(mine) == _dims(other):
        return
    warnings.warn(
        f"The ends of a message of group {group.name!r} have other shapes; "
        f"{_ends(group, pending, said)}\nThe elements arrive in the order in which they are sent. "
        "If that is meant, give both ends one shape with view().",
        RuntimeWarning,
        stacklevel=4,  # of torch.distributed; the text has the script's lines
    )


def _dims(what: str) -> list[str]:
    """The sizes but 1 of what an end says it is: `"8 elements of torch.float32, shape [8, 1]"`."""
    return [size for size in re.findall(r"\d+", what.partition(" shape ")[2]) if size != "1"]


def _ends(group: Group, pending: Pending, said: str) -> str:
    peer, mine, other, line = (*said.split("\n", 3), "")[:4]
    sends = pending.kind.startswith("send")
    ends = [
        (group.world.rank, "sends" if sends else "receives", mine, pending.line),
        (group.ranks[int(peer)], "receives" if sends else "sends", other, line),
    ]
    listed = "".join(
        f"\n  rank {rank} {does} {what}{f' at {where}' if where else ''}"
        for rank, does, what, where in sorted(ends)
    )
    return f"rank {group.world.rank} noticed it:{listed}"
