# SPDX-License-Identifier: Apache-2.0
"""Slices: names, wrap rules, hosts and the order of devices."""

from __future__ import annotations

import doctest
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchtpu_core.errors import DeviceIndexError, TargetError
from torchtpu_core.hardware import chips
from torchtpu_core.ici import groups, make_slice, parse_slice, slices, torus

SMALL = [
    make_slice(chip, shape)
    for chip in chips()
    if chip.devices_per_chip and chip.ici_axes
    for shape in slices.possible_shapes(chip)
    if math.prod(shape) <= 128
]


@pytest.mark.parametrize("module", [slices, groups, torus])
def test_ici_doctests_pass(module) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("name", "wrap"),
    [
        ("v5e:8x8", (False, False)),
        ("v5e:8x16", (False, True)),
        ("v6e:16x16", (True, True)),
        ("v5p:2x2x4", (False, False, False)),
        ("v5p:2x4x4", (False, False, False)),
        ("v5p:4x4x4", (True, True, True)),
        ("v4:4x4x8", (True, True, True)),
        ("tpu7x:2x2x1", (False, False, False)),
        ("v3:16x32", (False, True)),
    ],
)
def test_wrap_follows_the_rule_of_the_generation(name, wrap) -> None:
    assert parse_slice(name).torus.wrap == wrap


@pytest.mark.parametrize(
    ("name", "hosts", "chips_per_host"),
    [
        # The table of VMs on the maker's v6e page.
        ("v6e:1x1", 1, 1),
        ("v6e:2x2", 1, 4),
        ("v6e:2x4", 1, 8),
        ("v6e:4x4", 4, 4),
        ("v6e:16x16", 64, 4),
        ("v5p:2x2x1", 1, 4),
        ("v5p:2x2x2", 2, 4),
        ("v5p:4x4x4", 16, 4),
        ("tpu7x:1x1x1", 1, 1),
    ],
)
def test_hosts_follow_the_vm_of_the_generation(name, hosts, chips_per_host) -> None:
    slice_ = parse_slice(name)
    assert (slice_.hosts, slice_.chips_per_host) == (hosts, chips_per_host)


@pytest.mark.parametrize("shape", [(8, 12, 16), (4, 8, 64), (8, 16, 48)])
def test_shapes_of_published_v5p_runs_are_possible(shape) -> None:
    assert shape in slices.possible_shapes(chips().get("v5p"))


@pytest.mark.parametrize("slice_", SMALL, ids=lambda slice_: slice_.name)
def test_hosts_share_out_all_devices(slice_) -> None:
    local = [slice_.local_devices(host) for host in range(slice_.hosts)]
    assert sorted(device for devices in local for device in devices) == list(range(slice_.devices))
    assert {len(devices) for devices in local} == {slice_.devices_per_host}
    assert all(slice_.host_of(d) == host for host, devices in enumerate(local) for d in devices)


@pytest.mark.parametrize("slice_", SMALL, ids=lambda slice_: slice_.name)
def test_chips_of_a_host_are_next_to_each_other(slice_) -> None:
    spread = sum(bound - 1 for bound in slice_.host_bounds)
    for host in range(slice_.hosts):
        members = [slice_.chip_of(device) for device in slice_.local_devices(host)]
        assert max(slice_.torus.hop_distance(members[0], chip) for chip in members) <= spread


@pytest.mark.parametrize("slice_", SMALL, ids=lambda slice_: slice_.name)
def test_parse_slice_reads_the_name_of_a_slice(slice_) -> None:
    assert parse_slice(slice_.name) == slice_


def test_devices_of_a_chip_are_numbered_side_by_side() -> None:
    slice_ = parse_slice("tpu7x:2x2x1")
    assert [slice_.chip_of(device) for device in range(4)] == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("v5e:3x3", r"Nearest: v5e:2x4, v5e:4x4"),
        ("v5e:4x2", r"Nearest: v5e:2x4"),
        ("v5p:4x4", r"Nearest: v5p:2x2x4"),
        ("v4:4096", r"Nearest: v4:16x16x16"),
        ("v5p:512", r"Nearest: v5p:8x8x8"),
        ("v6e:64", r"Nearest: v6e:8x8"),
        ("v5p:4x4x6", r"Nearest: v5p:4x4x(4|8)"),
        ("v5e:0x4", r"Nearest: v5e:1x1"),
        ("v5q:2x2", r"not a known chip"),
        ("v5e", r"colon"),
        ("v5e:2x2:2", r"colon"),
        ("v5p:4x4x4_twisted", r"cannot be twisted.*Nearest: v5p:4x4x8_twisted"),
        ("tpu7x:4x4x8_twisted", r"cannot be twisted"),
        ("tpu8i:4x4", r"cannot be simulated"),
        ("tpu8t:4x4x4", r"no cores_per_chip, devices_per_chip"),
    ],
)
def test_parse_slice_of_an_impossible_slice_says_what_is_possible(text, message) -> None:
    with pytest.raises(TargetError, match=message):
        parse_slice(text)


def test_parse_slice_untwisted_is_the_plain_torus() -> None:
    assert parse_slice("v5p:4x4x8_untwisted") == parse_slice("v5p:4x4x8")


def test_device_and_host_outside_the_slice_raise() -> None:
    slice_ = parse_slice("v5e:2x2")
    with pytest.raises(DeviceIndexError, match="4 devices of v5e:2x2"):
        slice_.chip_of(4)
    with pytest.raises(DeviceIndexError, match="Host 1"):
        slice_.local_devices(1)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=3))
def test_nearest_shapes_are_possible(shape) -> None:
    chip = chips().get("v5p")
    near = slices.nearest_shapes(chip, tuple(shape))
    assert len(near) == 2
    assert set(near) <= set(slices.possible_shapes(chip))


def test_nearest_shape_of_what_is_too_large_has_its_proportions() -> None:
    assert slices.nearest_shapes(chips().get("v5p"), (64, 64, 64))[0] == (16, 20, 28)


@pytest.mark.parametrize(
    ("name", "group", "shape", "wrap", "sharing"),
    [
        ("v5p:4x4x4", range(64), (4, 4, 4), (True, True, True), 1),
        ("v5p:4x4x4", range(4), (4,), (True,), 1),
        ("v5p:4x4x4", range(0, 64, 16), (4,), (True,), 1),
        ("v5p:4x4x4", (0, 1), (2,), (False,), 1),
        ("v5e:4x4", (0, 1, 4, 5), (2, 2), (False, False), 1),
        ("v5e:4x4", (0, 2), (2,), (False,), 1),
        ("v5e:4x4", (0, 1, 4), (3,), (False,), 1),
        ("v5e:4x4", (5,), (1,), (False,), 1),
        ("tpu7x:2x2x1", range(8), (2, 2), (False, False), 1),
        ("tpu7x:2x2x1", (0, 2, 4, 6), (2, 2), (False, False), 2),
        ("tpu7x:2x2x1", (0, 1), (1,), (False,), 1),
    ],
)
def test_span_of_a_group_is_its_box_or_a_line(name, group, shape, wrap, sharing) -> None:
    span = groups.span_of(tuple(group), parse_slice(name))
    assert (span.torus.shape, span.torus.wrap, span.sharing) == (shape, wrap, sharing)
