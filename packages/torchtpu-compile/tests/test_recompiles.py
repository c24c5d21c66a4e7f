# SPDX-License-Identifier: Apache-2.0
"""When programs are compiled: once per shape, never per value."""

from __future__ import annotations

import torch
from torch import Tensor


def compiles() -> int:
    torch.tpu.synchronize()  # what is pending is not the function's
    return torch.tpu.counters()["programs"]


def run(function, *args) -> Tensor:
    """Call and wait; every program the call needs has been compiled afterwards."""
    result = function(*args)
    torch.tpu.synchronize()
    return result


def test_repeated_calls_compile_once() -> None:
    function = torch.compile(lambda x: (x + 1).relu(), backend="tpu")
    inputs = [torch.randn(3, device="tpu") for _ in range(4)]
    before = compiles()
    for x in inputs:
        run(function, x)
    assert compiles() - before == 1


def test_changing_python_float_compiles_nothing_after_the_second_value() -> None:
    function = torch.compile(lambda x, s: x * s + s, backend="tpu")
    x = torch.ones(3, device="tpu")
    for value in (0.5, 0.25):
        run(function, x, value)
    before = compiles()
    for value in (0.125, 3.0, -1.5):
        result = run(function, x, value)
        assert compiles() == before
        assert torch.equal(result.cpu(), torch.full((3,), 2 * value))


def test_new_lengths_share_a_program_after_the_first_change() -> None:
    function = torch.compile(lambda x: (x @ x.t()).relu() * x.shape[0], backend="tpu")
    inputs = {n: torch.randn(n, 4) for n in (2, 3, 4, 5, 16)}
    on_device = {n: x.to("tpu") for n, x in inputs.items()}
    torch._dynamo.utils.counters.clear()
    before = compiles()
    for n, x in inputs.items():
        torch.testing.assert_close(
            run(function, on_device[n]).cpu(), (x @ x.t()).relu() * n, rtol=1e-4, atol=1e-5
        )
    assert compiles() - before == 2
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_dynamic_batch_trains_with_one_graph() -> None:
    model = torch.nn.Linear(4, 2)
    on_device = torch.nn.Linear(4, 2).to("tpu")
    on_device.load_state_dict(model.state_dict())
    function = torch.compile(on_device, backend="tpu", dynamic=True)
    torch._dynamo.utils.counters.clear()
    for n in (3, 5):
        x = torch.randn(n, 4)
        model.zero_grad()
        on_device.zero_grad()
        model(x).square().mean().backward()
        function(x.to("tpu")).square().mean().backward()
        torch.testing.assert_close(on_device.weight.grad.cpu(), model.weight.grad)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_decoding_with_a_static_cache_compiles_once_and_donates_it() -> None:
    projection = torch.randn(64, 64) / 8

    def step(x: Tensor, cache: Tensor, at: Tensor) -> Tensor:
        cache.index_copy_(1, at, x @ projection.to(x.device))
        scores = x @ cache.mT
        seen = torch.arange(cache.shape[1], device=x.device) <= at
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ cache

    function = torch.compile(step, backend="tpu", fullgraph=True)
    expected, cache = torch.randn(1, 1, 64), torch.zeros(1, 128, 64)
    actual, on_device = expected.to("tpu"), cache.to("tpu")
    positions = [torch.tensor([t], device="tpu") for t in range(24)]
    torch.tpu.synchronize()
    before, donated = torch.tpu.counters()["compiles"], torch.tpu.counters()["donated_bytes"]
    for position in positions:
        expected = step(expected, cache, position.cpu())
        actual = function(actual, on_device, position)
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(on_device.cpu(), cache, rtol=1e-4, atol=1e-5)
    assert torch.tpu.counters()["compiles"] - before <= 2
    assert torch.tpu.counters()["donated_bytes"] - donated >= 20 * cache.nbytes
