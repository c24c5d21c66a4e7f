# SPDX-License-Identifier: Apache-2.0
"""The groups of devices of an HLO collective, in any of the three ways XLA writes them."""

from __future__ import annotations

import math
import re

import numpy as np

_LISTED = re.compile(r"replica_groups=\{(\{[\d,{}\s]*\})\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_PAIRS = re.compile(r"source_target_pairs=\{(\{[\d,{}\s]*\})\}")
_MEMBERS = re.compile(r"\{([\d,\s]*)\}")


def groups_of(text: str, devices: int) -> list[tuple[int, ...]]:
    """The groups of a collective, or the pairs of a permutation; all devices if none is named.

    >>> groups_of("replica_groups=[2,4]<=[4,2]T(1,0)", 8)
    [(0, 2, 4, 6), (1, 3, 5, 7)]
    >>> groups_of("replica_groups={{0,1},{2,3}}, x", 4)
    [(0, 1), (2, 3)]
    """
    iota = _IOTA.search(text)
    if iota:
        shape, base = (tuple(map(int, iota[i].split(","))) for i in (1, 2))
        order = np.arange(math.prod(base)).reshape(base)
        if iota[3]:
            order = order.transpose(tuple(map(int, iota[3].split(","))))
        return [tuple(map(int, row)) for row in order.reshape(shape).reshape(shape[0], -1)]
    listed = _LISTED.search(text) or _PAIRS.search(text)
    groups = [
        tuple(int(member) for member in inner.split(",") if member.strip())
        for inner in (_MEMBERS.findall(listed[1]) if listed else [])
    ]
    return [group for group in groups if group] or [tuple(range(devices))]
