# SPDX-License-Identifier: Apache-2.0
"""Functions of torch.tpu in compiled code."""

from __future__ import annotations

import pytest
import torch

CONSTANT = {
    "device_count": lambda: torch.tpu.device_count(),
    "get_device_name": lambda: len(torch.tpu.get_device_name()),
    "is_available": lambda: int(torch.tpu.is_available()),
}
OUTSIDE = {
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
