# SPDX-License-Identifier: Apache-2.0
"""The collectives that the network models know, and the unit of a chip that runs them."""

from __future__ import annotations

import enum


class CollectiveKind(enum.StrEnum):
    """A collective, by its name in StableHLO where it has one."""

    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_TO_ALL = "all_to_all"
    PERMUTE = "collective_permute"
    BROADCAST = "collective_broadcast"
    RAGGED_ALL_TO_ALL = "ragged_all_to_all"
    SEND = "send"


class Engine(enum.StrEnum):
    """The unit of a chip that drives a collective, and that it keeps busy."""

    TENSOR_CORE = "TensorCore"
    SPARSE_CORE = "SparseCore"
    HOST = "host"
