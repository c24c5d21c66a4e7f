# SPDX-License-Identifier: Apache-2.0
"""All-to-all of uneven parts: against the even one, against bounds, and between the models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici import Network, network_model, parse_slice, span_of
from torchtpu_core.ici.fabric import neighbour_table
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.link_level import LinkLevel

MIB = 2**20
# Slice, slices, group: rings, lines, tori, interleaving groups, cores, twisted, no grid.
CASES = [
    ("v5e:4x4", 1, range(16)),
    ("v5e:16x16", 1, range(16)),
    ("v5e:16x16", 1, range(0, 256, 32)),
    ("v5p:4x4x4", 1, range(64)),
    ("v5p:4x4x4", 1, range(0, 64, 2)),
    ("v5p:4x4x8_twisted", 1, range(128)),
    ("v5e:4x4", 1, (0, 1, 5)),
    ("tpu7x:2x2x1", 1, range(8)),
    ("tpu7x:4x4x4", 1, range(0, 128, 2)),
    ("v5e:4x4", 2, range(32)),
    ("v5e:4x4", 2, (3, 19)),
]
# Every chip sees the same there, and every link of an axis is alike.
SYMMETRIC = [("v5e:16x16", range(16)), ("v5p:4x4x4", range(16)), ("v5p:4x4x8", range(0, 128, 8))]
# A link-level example of 128 chips takes 0.1 s.
FEW = 8


def _few(group, link_level: bool) -> bool:
    return 3 < len(group) < (33 if link_level else 129)


models = pytest.mark.parametrize("link_level", [False, True])
cases = pytest.mark.parametrize(("name", "slices", "group"), CASES)


def _network(name: str, slices: int = 1, *, hops: bool = True) -> Network:
    network = Network.of(parse_slice(name), slices)
    if hops:
        return network
    return replace(network, link=replace(network.link, hop_latency_s=0.0))


def _even(network: Network, group, part: float, *, link_level: bool):
    model, span = network_model(network, link_level=link_level), span_of(group, network)
    return model.collective_time(CollectiveKind.ALL_TO_ALL, part * len(group), span)


def _random(group, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).exponential(MIB, size=(len(group),) * 2)


@models
@cases
def test_equal_parts_are_an_even_all_to_all(name, slices, group, link_level) -> None:
    network = _network(name, slices)
    uneven = network_model(network, link_level=link_level).uneven_time(
        group, np.full((len(group),) * 2, MIB)
    )
    even = _even(network, group, MIB, link_level=link_level)
    assert uneven.time_ps == pytest.approx(even.time_ps, abs=10)
    assert uneven.axis_bytes == even.axis_bytes
    assert uneven.dcn_bytes == even.dcn_bytes
    assert uneven.busiest_link == even.busiest_link


@models
@pytest.mark.parametrize(("name", "group"), SYMMETRIC)
@settings(max_examples=FEW)
@given(st.lists(st.floats(0.0, 100.0), min_size=64, max_size=64), st.booleans())
def test_unequal_targets_or_sources_are_never_faster_than_even(
    name, group, link_level, row, turned
) -> None:
    # Each link of an axis carries as much on average as it would of even parts, so one of them
    # carries no less.
    network, count = _network(name, hops=False), len(group)
    row[0] += 1.0
    sizes = np.tile(MIB * np.array(row[:count]), (count, 1))
    model = network_model(network, link_level=link_level)
    found = model.uneven_time(group, sizes.T if turned else sizes)
    even = _even(network, group, sizes.mean(), link_level=link_level)
    assert found.time_ps >= even.time_ps * (1 - 1e-9) - 10


@models
def test_parts_for_neighbours_only_are_faster_than_even_ones(link_level) -> None:
    # The total alone bounds nothing: near parts cross fewer links.
    network, sizes = _network("v5e:16x16"), 16 * MIB * np.roll(np.eye(16), 1, axis=1)
    found = network_model(network, link_level=link_level).uneven_time(range(16), sizes)
    assert found.busiest_link_bytes == 16 * MIB
    assert found.time_ps < _even(network, range(16), MIB, link_level=link_level).time_ps / 1.9


@pytest.mark.parametrize(
    ("name", "group", "link_level"),
    [(n, g, linked) for n, s, g in CASES for linked in (False, True) if s == 1 and _few(g, linked)],
)
@settings(max_examples=FEW)
@given(st.integers(0, 2**16))
def test_time_is_bound_by_sender_receiver_and_bisection(name, group, link_level, seed) -> None:
    network, sizes = _network(name), _random(group, seed)
    found = network_model(network, link_level=link_level).uneven_time(group, sizes)
    slice_ = network.slice_
    chips = np.array(group) // slice_.devices_per_chip
    away = np.where(chips[:, None] == chips[None, :], 0.0, sizes)
    rate = network.link.bytes_per_s
    links = 2 * len(slice_.torus.shape)
    assert found.time_s >= max(away.sum(axis=1).max(), away.sum(axis=0).max()) / (links * rate)
    # A plane across the last axis, and the links through it.
    middle = np.median(chips)
    upper, table = chips >= middle, neighbour_table(slice_.torus)
    through = (
        (table[int(np.ceil(middle)) :] < middle) & (table[int(np.ceil(middle)) :] >= 0)
    ).sum()
    assert found.time_s >= sizes[upper][:, ~upper].sum() / (through * rate)
    largest = _even(network, group, sizes.max(), link_level=link_level)
    assert found.time_ps <= largest.time_ps + 10


@pytest.mark.parametrize(
    ("name", "slices", "group"), [c for c in CASES if c[2] != (0, 1, 5) and len(c[2]) < 33]
)
@settings(max_examples=FEW)
@given(st.integers(0, 2**16))
def test_closed_form_is_below_the_link_level_by_little(name, slices, group, seed) -> None:
    network, sizes = _network(name, slices), _random(group, seed)
    closed, linked = (
        network_model(network, link_level=one).uneven_time(group, sizes) for one in (False, True)
    )
    assert closed.axis_bytes == linked.axis_bytes
    # Flows that share several links may leave one idle, which the closed form does not see.
    hops_ps = 2 * closed.latency_ps
    assert closed.time_ps - hops_ps <= linked.time_ps <= 1.05 * closed.time_ps + hops_ps


@settings(max_examples=FEW)
@given(st.integers(0, 2**16))
def test_links_carry_every_part_over_all_hops_of_its_way(seed) -> None:
    network, group = _network("v5p:4x4x4"), range(64)
    torus, sizes = network.slice_.torus, _random(group, seed)
    hops = np.array([[torus.hop_distance(a, b) for b in group] for a in group])
    load = LinkLevel(network).uneven_loads(group, sizes)
    assert load.shape == (64, 6)
    assert load.sum() == pytest.approx((sizes * hops).sum())


def test_parts_of_one_sender_take_all_of_its_links() -> None:
    # 63 parts leave over six links; three of them end on a neighbour of an axis, and so on.
    network, sizes = _network("v5p:4x4x4", hops=False), np.zeros((64, 64))
    sizes[5] = MIB
    found = network_model(network).uneven_time(range(64), sizes)
    # Axis by axis: what goes along the first axis is half of 48 parts each way.
    assert found.axis_bytes[0] == 24 * MIB
    assert found.time_s == pytest.approx(24 * MIB / network.link.bytes_per_s)


def test_parts_for_another_slice_go_through_the_port_of_the_target_position() -> None:
    network, sizes = _network("v5e:4x4", 2), np.zeros((32, 32))
    sizes[0, 17] = sizes[2, 17] = MIB
    found = network_model(network).uneven_time(range(32), sizes)
    # Chips 0 and 2 send to chip 1, each over its own link, and that to its twin.
    assert (found.axis_bytes, found.dcn_bytes) == ({0: MIB}, 2 * MIB)
    link, dcn = network.link, network.dcn
    inner_s = MIB / link.bytes_per_s + link.hop_latency_s
    outer_s = 2 * MIB / dcn.bytes_per_s + dcn.hop_latency_s
    assert found.time_s == pytest.approx(inner_s + outer_s)


@models
@pytest.mark.parametrize("sizes", [np.ones((3, 3)), -np.ones((4, 4)), np.ones(4)])
def test_sizes_that_do_not_fit_the_group_raise(sizes, link_level) -> None:
    model = network_model(_network("v5e:4x4"), link_level=link_level)
    with pytest.raises(TorchTPUError, match="4 x 4 sizes of at least 0"):
        model.uneven_time(range(4), sizes)


def test_too_many_parts_raise() -> None:
    closed = network_model(_network("v5p:16x16x20"))
    with pytest.raises(TorchTPUError, match="at most 4096 devices"):
        closed.uneven_time(range(5120), np.zeros((1, 1)))
    with pytest.raises(TorchTPUError, match="Use the closed form"):
        network_model(_network("v5p:8x8x16"), link_level=True).uneven_time(
            range(1024), np.ones((1024, 1024))
        )


@pytest.mark.parametrize(
    ("name", "group"), [("v5e:4x4", (0, 1, 5)), ("v5e:4x4", (3, 7, 8)), ("v5e:4x4", (0, 5, 10, 15))]
)
def test_even_all_to_all_of_chips_without_a_grid_crosses_links_that_exist(name, group) -> None:
    network = _network(name)
    torus, model = network.slice_.torus, LinkLevel(network)
    load = model.link_loads(CollectiveKind.ALL_TO_ALL, len(group) * MIB, span_of(group, network))
    assert load.sum() == MIB * sum(torus.hop_distance(a, b) for a in group for b in group)
    assert _even(network, group, MIB, link_level=True).busiest_link_bytes == load.max()
