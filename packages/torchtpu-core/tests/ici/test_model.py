# SPDX-License-Identifier: Apache-2.0
"""Network models behind one interface: closed forms against counted rounds and bounds."""

from __future__ import annotations

import doctest

import pytest
from torchtpu_core.errors import TorchTPUError, UnpublishedFigureError
from torchtpu_core.ici import (
    CollectiveKind,
    Engine,
    Message,
    Network,
    closed_form,
    collectives,
    colours,
    model,
    network_model,
    parse_slice,
    ragged_messages,
    span_of,
    whole,
)

MIB = 2**20
RATE = {"v5e": 45e9, "v5p": 90e9, "v6e": 90e9, "tpu7x": 90e9}


def _time_s(name: str, kind: CollectiveKind, size: float, group=None) -> float:
    slice_ = parse_slice(name)
    span = span_of(group, slice_) if group is not None else whole(slice_)
    return network_model(slice_).collective_time(kind, size, span).time_s


@pytest.mark.parametrize("module", [closed_form, colours, model])
def test_model_doctests_pass(module) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("name", ["v5e:2x2", "v5e:4x4", "v5p:4x4x4", "v6e:16x16", "v6e:8x8"])
def test_all_reduce_on_axes_that_are_alike_reaches_the_bound(name) -> None:
    slice_ = parse_slice(name)
    link = Network.of(slice_).link
    bound_s = collectives.all_reduce_s(512 * MIB, slice_.torus, link)
    assert _time_s(name, CollectiveKind.ALL_REDUCE, 512 * MIB) == pytest.approx(bound_s, rel=5e-3)


def test_all_gather_on_a_ring_of_16_is_its_rounds() -> None:
    # Eight rounds both ways; the last is half a shard each way round.
    expected_s = 7 * (MIB / 45e9 + 1e-6) + (MIB / 2 / 45e9 + 1e-6)
    assert _time_s("v5e:16x16", CollectiveKind.ALL_GATHER, MIB, range(16)) == pytest.approx(
        expected_s
    )


def test_groups_with_gaps_share_their_links() -> None:
    # Every fourth chip of a ring of 16: four groups on each link, four hops a round.
    expected_s = 4e-6 + MIB / (45e9 / 4) + 4e-6 + MIB / 2 / (45e9 / 4)
    assert _time_s("v5e:16x16", CollectiveKind.ALL_GATHER, MIB, range(0, 16, 4)) == pytest.approx(
        expected_s
    )


def test_tiny_all_reduce_on_a_ring_sends_whole_arrays() -> None:
    time = network_model(parse_slice("v5e:16x16")).collective_time(
        CollectiveKind.ALL_REDUCE, 1024, span_of(range(16), parse_slice("v5e:16x16"))
    )
    assert time.schedule == "SinglePhaseRingSumEmitter"
    assert time.time_s == pytest.approx(8e-6 + 15 * 1024 / 2 / 45e9)


@pytest.mark.parametrize(
    ("name", "size", "schedule"),
    [
        # What libtpu's compiler chose (tests name the probed rows only).
        ("v5p:4x4x4", 4 * MIB, "RotatedPincer UniDirectionNDRing colors:6"),
        ("v5p:4x4x8", 4 * MIB, "RotatedPincer StrategyND colors:3"),
        ("v5p:4x4x8", MIB, "RotatedPincerShort StrategyND colors:2"),
        ("v5e:16x16", 4 * MIB, "RotatedPincer StrategyND colors:2"),
        ("v5e:16x16", MIB, "RotatedPincerShort StrategyND colors:2"),
    ],
)
def test_all_reduce_follows_the_choice_of_the_compiler(name, size, schedule) -> None:
    slice_ = parse_slice(name)
    time = network_model(slice_).collective_time(CollectiveKind.ALL_REDUCE, size, whole(slice_))
    assert (time.schedule, time.engine) == (schedule, Engine.TENSOR_CORE)


def test_collectives_of_tpu7x_run_on_its_sparse_cores_unless_told_otherwise() -> None:
    slice_ = parse_slice("tpu7x:4x4x4")
    model, span = network_model(slice_), whole(slice_)
    default = model.collective_time(CollectiveKind.ALL_REDUCE, MIB, span)
    told = model.collective_time(CollectiveKind.ALL_REDUCE, MIB, span, offload=False)
    assert (default.engine, told.engine) == (Engine.SPARSE_CORE, Engine.TENSOR_CORE)


def test_all_reduce_between_slices_exchanges_one_chip_s_part() -> None:
    one, four = (Network.of(parse_slice("v5p:4x4x4"), slices) for slices in (1, 4))
    size = 640 * MIB
    times = [
        network_model(n).collective_time(CollectiveKind.ALL_REDUCE, size, whole(n))
        for n in (one, four)
    ]
    sent = 2 * (size / 64) * 3 / 4
    assert times[1].dcn_bytes == sent
    extra_s = times[1].time_s - times[0].time_s
    assert extra_s == pytest.approx(sent / four.dcn.bytes_per_s + 2 * four.dcn.hop_latency_s)


def test_several_slices_of_a_chip_without_published_network_raise() -> None:
    with pytest.raises(UnpublishedFigureError, match="dcn_bytes_per_s_per_chip of chip 'v3'"):
        Network.of(parse_slice("v3:4x4"), 2)


def test_messages_that_share_a_link_wait_for_its_bytes() -> None:
    # A line of four: 0 -> 2 and 1 -> 3 share the link between 1 and 2.
    model = network_model(parse_slice("v5e:4x4"))
    shared = model.messages_time([Message(0, 2, MIB), Message(1, 3, MIB)])
    alone = model.messages_time([Message(0, 2, MIB)])
    assert shared.busiest_link_bytes == 2 * MIB
    assert alone.time_s == pytest.approx(MIB / 45e9 + 2e-6)
    assert shared.time_s == pytest.approx(2 * MIB / 45e9 + 2e-6)


def test_messages_to_another_slice_go_through_the_ports() -> None:
    network = Network.of(parse_slice("v5e:4x4"), 2)
    time = network_model(network).messages_time([Message(0, 16, MIB)])
    assert (time.dcn_bytes, time.busiest_link) == (MIB, "dcn")
    assert time.time_s == pytest.approx(MIB / network.dcn.bytes_per_s + 20e-6)


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("kind", [CollectiveKind.PERMUTE, CollectiveKind.RAGGED_ALL_TO_ALL])
def test_collective_time_of_messages_says_what_to_call(kind, linked) -> None:
    slice_ = parse_slice("v5e:4x4")
    with pytest.raises(TorchTPUError, match="messages_time"):
        network_model(slice_, link_level=linked).collective_time(kind, MIB, whole(slice_))


def test_ragged_all_to_all_of_equal_sizes_takes_about_an_all_to_all() -> None:
    slice_ = parse_slice("v5e:4x4")
    priced = network_model(slice_)
    equal = ragged_messages(range(16), [[MIB] * 16] * 16)
    ragged = priced.messages_time(equal, CollectiveKind.RAGGED_ALL_TO_ALL)
    regular = priced.collective_time(CollectiveKind.ALL_TO_ALL, 16 * MIB, whole(slice_))
    assert ragged.busiest_link_bytes == regular.busiest_link_bytes
    assert ragged.time_ps == pytest.approx(regular.time_ps, rel=0.02)


@pytest.mark.parametrize(
    ("kind", "name", "size", "phases"),
    [
        (CollectiveKind.ALL_GATHER, "v5e:16x16", 4 * MIB, 2),
        (CollectiveKind.ALL_REDUCE, "v5e:16x16", 4 * MIB, 4),
        (CollectiveKind.REDUCE_SCATTER, "v5p:4x4x4", 4 * MIB, 3),
        (CollectiveKind.ALL_TO_ALL, "v5p:4x4x4", 4 * MIB, 1),
    ],
)
def test_rings_on_every_axis_begin_one_after_another(kind, name, size, phases) -> None:
    network = Network.of(parse_slice(name))
    for link_level in (False, True):
        priced = network_model(network, link_level=link_level)
        assert priced.collective_time(kind, size, whole(network)).phases == phases
