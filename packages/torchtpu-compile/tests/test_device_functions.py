# SPDX-License-Identifier: Apache-2.0
"""Functions of torch.tpu in compiled code."""

from __future__ import annotations

import pytest
import torch
from torchtpu_core.errors import DeviceIndexError

CONSTANT = {
    "device_count": lambda: torch.tpu.device_count(),
    "get_device_name": lambda: len(torch.tpu.get_device_name()),
    "is_available": lambda: int(torch.tpu.is_available()),
}
OUTSIDE = {
    "get_device_properties": lambda: torch.tpu.get_device_properties(),
    "get_rng_state": lambda: torch.tpu.get_rng_state(),
    "manual_seed": lambda: torch.tpu.manual_seed(3),
    "memory_allocated": lambda: torch.tpu.memory_allocated(),
}


@pytest.mark.parametrize("name", CONSTANT)
def test_what_does_not_change_is_part_of_the_graph(name):
    function = CONSTANT[name]
    compiled = torch.compile(lambda x: x.sin() + function(), backend="tpu", fullgraph=True)
    x = torch.ones(3)
    torch.testing.assert_close(compiled(x.to("tpu")).cpu(), x.sin() + function())


def test_the_current_device_is_guarded():
    compiled = torch.compile(
        lambda x: x + torch.tpu.current_device(), backend="tpu", fullgraph=True
    )
    x = torch.zeros((), device="tpu:0")
    last = torch.tpu.device_count() - 1
    before = torch.tpu.current_device()
    try:
        for index in (0, last, 0):
            torch.tpu.set_device(index)
            assert compiled(x).item() == index
    finally:
        torch.tpu.set_device(before)


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_acts_on_the_device_is_called_between_two_graphs(name, recwarn):
    def function(x):
        y = x.sin()
        OUTSIDE[name]()
        return y.cos()

    x = torch.ones(3)
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    result = torch.compile(function, backend="tpu")(x.to("tpu"))
    torch.testing.assert_close(result.cpu(), x.sin().cos())
    assert graphs["unique_graphs"] - before == 2
    assert not [w for w in recwarn if "does not know how to trace" in str(w.message)]


def made_in_a_context(x):
    before = torch.ones(2, device="tpu")
    with torch.tpu.device(1):
        made = torch.ones(2, device="tpu")
        index = torch.tpu.current_device()
    assert (index, torch.tpu.current_device()) == (1, 0)
    return before, made, torch.ones(2, device="tpu"), x + 1


def made_in_torchs_context(x):
    with torch.accelerator.device_index(1):
        made = torch.full((3,), 2.0, device="tpu") * 2
    return x, made, x * 2


def made_by_name(x):
    return x + 1, torch.arange(3, device="tpu:1") * 2


def made_where_a_tensor_is(x):
    y = torch.ones(2, device="tpu:1")
    with torch.tpu.device_of(y):
        made = torch.ones(2, device="tpu")
        with torch.tpu.device_of(torch.ones(2)):
            return x + 1, made, torch.zeros(3, device="tpu")


def changed_by_nothing(x):
    with torch.tpu.device("tpu:1"), torch.tpu.device(-1):
        return x + 1, torch.rand(3, device="tpu")


@pytest.mark.parametrize(
    ("function", "devices"),
    [
        (made_in_a_context, [0, 1, 0, 0]),
        (made_in_torchs_context, [0, 1, 0]),
        (made_by_name, [0, 1]),
        (changed_by_nothing, [0, 1]),
        (made_where_a_tensor_is, [0, 1, 1]),
    ],
)
def test_a_graph_makes_tensors_on_the_device_that_is_named(function, devices):
    torch._subclasses.FakeTensorMode.cache_clear()  # torch keeps results without their device
    x = torch.ones(3, device="tpu:0")
    results = torch.compile(function, backend="tpu", fullgraph=True)(x)
    assert [result.device.index for result in results] == devices
    for result, expected in zip(results, function(x), strict=True):
        assert result.device == expected.device
        assert function is changed_by_nothing or torch.equal(result, expected)
    assert torch.tpu.current_device() == 0


def test_a_graph_of_one_program_that_has_no_operand():
    compiled = torch.compile(lambda: torch.ones(2, device="tpu:1") * 2, backend="tpu")
    for _ in range(2):
        result = compiled()
        assert result.device.index == 1
        assert result.tolist() == [2.0, 2.0]


@pytest.mark.parametrize("name", ["synchronize", "current_stream"])
def test_a_device_that_is_not_there_is_refused_in_compiled_code(name):
    def function(x):
        getattr(torch.tpu, name)(99)
        return x + 1

    x = torch.ones(2, device="tpu")
    with pytest.raises(DeviceIndexError, match=r"tpu:99 does not exist.*Valid indices are"):
        torch.compile(function, backend="tpu")(x)


def test_synchronisation_keeps_its_place_in_the_graph():
    def function(x):
        first = x.sin()
        torch.tpu.synchronize()
        torch.tpu.synchronize(x.device)
        return first.cos()

    x = torch.ones(3)
    result = torch.compile(function, backend="tpu", fullgraph=True)(x.to("tpu"))
    torch.testing.assert_close(result.cpu(), x.sin().cos())


def on_a_side_stream(x):
    side = torch.tpu.Stream()
    with torch.tpu.stream(side):
        y = x * 2
    torch.tpu.current_stream().wait_stream(side)
    return y + 1


def on_a_stream_of_the_tensors_device(x):
    side = torch.tpu.Stream(device=x.device)
    side.wait_stream(torch.tpu.current_stream(x.device))
    with torch.tpu.stream(side):
        y = x * 2
        done = side.record_event()
    torch.tpu.current_stream(x.device).wait_event(done)
    return y + 1


def on_no_stream(x):
    with torch.tpu.stream(None):
        return x * 2 + 1


def with_streams_as_results(x):
    assert torch.tpu.current_stream() == torch.tpu.default_stream()
    return x * 2 + 1


@pytest.mark.parametrize(
    "function",
    [on_a_side_stream, on_a_stream_of_the_tensors_device, on_no_stream, with_streams_as_results],
)
def test_streams_are_part_of_the_graph(function):
    x = torch.arange(3.0)
    result = torch.compile(function, backend="tpu", fullgraph=True)(x.to("tpu"))
    assert torch.equal(result.cpu(), x * 2 + 1)
    assert torch.tpu.current_stream() == torch.tpu.default_stream()


def test_the_current_stream_can_leave_the_graph():
    compiled = torch.compile(
        lambda x: (x + 1, torch.tpu.current_stream()), backend="tpu", fullgraph=True
    )
    _, stream = compiled(torch.ones(2, device="tpu"))
    assert stream == torch.tpu.current_stream()


def test_a_stream_of_another_device_is_refused_in_compiled_code():
    def function(x):
        return x + 1, torch.tpu.current_stream("cpu")

    with pytest.raises(ValueError, match="Expected a tpu device, but got: cpu"):
        torch.compile(function, backend="tpu")(torch.ones(2, device="tpu"))
