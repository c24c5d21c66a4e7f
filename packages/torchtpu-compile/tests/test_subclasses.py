# SPDX-License-Identifier: Apache-2.0
"""Tensor subclasses that are made in compiled code, changed there, or taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor
from torchtpu_compile import bounded_program


def parts(value: Any) -> list[Tensor]:
    """The tensors that a result is made of, on the CPU."""
    if isinstance(value, TwoTensor):
        return [value.a.detach().cpu(), value.b.detach().cpu()]
    return [value.detach().cpu()]


def written(x: Tensor) -> Any:
    """A pair, one part of which was changed after it was made."""
    pair = TwoTensor(x * 2, x + 1)
    pair.mul_(3)
    return pair


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function", [lambda x: TwoTensor(x * 2, x + 1), lambda x: TwoTensor(x.exp(), x) * x, written]
)
def test_pair_made_of_plain_tensors_is_a_pair(
    function: Callable[[Tensor], Any], dynamic: bool, backend: str
) -> None:
    x = torch.arange(6.0).view(2, 3)
    actual = torch.compile(function, backend=backend, dynamic=dynamic)(x.to("tpu"))
    expected = function(x)
    assert type(actual) is TwoTensor
    torch.testing.assert_close(parts(actual), parts(expected))


def rows(lengths: Sequence[int], device: str) -> Tensor:
    """Sequences of the jagged layout, the same ones on every device."""
    parts = [torch.linspace(-1, n, 8 * n).view(n, 8).to(device) for n in lengths]
    return torch.nested.nested_tensor(parts, layout=torch.jagged, requires_grad=True)


def turned(x: Tensor) -> Tensor:
    """What leaves the first graph is a view of a part of its input."""
    heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
    torch._dynamo.graph_break()
    return (heads * 2).transpose(1, 2)


def rows_of_plain(x: Tensor) -> Tensor:
    """Sequences whose rows are a view of a plain input."""
    y = x.values() * 2
    torch._dynamo.graph_break()
    return torch.nested.nested_tensor_from_jagged(y.view(-1, 4, 2), x.offsets())


@pytest.mark.parametrize(
    ("function", "backend"), [(turned, "tpu"), (turned, "inductor"), (rows_of_plain, "tpu")]
)
def test_jagged_views_have_their_values_after_a_graph(
    function: Callable[[Tensor], Tensor], backend: str
) -> None:
    compiled = torch.compile(function, backend=backend)
    for lengths in ((3, 5, 2), (4, 0, 9)):
        actual, expected = rows(lengths, "tpu"), rows(lengths, "cpu")
        results = [f(x).values() for f, x in ((compiled, actual), (function, expected))]
        for result in results:
            result.square().sum().backward()
        torch.testing.assert_close(results[0].cpu(), results[1])
        torch.testing.assert_close(actual.grad.values().cpu(), expected.grad.values())


def test_jagged_rows_to_padded_ones_run_on_the_device_at_open_sizes() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(1).values(), torch.nested.to_padded_tensor(x, 1.0)

    compiled = torch.compile(function, backend="tpu", dynamic=True)
    fallbacks, refused = torch.tpu.counters()["fallbacks"], dict(bounded_program.reasons)
    for lengths in ((3, 5, 2), (4, 1, 6), (2, 7, 3)):
        pairs = [f(rows(lengths, d)) for f, d in ((compiled, "tpu"), (function, "cpu"))]
        for actual, expected in zip(*pairs, strict=True):
            torch.testing.assert_close(actual.cpu(), expected)
    assert torch.tpu.counters()["fallbacks"] == fallbacks
    assert dict(bounded_program.reasons) == refused


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_padded_rows_of_a_plain_tensor_have_gradients(backend: str) -> None:
    """What the room of a sequence is stands in the graph, though other sizes are open."""

    def function(values: Tensor, offsets: Tensor) -> Tensor:
        rows = torch.nested.nested_tensor_from_jagged(values, offsets)
        return torch.nested.to_padded_tensor(rows * 2, 0.0).amax(1)

    compiled = torch.compile(function, backend=backend)
    for lengths in ((3, 5, 2), (4, 1, 6, 2)):
        offsets = torch.tensor([0, *lengths]).cumsum(0)
        expected = torch.linspace(1, 9, 2 * sum(lengths)).view(-1, 2).requires_grad_()
        actual = expected.detach().to("tpu").requires_grad_()
        function(expected, offsets).sum().backward()
        compiled(actual, offsets.to("tpu")).sum().backward()
        torch.testing.assert_close(actual.grad.cpu(), expected.grad)


class Doubling(Tensor):
    """A plain tensor whose copies are twice what they copy."""

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            return result * 2 if func is torch.clone else result


@pytest.mark.parametrize("dynamic", [False, True])
def test_subclass_that_only_overrides_functions_is_an_operand(dynamic: bool) -> None:
    with torch._dynamo.config.patch(traceable_tensor_subclasses={Doubling}):
        double = torch.compile(torch.clone, backend="tpu", dynamic=dynamic, fullgraph=True)
        for rows in (3, 5):
            x = torch.arange(2.0 * rows).view(rows, 2)
            actual = double(x.to("tpu").as_subclass(Doubling))
            torch.testing.assert_close(actual.as_subclass(Tensor).cpu(), x * 2)
