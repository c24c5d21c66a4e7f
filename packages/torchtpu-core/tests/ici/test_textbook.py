# SPDX-License-Identifier: Apache-2.0
"""Exercises of How to Scale Your Model, chapter 3, and published measurements.

The book gives bandwidth as ``V / W``; the exact ring forms have ``(N-1) / N`` of it, which is
stated where it matters. Its links run at 4.5e10 bytes/s each way on v4 and v5e.
"""

from __future__ import annotations

import pytest
from torchtpu_core.ici import CollectiveKind, Network, network_model, parse_slice, span_of
from torchtpu_core.ici.mesh import topology_aware_mesh

HOP_S = 1e-6


def _time_s(target: str, sizes: dict[str, int], axes: tuple[str, ...], kind, size) -> float:
    network = Network.of(parse_slice(target))
    mesh = topology_aware_mesh(network, sizes)
    return network_model(network).collective_time(kind, size, mesh.span(*axes)).time_s


CUBE = {"X": 4, "Y": 4, "Z": 4}
ARRAY_BYTES = 2 * 1024 * 4096  # bf16[B=1024, D=4096]


def test_all_gather_over_one_axis_of_a_v4_cube() -> None:
    # AllGather_X of [B_X, D_Y]: 2 BD / (4 x 9e10) = 23 us in the book, 3/4 of it exactly.
    book_s = ARRAY_BYTES / 4 / 9e10
    time_s = _time_s("v4:4x4x4", CUBE, ("X",), CollectiveKind.ALL_GATHER, ARRAY_BYTES / 16)
    assert book_s == pytest.approx(23e-6, rel=0.02)
    assert time_s == pytest.approx(3 / 4 * book_s + 2 * HOP_S)


def test_all_gather_over_two_axes_of_a_v4_cube() -> None:
    # AllGather_XY of [B_X, D_Y]: 2 BD / 1.8e11 = 46 us in the book, 15/16 of it exactly.
    book_s = ARRAY_BYTES / 1.8e11
    time_s = _time_s("v4:4x4x4", CUBE, ("X", "Y"), CollectiveKind.ALL_GATHER, ARRAY_BYTES / 16)
    assert book_s == pytest.approx(46e-6, rel=0.02)
    assert time_s == pytest.approx(15 / 16 * book_s + 4 * HOP_S)


def test_all_reduce_over_one_axis_of_a_v4_cube() -> None:
    # AllReduce_Z of [B_X, D_Y]: 2 x 2 BD / (16 x 9e10) = 11.6 us in the book.
    book_s = 2 * ARRAY_BYTES / 16 / 9e10
    time_s = _time_s("v4:4x4x4", CUBE, ("Z",), CollectiveKind.ALL_REDUCE, ARRAY_BYTES / 16)
    assert book_s == pytest.approx(11.6e-6, rel=0.01)
    assert time_s == pytest.approx(3 / 4 * book_s + 4 * HOP_S)


def test_tiny_all_gather_over_a_ring_of_four_takes_its_hops() -> None:
    # The book: two hops at about a microsecond, whatever the bandwidth.
    time_s = _time_s("v4:4x4x4", CUBE, ("X",), CollectiveKind.ALL_GATHER, 128)
    assert time_s == pytest.approx(2 * HOP_S, rel=0.01)


def test_all_to_all_on_a_ring_takes_a_quarter_of_an_all_gather() -> None:
    # Bidirectional ring, bandwidth part: V / (4 W) beside V / W.
    network = Network.of(parse_slice("v5e:16x16"))
    span, shard = span_of(range(16), network), 2**24
    model = network_model(network)
    gather = model.collective_time(CollectiveKind.ALL_GATHER, shard, span)
    exchange = model.collective_time(CollectiveKind.ALL_TO_ALL, shard, span)
    assert exchange.busiest_link_bytes / gather.busiest_link_bytes == pytest.approx(1 / 4 * 16 / 15)


def test_all_gather_over_a_line_of_v5e_takes_560_us() -> None:
    # Pop quiz 2: bf16[2048, 8192] over Y=4 without wrap-around on 8x4 chips; measured 680 us.
    network = Network.of(parse_slice("v5e:4x8"))
    span = span_of(range(4), network)
    shard_bytes = 2048 * 8192 * 2 / 4
    time = network_model(network).collective_time(CollectiveKind.ALL_GATHER, shard_bytes, span)
    assert time.time_s == pytest.approx(560e-6, rel=0.02)


@pytest.mark.parametrize(
    ("shard_bytes", "published_gb_per_s"), [(2**24, 174.765465), (2**26, 178.7714158)]
)
def test_all_gather_of_tpu7x_runs_at_the_published_rate(shard_bytes, published_gb_per_s) -> None:
    # tpu-recipes: four chips, their two cores in groups of their own; rate is 6 shards over time.
    network = Network.of(parse_slice("tpu7x:2x2x1"))
    span = span_of((0, 2, 4, 6), network)
    time = network_model(network).collective_time(CollectiveKind.ALL_GATHER, shard_bytes, span)
    assert 6 * shard_bytes / time.time_s / 1e9 == pytest.approx(published_gb_per_s, rel=0.03)
