# SPDX-License-Identifier: Apache-2.0
"""Meshes: every device once, spans that the devices really have, sensible choices."""

from __future__ import annotations

import doctest
import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.errors import MeshShapeError
from torchtpu_core.ici import CollectiveKind, Network, mesh, network_model, parse_slice, span_of
from torchtpu_core.ici.layouts import GATHERED_BYTES, SLICES, Digit
from torchtpu_core.ici.mesh import complete_sizes, topology_aware_mesh

NAMES = ("pipeline", "data", "fsdp", "tensor")
TARGETS = ["v5e:4x4", "v5e:16x16", "v5p:4x4x8", "v5p:4x8x8_twisted", "tpu7x:4x4x4", "v6e:8x16"]


@st.composite
def meshes(draw: st.DrawFn) -> mesh.Mesh:
    """Meshes of two to four axes on published slices."""
    name = draw(st.sampled_from(TARGETS))
    # Only v5e, v5p, v6e and tpu7x publish a network between slices.
    network = Network.of(parse_slice(name), draw(st.sampled_from([1, 2, 4])))
    left, sizes = network.devices, {}
    for axis in draw(st.permutations(NAMES))[:3]:
        sizes[axis] = draw(st.sampled_from([n for n in (1, 2, 4, 8, 16, 32) if left % n == 0]))
        left //= sizes[axis]
    return topology_aware_mesh(network, {**sizes, "expert": left})


def test_mesh_doctests_pass() -> None:
    assert doctest.testmod(mesh).failed == 0


@settings(max_examples=40)
@given(meshes())
def test_mesh_has_every_device_once(made: mesh.Mesh) -> None:
    assert made.devices.shape == tuple(made.sizes.values())
    assert sorted(made.devices.ravel().tolist()) == list(range(made.network.devices))


@settings(max_examples=40)
@given(meshes(), st.data())
def test_span_of_an_axis_is_that_of_its_devices(made: mesh.Mesh, data) -> None:
    axis = data.draw(st.sampled_from(range(len(made.sizes))))
    name = list(made.sizes)[axis]
    lines = np.moveaxis(made.devices, axis, -1).reshape(-1, made.devices.shape[axis])
    group = data.draw(st.sampled_from(range(len(lines))))
    stated, found = made.span(name), span_of(lines[group].tolist(), made.network)
    assert (stated.devices, stated.cores, stated.slices) == (
        found.devices,
        found.cores,
        found.slices,
    )
    per_axis = [one.axis for one in stated.axes]
    if len(set(per_axis)) == len(per_axis):
        # A group that has several digits of one physical axis is no grid by its devices.
        assert (stated.axes, stated.twisted) == (found.axes, found.twisted)


@pytest.mark.parametrize(
    ("target", "sizes", "rings"),
    [
        ("v5e:16x16", {"fsdp": 16, "tensor": 16}, ("fsdp", "tensor")),
        ("v6e:16x16", {"data": 16, "model": 16}, ("data", "model")),
        ("v5p:4x4x8", {"data": 8, "fsdp": 4, "tensor": 4}, ("data", "fsdp", "tensor")),
    ],
)
def test_axes_as_long_as_physical_ones_become_rings(target, sizes, rings) -> None:
    made = topology_aware_mesh(parse_slice(target), sizes)
    for name in rings:
        (axis,) = made.span(name).axes
        assert (axis.length, axis.wrap, axis.stride) == (sizes[name], True, 1)


def test_layout_is_no_worse_than_the_order_of_devices() -> None:
    # Against the mesh that reshapes device numbers, for all three axes together.
    network = Network.of(parse_slice("v5p:8x8x16"))
    sizes = {"data": 4, "fsdp": 32, "tensor": 8}
    made = topology_aware_mesh(network, sizes)
    model = network_model(network)

    def cost(devices: np.ndarray) -> float:
        total = 0.0
        for axis, name in enumerate(sizes):
            group = np.moveaxis(devices, axis, -1).reshape(-1, sizes[name])[0]
            span = made.span(name) if devices is made_devices else span_of(group, network)
            time = model.collective_time(CollectiveKind.REDUCE_SCATTER, 2**26, span)
            total += mesh.USUAL_TRAFFIC[name] * time.time_s
        return total

    made_devices = made.devices
    assert cost(made_devices) <= cost(np.arange(1024).reshape(4, 32, 8))


@pytest.mark.parametrize("sizes", [{"data": 4, "fsdp": 2, "tensor": 2}, {"fsdp": 4, "tensor": 4}])
def test_layout_is_the_best_of_all(sizes) -> None:
    # Every pair of splits of the two physical axes, written out; busiest axis innermost.
    network = Network.of(parse_slice("v5e:4x4"))
    model = network_model(network)
    names = sorted(sizes, key=lambda name: -mesh.USUAL_TRAFFIC[name])

    def cost(digits: dict[str, tuple[Digit, ...]]) -> float:
        made = mesh.Mesh(network=network, sizes=sizes, digits=digits)
        return sum(
            mesh.USUAL_TRAFFIC[name]
            * model.collective_time(
                CollectiveKind.REDUCE_SCATTER, GATHERED_BYTES, made.span(name)
            ).time_s
            for name in sizes
        )

    splits = [f for f in itertools.product((1, 2, 4), repeat=len(names)) if math.prod(f) == 4]
    costs = []
    for first, second in itertools.product(splits, repeat=2):
        if any(a * b != sizes[n] for a, b, n in zip(first, second, names, strict=True)):
            continue
        digits: dict[str, tuple[Digit, ...]] = dict.fromkeys(names, ())
        for dim, factors in enumerate((first, second)):
            stride = 1
            for name, factor in zip(names, factors, strict=True):
                digits[name] += (Digit(dim, factor, stride),) if factor > 1 else ()
                stride *= factor
        costs.append(cost(digits))
    chosen = cost(dict(topology_aware_mesh(network, sizes).digits))
    assert chosen == pytest.approx(min(costs))
    assert max(costs) > min(costs)


def test_tensor_axis_of_two_devices_stays_within_a_chip_of_tpu7x() -> None:
    made = topology_aware_mesh(parse_slice("tpu7x:4x4x4"), {"fsdp": 64, "tensor": 2})
    assert (made.span("tensor").cores, made.span("tensor").axes) == (2, ())


def test_data_axis_goes_between_slices() -> None:
    network = Network.of(parse_slice("v6e:16x16"), 4)
    made = topology_aware_mesh(network, {"data": 4, "fsdp": 64, "tensor": 4})
    assert [name for name in made.sizes if made.span(name).slices > 1] == ["data"]
    assert [digit.dim for digit in made.digits["data"]] == [SLICES]


def test_traffic_overrides_what_is_usual() -> None:
    network = Network.of(parse_slice("v6e:16x16"), 4)
    sizes = {"data": 4, "fsdp": 64, "tensor": 4}
    made = topology_aware_mesh(network, sizes, traffic={"data": 100.0})
    assert made.span("data").slices == 1


@pytest.mark.parametrize(("by", "links"), [(1, 1), (3, 3)])
def test_shift_along_a_ring_loads_each_link_once_per_hop(by, links) -> None:
    made = topology_aware_mesh(parse_slice("v5e:16x16"), {"context": 16, "tensor": 16})
    messages = made.shift("context", 1000, by)
    assert len(messages) == 256
    assert sorted(m.source for m in messages) == sorted(m.target for m in messages)
    time = network_model(made.network).messages_time(messages)
    assert time.busiest_link_bytes == links * 1000


def test_span_of_two_axes_together_is_their_torus() -> None:
    made = topology_aware_mesh(parse_slice("v5e:16x16"), {"fsdp": 16, "tensor": 16})
    assert made.span("fsdp", "tensor").torus.shape == (16, 16)


def test_span_of_parts_of_one_ring_together_is_the_ring() -> None:
    made = topology_aware_mesh(parse_slice("v5e:16x16"), {"data": 4, "fsdp": 4, "tensor": 16})
    assert made.span("data", "fsdp").torus.wrap == (True,)


@pytest.mark.parametrize(
    ("sizes", "devices", "message"),
    [
        ({"data": -1, "model": 8}, 12, r"8 does not divide 12. Use model=6 or model=12, or 16"),
        ({"data": 3, "model": 4}, 16, r"12 does not divide 16. Use data=4, or 12 devices"),
        ({"data": 2, "model": 4}, 16, r"they make 8. Use data=4 or model=8, or 8 devices"),
        ({"data": 3, "model": 5}, 16, r"15 does not divide 16. Use data=4 and model=4, or 15"),
        ({"data": -1, "model": -1}, 16, r"at most one of size -1"),
        ({"data": 0}, 16, r"at least one device"),
        ({}, 16, r"at least one device"),
    ],
)
def test_sizes_that_do_not_fit_raise_with_those_that_do(sizes, devices, message) -> None:
    with pytest.raises(MeshShapeError, match=message):
        complete_sizes(sizes, devices)


@given(st.integers(1, 512), st.integers(1, 64))
def test_advice_fits(devices: int, model: int) -> None:
    if devices % model == 0:
        assert math.prod(complete_sizes({"data": -1, "model": model}, devices).values()) == devices
        return
    with pytest.raises(MeshShapeError) as raised:
        complete_sizes({"data": -1, "model": model}, devices)
    advised = [
        int(part.split("=")[1].rstrip(","))
        for part in str(raised.value).split("Use ")[1].replace(",", "").split()
        if part.startswith("model=")
    ]
    assert advised and all(devices % n == 0 for n in advised)


def test_span_of_an_unknown_axis_suggests_the_nearest() -> None:
    made = topology_aware_mesh(parse_slice("v5e:4x4"), {"fsdp": 16})
    with pytest.raises(MeshShapeError, match="Did you mean 'fsdp'"):
        made.span("fsdq")
