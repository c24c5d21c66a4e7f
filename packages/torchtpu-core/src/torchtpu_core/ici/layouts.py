# SPDX-License-Identifier: Apache-2.0
"""The search for a layout of logical axes on physical ones.

Every physical axis is split into factors, one per logical axis; all splits in which the
factors of each logical axis multiply to its size are compared by the simulated time of its
gathers, weighted by traffic. Within a physical axis the logical axis with most traffic has
its chips side by side. The search is exhaustive: gathers along more axes can be faster, so that
no part of a split tells that the whole is bad. Slices are no matter of search: the axes with
least traffic go over the data centre network, whose collectives are the hardest to hide.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.network import Network
from torchtpu_core.units import MIB

#: Physical axes besides those of the torus: the devices of a chip, the slices of a job.
CORES = -2
SLICES = -3
_NAMES = {CORES: "cores of a chip", SLICES: "slices (DCN)"}

GATHERED_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True)
class Digit:
    """A part of a physical axis.

    Attributes:
        dim: the axis of the torus, `CORES` or `SLICES`.
        length: places.
        stride: steps between neighbours.
    """

    dim: int
    length: int
    stride: int = 1

    def __str__(self) -> str:
        where = _NAMES.get(self.dim, f"axis {self.dim}")
        every = f", every {self.stride}th" if self.stride > 1 else ""
        return f"{self.length} of {where}{every}"


Layout = dict[str, tuple[Digit, ...]]


def best_layout(network: Network, sizes: Mapping[str, int], traffic: Mapping[str, float]) -> Layout:
    """The layout of least simulated time.

    Args:
        network: slices and links.
        sizes: devices along each logical axis; they multiply to all devices.
        traffic: weight of each logical axis.
    """
    # Stable: of axes with equal traffic the inner one comes first.
    inner_first = list(sizes)[::-1]
    order = sorted(inner_first, key=lambda name: -traffic[name])
    search = _Search(network, order, [traffic[name] for name in order])
    search.run([sizes[name] for name in order])
    assert search.best is not None  # every number of devices has its prime factors somewhere
    return {name: search.best[order.index(name)] for name in sizes}


class _Search:
    """Depth first, one physical axis at a time."""

    def __init__(self, network: Network, order: Sequence[str], weights: Sequence[float]) -> None:
        slice_ = network.slice_
        torus = [(axis, length) for axis, length in enumerate(slice_.torus.shape)]
        self.dims = [(SLICES, network.slices), (CORES, slice_.devices_per_chip), *torus]
        self.network, self.order, self.weights = network, order, weights
        self.best: list[tuple[Digit, ...]] | None = None
        self.best_cost = math.inf
        self.cost = functools.cache(self._cost)

    def run(self, sizes: Sequence[int]) -> None:
        """Finds the best layout for sizes in the search's order."""
        self._descend(0, list(sizes), [()] * len(sizes))

    def _descend(self, depth: int, left: list[int], digits: list[tuple[Digit, ...]]) -> None:
        if depth == len(self.dims):
            cost = sum(w * self.cost(d) for w, d in zip(self.weights, digits, strict=True))
            if cost < self.best_cost:
                self.best, self.best_cost = digits, cost
            return
        dim, length = self.dims[depth]
        splits = [_to_least(length, left)] if dim == SLICES else _splits(length, left)
        for factors in splits:
            rest = [n // f for n, f in zip(left, factors, strict=True)]
            stride, grown = 1, []
            for have, factor in zip(digits, factors, strict=True):
                grown.append((*have, Digit(dim, factor, stride)) if factor > 1 else have)
                stride *= factor
            self._descend(depth + 1, rest, grown)

    def _cost(self, digits: tuple[Digit, ...]) -> float:
        """Seconds of a gather along an axis of these digits."""
        from torchtpu_core.ici.closed_form import ClosedForm
        from torchtpu_core.ici.mesh import span_of_digits

        span = span_of_digits(self.network, digits)
        if span.devices == 1:
            return 0.0
        network = self.network
        if network.die is None and span.cores > 1:
            network = replace(network, die=network.link)
        time = ClosedForm(network).collective_time(
            CollectiveKind.REDUCE_SCATTER, GATHERED_BYTES, span
        )
        return time.time_s


def _splits(length: int, left: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Factors of `length`, one per logical axis, each dividing what that axis has left."""
    if len(left) == 1:
        if left[0] % length == 0:
            yield (length,)
        return
    for factor in range(math.gcd(length, left[0]), 0, -1):
        if length % factor == 0 and left[0] % factor == 0:
            for rest in _splits(length // factor, left[1:]):
                yield (factor, *rest)


def _to_least(length: int, left: Sequence[int]) -> tuple[int, ...]:
    """Factors of `length` that go to the last logical axes, as far as they divide them."""
    factors = []
    for size in reversed(left):
        factors.append(math.gcd(length, size))
        length //= factors[-1]
    return tuple(reversed(factors))
