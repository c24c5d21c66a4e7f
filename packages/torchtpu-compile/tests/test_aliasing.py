# SPDX-License-Identifier: Apache-2.0
"""Compiled graphs alias as eager CPU PyTorch does: inputs, outputs, and both with each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

BACKENDS = pytest.mark.parametrize("backend", ["tpu", "inductor"])


def shared(tensors: list[Tensor]) -> list[list[int]]:
    """For each tensor, which of the others live in the same storage."""
    places = [t.untyped_storage()._cdata for t in tensors]
    return [[j for j, other in enumerate(places) if other == place] for place in places]


def check(
    function: Callable[..., Any], make: Callable[[str], tuple[Any, ...]], backend: str
) -> None:
    """Two calls on CPU and compiled on tpu: values, layout, identity and sharing are alike."""
    torch.manual_seed(0)
    on_cpu = make("cpu")
    torch.manual_seed(0)
    on_tpu = make("tpu")
    compiled = torch.compile(function, backend=backend)
    for _ in range(2):
        expected = tree_leaves((function(*on_cpu), on_cpu))
        actual = tree_leaves((compiled(*on_tpu), on_tpu))
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.detach().cpu(), e.detach())
            assert a.stride() == e.stride()
            assert a.requires_grad == e.requires_grad
        assert shared(actual) == shared(expected)
        identical = [[i for i, t in enumerate(ts) if t is o] for ts in (actual,) for o in ts]
        assert identical == [[i for i, t in enumerate(expected) if t is o] for o in expected]
        for a, e in zip(actual, expected, strict=True):
            if not e.requires_grad and e.is_floating_point():
                a.reshape(-1)[0].add_(1)  # seen through every alias next time
                e.reshape(-1)[0].add_(1)


def square(device: str) -> tuple[Tensor, ...]:
    return (torch.randn(3, 3).to(device),)


def views_of_one_result(x: Tensor) -> Any:
    y = x + 1
    return y[0], y.t(), y, y.view(-1).split(2)


def views_without_their_base(x: Tensor) -> Any:
    y = x * 2
    return y[1:], y[:2, 1]


def test_input_and_a_new_tensor_are_told_apart() -> None:
    check(lambda x: (x, x + 1, x.t(), x[1:]), square, "tpu")


@BACKENDS
@pytest.mark.parametrize("function", [views_of_one_result, views_without_their_base])
def test_results_that_are_views_of_one_tensor_share_it(function: Any, backend: str) -> None:
    check(function, square, backend)


def test_expanded_result_has_the_strides_of_eager() -> None:
    check(lambda x: (x + 1)[:, :1].expand(3, 4), square, "tpu")


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_results_lie_in_memory_as_in_eager(dynamic: bool, with_gradients: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y, z, w = x * 2, x.exp(), x.sin()
        one = (y[:, 1], z.diagonal(), (x + 1)[::2, 1:], x.sum(0).expand(2, 3), (x - 1).t())
        return (*one, *w.unbind(1))

    x, on_tpu = torch.randn(3, 3), torch.empty(3, 3, device="tpu")
    on_tpu.copy_(x)
    x.requires_grad_(with_gradients)
    on_tpu.requires_grad_(with_gradients)
    expected = function(x)
    actual = torch.compile(function, backend="tpu", dynamic=dynamic)(on_tpu)
    for a, e in zip(actual, expected, strict=True):
        assert (a.stride(), a.storage_offset()) == (e.stride(), e.storage_offset())
        torch.testing.assert_close(a.detach().cpu(), e.detach())
    assert shared(list(actual)) == shared(list(expected))
    if with_gradients:
        sum(a.square().sum() for a in actual).backward()
        sum(e.square().sum() for e in expected).backward()
        torch.testing.assert_close(on_tpu.grad.cpu(), x.grad)
    before = actual[-1].detach().cpu()
    actual[-2].detach().zero_()
    assert not actual[-2].detach().any()
    assert torch.equal(actual[-1].detach().cpu(), before)


@pytest.mark.parametrize("dynamic", [False, True])
def test_result_read_as_another_dtype_shares_memory(dynamic: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y, z = x * 2, torch.complex(x, -x)
        return y, y.view(torch.int32)[1:], y.view(torch.int16), z, z.conj()[:, 0]

    x = torch.randn(3, 4)
    expected = function(x)
    actual = torch.compile(function, backend="tpu", dynamic=dynamic)(x.to("tpu"))
    for tensors in (actual, expected):
        tensors[1].zero_()
        tensors[3].imag.fill_(2)
    for a, e in zip(actual, expected, strict=True):
        assert (a.stride(), a.storage_offset()) == (e.stride(), e.storage_offset())
        assert a.is_conj() == e.is_conj()
        torch.testing.assert_close(a.cpu(), e)
    assert shared(list(actual)) == shared(list(expected))


def test_result_viewed_as_another_dtype_keeps_its_values() -> None:
    y = torch.compile(lambda x: (x + 1).view(torch.int32), backend="tpu")(
        torch.zeros(2, device="tpu")
    )
    assert torch.equal(y.cpu(), torch.ones(2).view(torch.int32))


@BACKENDS
def test_duplicated_and_overlapping_inputs_are_written_as_in_eager(backend: str) -> None:
    def write(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        b.mul_(2)
        return a + b

    def overlapping(device: str) -> tuple[Tensor, Tensor]:
        base = torch.randn(6).to(device)
        return base[:4], base[2:]

    def twice(device: str) -> tuple[Tensor, Tensor]:
        x = torch.randn(3).to(device)
        return x, x

    check(write, overlapping, backend)
    torch._dynamo.reset()
    check(write, twice, backend)


def test_write_through_detach_and_under_no_grad_reaches_the_input() -> None:
    def write(x: Tensor, w: Tensor) -> Tensor:
        x.detach().add_(1)
        with torch.no_grad():
            w.mul_(0.5)
        return (x * w).sum()

    def make(device: str) -> tuple[Tensor, Tensor]:
        x, w = (torch.randn(3).to(device) for _ in range(2))
        return x.requires_grad_(), w.requires_grad_()

    check(write, make, "tpu")


def test_changed_metadata_of_an_input_is_the_callers() -> None:
    x, y = torch.randn(3, 4), torch.randn(3, 4, device="tpu")

    def turn(x: Tensor) -> Tensor:
        x.unsqueeze_(0)
        x.mul_(0)
        return x + 1

    assert torch.equal(torch.compile(turn, backend="tpu")(y).cpu(), turn(x))
    assert y.shape == x.shape == (1, 3, 4)
    assert not y.cpu().any()


@pytest.mark.parametrize("dynamic", [False, True])
def test_parts_of_a_complex_result_lie_in_it(dynamic: bool) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        y, z = torch.view_as_complex(x) * 2, torch.polar(x, x)
        return y, y.imag, y.t().real, z.real

    x = torch.randn(3, 4, 2)
    actual = torch.compile(function, backend="tpu", fullgraph=True, dynamic=dynamic)(x.to("tpu"))
    for a, e in zip(actual, function(x), strict=True):
        assert (a.stride(), a.storage_offset()) == (e.stride(), e.storage_offset())
        torch.testing.assert_close(a.cpu(), e)
    actual[1].zero_()
    assert not actual[0].imag.any()


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_gradient_sees_a_buffer_as_it_was_when_it_was_read(backend) -> None:
    def function(x: torch.Tensor, count: torch.Tensor) -> torch.Tensor:
        before = count.clone()
        count.add_(1)
        return ((x * count).square() * before.exp()).mean()

    compiled = torch.compile(function, backend=backend, fullgraph=True)
    counts = [torch.ones((), device=device) for device in ("cpu", "tpu")]
    for _ in range(3):
        x = torch.randn(4, 3, requires_grad=True)
        y = x.detach().to("tpu").requires_grad_()
        function(x, counts[0]).backward()
        compiled(y, counts[1]).backward()
        torch.testing.assert_close(y.grad.cpu(), x.grad)
    assert counts[1].item() == 4


def _conj(z: torch.Tensor) -> torch.Tensor:
    return z.conj()


def _negative(z: torch.Tensor) -> torch.Tensor:
    return z.conj().imag


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("view", [_conj, _negative])
def test_lazy_conjugates_and_negatives_are_read_and_written_as_such(view, dynamic, backend) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x.mul_(3).add_(y[1:]).add_(1)
        return x * y[:-1] + x, (y * 2).sum()

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for length in (3, 5):
        parts = [torch.randn(n, dtype=torch.complex64) for n in (length, length + 1)]
        copies = [z.to("tpu") for z in parts]
        expected = function(*map(view, parts))
        actual = compiled(*map(view, copies))
        for a, e in zip((*actual, *copies), (*expected, *parts), strict=True):
            torch.testing.assert_close(a.cpu(), e)


def test_gradient_that_arrives_as_a_lazy_conjugate_is_read_as_such() -> None:
    def loss(y: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return (y.conj() * weight).real.sum()

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * x

    grads = []
    x, weight = (torch.randn(4, dtype=torch.complex64) for _ in range(2))
    for device, run in (("cpu", function), ("tpu", torch.compile(function, backend="tpu"))):
        own = x.to(device, copy=True).requires_grad_()
        loss(run(own), weight.to(device)).backward()
        grads.append(own.grad.cpu())
    torch.testing.assert_close(grads[1], grads[0])


class _Seen(torch.autograd.Function):
    """Hands on a view of what it gets, and doubles its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view(x.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    "function", [lambda x: F.channel_shuffle(x, 3), _Seen.apply], ids=["shuffle", "custom"]
)
def test_result_that_only_the_graph_takes_for_a_view_holds_its_values(
    function: Any, requires_grad: bool, backend: str
) -> None:
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for n in (5, 9):
        x = torch.randn(n, 3, 4, n + 1)
        on_device = x.to("tpu").requires_grad_(requires_grad)
        x.requires_grad_(requires_grad)
        result, expected = compiled(on_device), function(x)
        assert torch.equal(result.cpu(), expected)
        if requires_grad:
            result.sin().sum().backward()
            expected.sin().sum().backward()
            torch.testing.assert_close(on_device.grad.cpu(), x.grad)


class Halved(torch.autograd.Function):
    """Returns its operand as it came, or a part of it, and halves the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, start: int) -> Tensor:
        ctx.start = start
        return x[start:] if start else x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return F.pad(gradient / 2, (0, 0, ctx.start, 0)), None


@BACKENDS
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: Halved.apply(x, 0),
        lambda x: (Halved.apply(x, 1), x * 2),
        lambda x: (Halved.apply(x.t(), 1), Halved.apply(x * 2, 0)),
        lambda x: list(x.unbind(1)),
        lambda x: (*x.split(2), x.sin()),
    ],
)
def test_results_that_autograd_takes_for_new_lie_in_the_input(
    function: Any, dynamic: bool, backend: str
) -> None:
    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for n in (3, 5) if dynamic else (3,):
        found = []
        for place, call in (("cpu", function), ("tpu", compiled)):
            leaf = torch.arange(4.0 * n).view(n, 4).to(place).requires_grad_()
            x = (leaf * 2)[1:]
            results = tree_leaves((call(x),))
            sum((r * r).sum() for r in results).backward()
            x.detach().add_(1)  # seen through the results
            found.append([leaf.grad, *results, x])
        for a, e in zip(*reversed(found), strict=True):
            torch.testing.assert_close(a.detach().cpu(), e.detach())
            assert a.stride() == e.stride() and a.storage_offset() == e.storage_offset()
        assert shared(found[1]) == shared(found[0])


@BACKENDS
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.narrow(0, -2, 2),
        lambda x: (x.narrow(0, -1, 1), x * 2),
        lambda x: x.unfold(0, 2, 1)[-1],
        lambda x: x.t().contiguous().t()[-1].sin(),
    ],
)
def test_parts_of_fixed_size_at_an_open_place(function: Any, backend: str) -> None:
    compiled = torch.compile(function, backend=backend)  # the length opens, the width does not
    for n in (3, 5, 8):
        for needs_grad in (False, True):
            x = torch.randn(n, 4)
            on_device, on_host = (x.to(p).requires_grad_(needs_grad) for p in ("tpu", "cpu"))
            actual = tree_leaves((compiled(on_device),))
            expected = tree_leaves((function(on_host),))
            for a, e in zip(actual, expected, strict=True):
                torch.testing.assert_close(a.detach().cpu(), e.detach())
                assert a.stride() == e.stride() and a.storage_offset() == e.storage_offset()
            if needs_grad:
                sum(a.square().sum() for a in actual).backward()
                sum(e.square().sum() for e in expected).backward()
                torch.testing.assert_close(on_device.grad.cpu(), on_host.grad)


@BACKENDS
@pytest.mark.parametrize(
    "function",
    [
        lambda x, k: x[k.item()],
        lambda x, k: (x[: k.item()], x * 2),
        lambda x, k: x.t()[1:, k.item() :].t(),
        lambda x, k: x.narrow(0, k.item(), 2).view(-1),
        lambda x, k: (lambda part: (part, part.sin().sum(1)))(x[: k.item()]),
    ],
)
def test_parts_at_a_place_that_a_value_tells(function: Any, backend: str) -> None:
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for k in (3, 5, 2):
            for needs_grad in (False, True):
                x, place = torch.randn(9, 4), torch.tensor(k)
                leaves = [x.to(p).requires_grad_(needs_grad) for p in ("tpu", "cpu")]
                found = [
                    tree_leaves((call(leaf * 1, place),))
                    for call, leaf in zip((compiled, function), leaves, strict=True)
                ]
                for a, e in zip(*found, strict=True):
                    torch.testing.assert_close(a.detach().cpu(), e.detach())
                    assert a.stride() == e.stride() and a.storage_offset() == e.storage_offset()
                if needs_grad:
                    for results in found:
                        sum(r.square().sum() for r in results).backward()
                    torch.testing.assert_close(leaves[0].grad.cpu(), leaves[1].grad)


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_view_of_an_input_that_begins_elsewhere_each_time(
    with_gradients: bool, dynamic: bool | None, backend: str
) -> None:
    torch._dynamo.reset()

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x[2:4], x.t()[1:].detach()

    compiled = torch.compile(function, backend=backend, dynamic=dynamic, fullgraph=True)
    for start, width in ((0, 8), (16, 8), (25, 8), (40, 6)):
        host = torch.arange(256.0)
        device = host.to("tpu")
        results = []
        for whole, call in ((host, function), (device, compiled)):
            x = whole[start : start + 16 * width].view(16, width)[:, 1:5]
            x = x.requires_grad_() if with_gradients else x
            part, turned = call(x)
            if with_gradients:
                part.square().sum().backward()
                results.append((x.grad.cpu(), turned.cpu()))
            else:
                turned.add_(1.0)
                part.mul_(3.0)
                results.append((whole.cpu(), turned.storage_offset(), turned.stride()))
        for expected, actual in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected)


@BACKENDS
@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.add_(1)[x.shape[0] // 2 :],
        lambda x: (x.add_(1)[:, 1:].t(), x * 2),
        lambda x: (x.mul_(2)[1:].add_(1)[1:, : x.shape[1] - 2], x),
        lambda x: x.add_(1).t()[x.shape[1] // 2 :],
    ],
)
def test_view_of_a_written_part_lies_in_that_part(
    function: Any, with_gradients: bool, backend: str
) -> None:
    """Parts with gaps, which begin elsewhere in their storage than the value that replaces them."""
    compiled = torch.compile(function, backend=backend, dynamic=True)
    for n in (8, 12):
        for part in (lambda p: p[3:], lambda p: p[1:, 2:], lambda p: p.t()[2:, 1:]):
            found = []
            for place, call in (("cpu", function), ("tpu", compiled)):
                leaf = torch.arange(2.0 * n * n).view(n, 2 * n).to(place)
                leaf.requires_grad_(with_gradients)
                whole = leaf * 1
                results = tree_leaves((call(part(whole)),))
                results[0].detach().add_(100)  # seen in the whole
                if with_gradients:
                    sum((r * r).sum() for r in results).backward()
                found.append([whole, *results, *([leaf.grad] if with_gradients else [])])
            for a, e in zip(*reversed(found), strict=True):
                torch.testing.assert_close(a.detach().cpu(), e.detach())
                assert a.stride() == e.stride() and a.storage_offset() == e.storage_offset()


@BACKENDS
@pytest.mark.parametrize("dynamic", [False, True])
def test_result_of_an_input_that_another_one_overlaps(dynamic: bool, backend: str) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        y.add_(1)
        return x

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    whole, on_tpu = torch.ones(10), torch.ones(10, device="tpu")
    result, expected = compiled(on_tpu[1:], on_tpu[1:]), function(whole[1:], whole[1:])
    assert torch.equal(result.cpu(), expected) and result.storage_offset() == 1
    assert torch.equal(on_tpu.cpu(), whole)
