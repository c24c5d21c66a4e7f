# SPDX-License-Identifier: Apache-2.0
"""Floats that change, given or read from a tensor, do not ask for a program each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

OPS = {
    "add": lambda x, s: x.add(x, alpha=s),
    "addcdiv": lambda x, s: x.addcdiv(x, x + 1, value=s),
    # Dynamo takes it apart, and rounds the quotient: one that is exact.
    "addcdiv in place": lambda x, s: x.clone().addcdiv_(x, torch.ones_like(x) * 2, value=-s),
    "addcmul": lambda x, s: x.addcmul(x, x, value=s),
    "addmm": lambda x, s: torch.addmm(x, x, x.t() @ x, alpha=s, beta=1 / s),
    "baddbmm": lambda x, s: torch.baddbmm(x[None], x[None], (x.t() @ x)[None], alpha=s),
    "clamp": lambda x, s: x.clamp(min=-1 / s, max=1 / s),
    "clamp integers": lambda x, s: (x * 9).int().clamp(max=s),
    "clamp_max": lambda x, s: x.clamp_max(1 / s),
    "clamp_min": lambda x, s: x.clamp_min(-1 / s),
    "div": lambda x, s: torch.div(x * 9, s, rounding_mode="floor"),
    "fill": lambda x, s: x.clone().fill_(s),
    "fmod": lambda x, s: torch.fmod(x * 9, s),
    "full": lambda x, s: torch.full((3,), s, device=x.device),
    "full_like": lambda x, s: torch.full_like(x, s),
    "index_fill": lambda x, s: x.index_fill(1, torch.tensor([0, 2], device=x.device), s),
    "index_fill of integers": lambda x, s: x.int().index_fill(0, x.argmax(0)[:1], s),
    "index_fill in place": lambda x, s: x.clone().index_fill_(0, x.argmax(0)[:1], s),
    "leaky_relu": lambda x, s: F.leaky_relu(x, 1 / s),
    "lerp": lambda x, s: x.lerp(x + 1, 1 / s),
    "masked_fill": lambda x, s: x.masked_fill(x > 0, s),
    "power": lambda x, s: x.abs() ** (1 / s),
    "power of a number": lambda x, s: s**x,
    "remainder": lambda x, s: torch.remainder(x * 9, s),
    "sub": lambda x, s: x.sub(x, alpha=s),
    "where": lambda x, s: torch.where(x > 0, x, s),
    "where else": lambda x, s: torch.where(x > 0, s, x),
    "where of integers": lambda x, s: torch.where(x > 0, (x * 9).int(), s),
    "where of numbers": lambda x, s: torch.where(x > 0, s, 1),
    "lists added": lambda x, s: torch._foreach_add([x, x], [x, x * 2], alpha=s),
    "lists subtracted": lambda x, s: torch._foreach_sub([x, x], [x, x * 2], alpha=s),
    "lists and a number": lambda x, s: torch._foreach_mul([x, x + 1], s),
    "lists and numbers": lambda x, s: torch._foreach_div([x, x + 1], [s, 2.0]),
    "lists lerp": lambda x, s: torch._foreach_lerp([x, x], [x + 1, x], 1 / s),
    "powers of a number": lambda x, s: torch._foreach_pow(s, [x, x + 1]),
    "lists clamp": lambda x, s: torch._foreach_clamp_max([x, x + 1], [1 / s, s]),
    "lists maximum": lambda x, s: torch._foreach_maximum([x, x + 1], s),
    "lists minimum": lambda x, s: torch._foreach_minimum([x, x + 1], [1 / s, s]),
    "lists addcmul": lambda x, s: torch._foreach_addcmul([x], [x], [x], s),
    "lists addcdiv": lambda x, s: torch._foreach_addcdiv([x, x], [x, x], [x + 2, x], [s, 1.0]),
}
#: PyTorch's own shape functions ask whether alpha is 1, which an element cannot answer.
NOT_OF_ELEMENTS = {"addmm", "sub", "lists subtracted"}
CASES = [
    (name, given)
    for name in OPS
    for given in ("a float", "an element")
    if given == "a float" or name not in NOT_OF_ELEMENTS
]
VALUES = (1.5, 2.5, 4.25, 3.125, 7.75)


@pytest.fixture(autouse=True)
def _captured() -> Iterator[None]:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        yield


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(("name", "given"), CASES)
def test_a_float_that_changes_is_an_operand(name: str, given: str, dtype: torch.dtype) -> None:
    op = OPS[name]

    def of_element(x: Tensor, s: Tensor) -> object:
        return op(x, s.item())

    function = op if given == "a float" else of_element
    _assert_compiles_once(op, function, dtype, given, "tpu")


#: What makes a tensor of the number alone: Inductor's own table of decompositions sees it first.
_OF_NUMBERS = {"full", "full_like"}


@pytest.mark.parametrize("name", [n for n in OPS if n not in _OF_NUMBERS])
def test_a_float_that_changes_is_an_operand_of_the_default_backend(name: str) -> None:
    _assert_compiles_once(OPS[name], OPS[name], torch.float32, "a float", "inductor")


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_whole_numbers_take_no_fraction_that_changes(backend: str) -> None:
    compiled = torch.compile(lambda x, s: x.clone().clamp_(max=s), backend=backend)
    filled = torch.compile(lambda x, s: x.clone().fill_(s), backend=backend)
    x = torch.arange(5, device="tpu")
    for value in (1.5, 2.5, 3.5):
        with pytest.raises(RuntimeError, match="cast"):
            compiled(x, value)
        assert filled(x, value).tolist() == [int(value)] * 5


def _assert_compiles_once(
    op: Callable[..., object],
    function: Callable[..., object],
    dtype: torch.dtype,
    given: str,
    backend: str,
) -> None:
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    x = torch.linspace(-0.9, 1, 6).view(2, 3).to(dtype)
    on_device, compiles = x.to("tpu"), []
    for value in VALUES:
        s = value if given == "a float" else torch.tensor(value)
        torch.tpu.synchronize()
        torch.tpu.reset_counters()
        actual = compiled(on_device, s)
        torch.tpu.synchronize()
        compiles.append(torch.tpu.counters()["compiles"])
        for a, e in zip(tree_leaves(actual), tree_leaves(op(x, value)), strict=True):
            torch.testing.assert_close(a.cpu(), e)
    assert compiles[2:] == [0] * (len(VALUES) - 2)


DIFFERENTIATED = {
    "add": lambda x, s: x.add(x.square(), alpha=s),
    "addcmul": lambda x, s: x.addcmul(x, x, value=s),
    "baddbmm": lambda x, s: torch.baddbmm(
        x.square().view(-1, 1, 1), *[x.view(-1, 1, 1)] * 2, alpha=s
    ),
    "celu": F.celu,
    "elu": F.elu,
    "hardtanh": lambda x, s: F.hardtanh(x, -s, s),
    "leaky_relu": F.leaky_relu,
    "lerp": lambda x, s: x.lerp(x.square(), s),
    "lists added": lambda x, s: torch._foreach_add([x], [x.square()], alpha=s)[0],
    "power": lambda x, s: x.abs() ** s,
    "power of a number": lambda x, s: s**x,
    "powers of a number": lambda x, s: torch._foreach_pow(s, [x])[0],
    "softplus": F.softplus,
    "threshold": lambda x, s: F.threshold(x, s, -s),
    "where": lambda x, s: torch.where(x > 0, x.square(), s),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", DIFFERENTIATED)
def test_gradient_of_an_op_whose_float_changes_compiles_once(name: str, dtype: torch.dtype) -> None:
    function, counts = DIFFERENTIATED[name], []
    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    for value in (0.25, 0.5, 0.75, 0.375):
        x, y = (torch.linspace(-1.5, 1.6, 12).to(d, dtype).requires_grad_() for d in ("cpu", "tpu"))
        torch.tpu.synchronize()
        torch.tpu.reset_counters()
        actual, expected = compiled(y, value), function(x, value)
        for result in (actual, expected):
            result.backward(torch.full_like(result, 1.5))
        torch.testing.assert_close(actual.cpu(), expected)
        torch.testing.assert_close(y.grad.cpu(), x.grad)
        counts.append(torch.tpu.counters()["compiles"])
    assert counts[2:] == [0, 0]


def test_adafactor_compiles_its_step_once() -> None:
    reference = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    model = deepcopy(reference).to("tpu")
    compiles = []
    inputs = [torch.randn(5, 3) for _ in range(8)]
    # Strict: Fused Eager makes programs of what runs between the graphs once it comes often enough.
    with torch.tpu.set_eager_mode("strict"):
        for module, device in ((reference, "cpu"), (model, "tpu")):
            optimizer = torch.optim.Adafactor(module.parameters(), lr=0.01)
            step = optimizer.step
            if device == "tpu":
                step = torch.compile(step, backend="tpu")
            for x in inputs:
                module(x.to(device)).square().mean().backward()
                torch.tpu.reset_counters()
                step()
                torch.tpu.synchronize()
                if device == "tpu":
                    compiles.append(torch.tpu.counters()["compiles"])
                optimizer.zero_grad()
    assert compiles[2:] == [0] * 6, compiles
    for p, q in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-4, atol=1e-5)


def test_the_table_asks_for_no_module_of_torch_that_is_not_there_yet() -> None:
    # Operators of prims exist from the import of torch._prims on, which Dynamo does.
    code = "import torch_tpu.compile"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("op", [torch.addmm, torch.baddbmm])
def test_a_beta_that_changes_to_zero_hides_what_is_not_finite(op, needs_grad, backend) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, y, beta: op(x, y, y, beta=beta), backend=backend)
    square = (3, 3) if op is torch.addmm else (2, 3, 3)
    for beta in (1.0, 0.5, 0.0, 2.0, 0.0):
        results = []
        for function, device in (
            (compiled, "tpu"),
            (lambda *a: op(*a[:2], a[1], beta=a[2]), "cpu"),
        ):
            x = torch.full(square, torch.inf, device=device)
            y = torch.arange(1.0, 1.0 + x.numel(), device=device).view(square)
            y.requires_grad_(needs_grad)
            out = function(x, y, beta)
            if needs_grad:
                out.sum().backward()
            results.append((out.detach().cpu(), y.grad.cpu() if needs_grad else None))
        for actual, expected in zip(*results, strict=True):
            torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("mode", [None, "floor", "trunc"])
def test_a_rounded_quotient_of_numbers_alone(mode: str | None) -> None:
    div = torch.ops.aten.div
    compiled = torch.compile(
        lambda a, b: div(a, b * 1.0, rounding_mode=mode), backend="tpu", dynamic=True
    )
    for a, b in ((1024, 100), (7, -2), (9, 3)):
        torch.testing.assert_close(compiled(a, b), div(a, b * 1.0, rounding_mode=mode))


@pytest.mark.parametrize("backend", ["tpu", "inductor"])
@pytest.mark.parametrize("dynamic", [None, True])
def test_range_that_counts_down_by_an_open_step(dynamic: bool | None, backend: str) -> None:
    def function(step: int, device: str) -> tuple[Tensor, Tensor]:
        places = torch.arange(100, -100, step, device=device)
        return places, places.sum() + step

    compiled = torch.compile(function, backend=backend, dynamic=dynamic)
    for step in (-1, -3, -2, -7, -200):
        for actual, expected in zip(compiled(step, "tpu"), function(step, "cpu"), strict=True):
            assert torch.equal(actual.cpu(), expected)
    rolled = torch.compile(lambda x, by: x.roll(by) * by, backend=backend, dynamic=dynamic)
    x = torch.arange(9)
    for by in (-2, 3, -5, 4, -20):
        assert torch.equal(rolled(x.to("tpu"), by).cpu(), x.roll(by) * by)
