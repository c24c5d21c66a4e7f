# SPDX-License-Identifier: Apache-2.0
"""Max-min fair rates of flows that share links.

No flow can go faster without slowing one that is no faster. Found by progressive filling:
the links that offer each of their flows least fix the rates of those flows; the rest share
what is left. A flow may count several times on a link (`weight`), which stands for as many
flows of the same kind, or for as many crossings.

Reference: Bertsekas and Gallager, Data Networks (1992), section 6.5.2.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_SAME = 1e-9


def max_min_rates(
    capacity: Floats, pair_flow: Ints, pair_link: Ints, weight: Floats, flows: int
) -> Floats:
    """Rates of flows, `[flows]`, in the unit of `capacity`.

    Args:
        capacity: `[links]`.
        pair_flow: `[H]`, a flow,
        pair_link: `[H]`, a link that it crosses,
        weight: `[H]`, and how many times.
        flows: how many; each crosses at least one link.
    """
    links = len(capacity)
    rates = np.zeros(flows)
    left = capacity.astype(np.float64)
    while len(pair_flow):
        demand = np.bincount(pair_link, weights=weight, minlength=links)
        share = np.full(links, np.inf)
        np.divide(left, demand, out=share, where=demand > 0)
        offered = np.full(flows, np.inf)
        np.minimum.at(offered, pair_flow, share[pair_link])
        # A link fixes its flows if none of them is offered less elsewhere.
        least = np.full(links, np.inf)
        np.minimum.at(least, pair_link, offered[pair_flow])
        fixing = least >= share * (1 - _SAME)
        fixed = np.zeros(flows, dtype=bool)
        fixed[pair_flow[fixing[pair_link]]] = True
        rates[fixed] = offered[fixed]
        settled = fixed[pair_flow]
        taken = weight[settled] * rates[pair_flow[settled]]
        left -= np.bincount(pair_link[settled], weights=taken, minlength=links)
        np.maximum(left, 0.0, out=left)
        rest = ~settled
        pair_flow, pair_link, weight = pair_flow[rest], pair_link[rest], weight[rest]
    return rates


def single_link_rates(capacity: Floats, link: Ints, weight: Floats) -> Floats:
    """The same where each flow crosses one link: the links share evenly."""
    demand = np.bincount(link, weights=weight, minlength=len(capacity))
    result: Floats = capacity[link] / demand[link]
    return result
