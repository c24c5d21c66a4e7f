# SPDX-License-Identifier: Apache-2.0
"""Simulated time of a collective that does not run as an XLA program.

Rank i is taken to be device i of the slice. What a TPU would run is priced: a broadcast
as an all-reduce, a gather as an all-gather, a scatter as a reduce-scatter.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from torchtpu_core.errors import TorchTPUError
from torchtpu_core.runtime.current import target
from torchtpu_core.simulator.collective_pricing import collective_s
from torchtpu_core.simulator.cost import Collective, CollectiveKind
from torchtpu_core.units import seconds_to_ps

from torchtpu_distributed.group import Group

log = logging.getLogger("torchtpu")

_KINDS: Mapping[str, CollectiveKind] = {
    "all_reduce": CollectiveKind.ALL_REDUCE,
    "reduce": CollectiveKind.ALL_REDUCE,
    "broadcast": CollectiveKind.ALL_REDUCE,
    "all_gather": CollectiveKind.ALL_GATHER,
    "all_gather_list": CollectiveKind.ALL_GATHER,
    "gather": CollectiveKind.ALL_GATHER,
    "reduce_scatter": CollectiveKind.REDUCE_SCATTER,
    "reduce_scatter_list": CollectiveKind.REDUCE_SCATTER,
    "scatter": CollectiveKind.REDUCE_SCATTER,
    "all_to_all": CollectiveKind.ALL_TO_ALL,
    "send": CollectiveKind.PERMUTE,
}


def device_time_ps(
    kind: str, nbytes: int, group: Group, pairs: tuple[tuple[int, int], ...] = ()
) -> int:
    """Simulated time of one collective; 0 without a chip model, or beyond its slice.

    Args:
        kind: the operation.
        nbytes: bytes that each rank puts in.
        group: the group.
        pairs: for messages, group ranks of sender and receiver.
    """
    slice_ = target().target.slice_
    if slice_ is None or group.world.size > slice_.devices or group.size == 1:
        return 0
    ranks = group.ranks
    moved = Collective(
        kind=_KINDS[kind],
        operand_bytes=nbytes,
        result_bytes=nbytes,
        groups=tuple((ranks[a], ranks[b]) for a, b in pairs) or (ranks,),
    )
    try:
        return seconds_to_ps(collective_s(moved, slice_, slice_.devices))
    except TorchTPUError as error:
        log.warning("<TorchTpu/simulator> a collective could not be priced: %s", error)
        return 0
