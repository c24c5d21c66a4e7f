# SPDX-License-Identifier: Apache-2.0
"""Higher-order ops in compiled graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torchtpu_compile import bounded_program


def compiled(function):
    return torch.compile(function, backend="tpu", fullgraph=True)


def test_while_loop_runs_until_its_condition_is_false() -> None:
    from torch._higher_order_ops.while_loop import while_loop

    def function(x: Tensor) -> Tensor:
        start = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x * 2), (start, x))[1]

    x = torch.randn(3)
    torch.testing.assert_close(compiled(function)(x.to("tpu")).cpu(), x * 8)


def test_scan_carries_its_state() -> None:
    from torch._higher_order_ops.scan import scan

    def function(x: Tensor) -> Tensor:
        return scan(lambda c, row: (c + row, c * row), torch.zeros(3, device=x.device), x)[1]

    x = torch.randn(4, 3)
    before = torch.cat([torch.zeros(1, 3), x.cumsum(0)[:-1]])
    torch.testing.assert_close(compiled(function)(x.to("tpu")).cpu(), before * x)


def test_cond_has_the_gradient_of_the_branch_it_took() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x * x, lambda x: x * 3, (x,))

    x = torch.full((3,), 2.0, device="tpu", requires_grad=True)
    compiled(function)(x).sum().backward()
    assert torch.equal(x.grad.cpu(), torch.full((3,), 4.0))


def test_cond_may_give_other_sizes_in_each_branch() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: torch.cat([x, x]), lambda x: x.sin(), (x,)) * 2

    run = compiled(function)
    for x in (torch.ones(2, 3), -torch.ones(2, 3)):
        expected = torch.cat([x, x]) if x.sum() > 0 else x.sin()
        torch.testing.assert_close(run(x.to("tpu")).cpu(), expected * 2)


def test_control_flow_is_part_of_the_graphs_one_program() -> None:
    from torch._higher_order_ops.associative_scan import associative_scan
    from torch._higher_order_ops.map import map as each
    from torch._higher_order_ops.scan import scan
    from torch._higher_order_ops.while_loop import while_loop

    def function(x: Tensor, w: Tensor) -> Tensor:
        y = torch.cond(x.sum() > 0, lambda x: (x @ w).sin(), lambda x: x @ w * 3, (x,))
        y = scan(lambda c, row: (c + row, c * row), x[0], y)[1] + 1
        y = each(lambda row, w: row.sin() @ w, y, w)
        y = associative_scan(lambda a, b: a * b, y, 0, combine_mode="generic")
        return while_loop(lambda y: y.abs().sum() < 50, lambda y: (y * 2,), (y,))[0]

    x, w = torch.randn(4, 3), torch.randn(3, 3)
    on_device = x.to("tpu"), w.to("tpu")
    run = compiled(function)
    run(*on_device)
    torch.tpu.synchronize()
    before = torch.tpu.counters()["runs"]
    actual = run(*on_device)
    torch.tpu.synchronize()
    assert torch.tpu.counters()["runs"] - before == 1
    torch.testing.assert_close(actual.cpu(), function(x, w), rtol=1e-4, atol=1e-4)


def test_index_out_of_range_within_a_loop_is_an_error() -> None:
    from torch._higher_order_ops.scan import scan

    def function(table: Tensor, rows: Tensor) -> Tensor:
        start = torch.zeros(2, device=table.device)
        return scan(lambda c, i: (c + table.index_select(0, i)[0], c * 2), start, rows)[0]

    table = torch.randn(4, 2, device="tpu")
    inside = torch.tensor([[0], [3], [1]], device="tpu")
    torch.testing.assert_close(
        compiled(function)(table, inside).cpu(), table.cpu()[[0, 3, 1]].sum(0)
    )
    with pytest.raises(IndexError):
        compiled(function)(table, torch.tensor([[0], [4], [1]], device="tpu")).cpu()


def test_gradients_through_scan_and_map_are_those_of_eager() -> None:
    from torch._higher_order_ops.map import map as each
    from torch._higher_order_ops.scan import scan

    def function(i: Tensor, x: Tensor) -> Tensor:
        carry, rows = scan(lambda c, r: (c * r.sin(), c + r), i, x)
        return (carry * each(lambda row, i: row * i, rows, i)).sum()

    operands = torch.randn(3), torch.randn(4, 3)
    gradients = []
    for run, device in ((function, "cpu"), (compiled(function), "tpu")):
        args = [x.detach().to(device).requires_grad_() for x in map(torch.clone, operands)]
        run(*args).backward()
        gradients.append([x.grad.cpu() for x in args])
    for actual, expected in zip(gradients[1], gradients[0], strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)


def _branches(x: Tensor) -> Tensor:
    return torch.cond(
        x.sum() > 0, lambda x: (x * x.shape[0]).softmax(0), lambda x: x - x.mean(0), (x,)
    )


def _loop(x: Tensor) -> Tensor:
    from torch._higher_order_ops.while_loop import while_loop

    start = torch.zeros((), dtype=torch.int64, device=x.device)
    return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x + x.mean(0)), (start, x))[1]


def _rows(x: Tensor) -> tuple[Tensor, ...]:
    from torch._higher_order_ops.map import map as each
    from torch._higher_order_ops.scan import scan

    w = torch.ones(4, 4, device=x.device)
    carried, out = scan(lambda c, row: ((c * 0.5 + row).tanh(), c * row), w[0], x)
    return carried, out, each(lambda row, w: row.sin() @ w, x, w)


def _batches(x: Tensor) -> tuple[Tensor, Tensor]:
    from torch._higher_order_ops.scan import scan

    return scan(lambda c, a: (c + a, c * a - a.mean(0)), x * 0, torch.stack([x, x * 2, x.sin()]))


@pytest.mark.parametrize("function", (_branches, _loop, _rows, _batches))
def test_control_flow_of_open_sizes_is_one_program_for_a_bucket(function) -> None:
    at_all_sizes = torch.compile(function, backend="tpu", fullgraph=True, dynamic=True)
    bounded_program.reasons.clear()
    for step, n in enumerate((5, 8, 6)):
        x = torch.randn(n, 4)
        x = x - x.mean() + (0.1 if step else -0.1)  # each branch once
        torch.tpu.synchronize()
        before = torch.tpu.counters()["compiles"]
        actual, expected = tree_leaves(at_all_sizes(x.to("tpu"))), tree_leaves(function(x))
        torch.tpu.synchronize()
        assert torch.tpu.counters()["compiles"] - before == (step == 0)
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons


def _carried(x: Tensor) -> Tensor:
    from torch._higher_order_ops.scan import scan

    carried, out = scan(lambda c, row: ((c * 0.5 + row).tanh(), c * row), x[0], x)
    return out + carried


@pytest.mark.parametrize("function", (_branches, _carried))
def test_gradient_of_control_flow_of_open_size_is_right(function) -> None:
    at_all_sizes = torch.compile(function, backend="tpu", fullgraph=True, dynamic=True)
    bounded_program.reasons.clear()
    for n in (5, 7):
        x = torch.randn(n, 4, requires_grad=True)
        y = x.detach().to("tpu").requires_grad_()
        slopes = torch.randn(n, 4)
        function(x).backward(slopes)
        at_all_sizes(y).backward(slopes.to("tpu"))
        torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons


def _layers(x: Tensor, w: Tensor) -> Tensor:
    from torch._higher_order_ops.map import map as each

    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = torch.cond(x.sum() > 0, lambda x: x @ w, lambda x: x @ w * 3, (x,))
        return each(lambda row, w: row @ w, y, w)


def _layers_by_python(x: Tensor, w: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = x @ w if x.sum() > 0 else x @ w * 3
        return torch.stack([row @ w for row in y])


def test_control_flow_under_autocast_computes_in_its_dtype() -> None:
    results = []
    operands = torch.randn(4, 4), torch.randn(4, 4)
    for run, device in ((_layers_by_python, "cpu"), (compiled(_layers), "tpu")):
        x, w = (value.detach().to(device).requires_grad_() for value in operands)
        out = run(x, w)
        assert out.dtype == torch.bfloat16
        out.sum().backward()
        results.append([value.cpu() for value in (out.detach(), x.grad, w.grad)])
    torch.testing.assert_close(results[1], results[0], rtol=5e-2, atol=5e-2)


def test_associative_scans_of_open_length_share_programs() -> None:
    """One graph for lengths up to the same power of two; torch has one for each length."""
    from torch._higher_order_ops.associative_scan import associative_scan

    def function(x: Tensor) -> Tensor:
        return associative_scan(torch.mul, x, 0, combine_mode="generic")

    at_all_sizes = torch.compile(function, backend="tpu", fullgraph=True, dynamic=True)
    bounded_program.reasons.clear()
    torch._dynamo.utils.counters.clear()
    for n in (6, 5, 8):  # also a power of two and one
        x = torch.randn(n, requires_grad=True)
        y = x.detach().to("tpu").requires_grad_()
        slopes = torch.randn(n)
        expected, actual = x.cumprod(0), at_all_sizes(y)
        expected.backward(slopes)
        actual.backward(slopes.to("tpu"))
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not bounded_program.reasons
