# SPDX-License-Identifier: Apache-2.0
"""A short stream that is new is one program, if that takes fewer; each op counts once."""

from __future__ import annotations

import inspect
import itertools
import warnings

import pytest
import torch
from torch.testing import assert_close
from torchtpu_core import _C
from torchtpu_core.runtime import compiling, varying
from torchtpu_eager import fused

#: Sizes that no test before had: what runs at one is new.
_sizes = itertools.count(1009, 2)


@pytest.fixture(autouse=True)
def _fused():
    torch.tpu.init()
    before = fused.configure(background=False)
    _C.forget_streams()
    varying.forget()
    with torch.tpu.set_eager_mode("fused"):
        yield
    fused.configure(**{name: getattr(before, name) for name in before.__slots__})


@pytest.fixture
def x() -> torch.Tensor:
    """A tensor of a new size on the device."""
    return torch.linspace(0.1, 0.9, next(_sizes)).to("tpu")


def _programs(function) -> tuple[int, int]:
    """How many programs a call ran, and compiled."""
    torch.tpu.synchronize()
    torch.tpu.reset_counters()
    function()
    torch.tpu.synchronize()
    counters = torch.tpu.counters()
    return counters["runs"], counters["programs"]


def test_short_new_stream_is_one_program_that_serves_again(x):
    def chain() -> torch.Tensor:
        return x.exp().log1p().sqrt().cpu()

    assert _programs(chain) == (1, 1)
    assert_close(chain(), x.cpu().exp().log1p().sqrt())
    assert _programs(chain) == (1, 0)


def test_ops_have_programs_of_their_own_in_the_next_new_stream(x):
    assert _programs(lambda: x.exp().log1p().sqrt().cpu()) == (1, 1)
    assert _programs(lambda: x.sqrt().exp().log1p().cpu()) == (3, 3)
    assert _programs(lambda: x.log1p().sqrt().exp().cpu()) == (3, 0)


def test_other_streams_that_end_at_the_same_line_run_op_by_op(x):
    calls = [torch.exp, torch.log1p, torch.sqrt, torch.sin, torch.cos, torch.tanh, torch.neg]
    new = [torch.erf, torch.atan, torch.expm1]

    def chain(*functions) -> None:
        y = x
        for function in functions:
            y = function(y)
        y.cpu()

    assert _programs(lambda: chain(*calls)) == (1, 1)
    assert _programs(lambda: chain(*reversed(calls))) == (7, 7)
    assert _programs(lambda: chain(*new)) == (3, 3)


def test_stream_of_known_ops_compiles_nothing(x):
    with torch.tpu.set_eager_mode("strict"):
        x.exp().log1p().sqrt().cpu()
    assert _programs(lambda: x.exp().log1p().sqrt().cpu()) == (3, 0)


def test_stream_of_few_new_ops_leaves_the_known_ones_alone(x):
    with torch.tpu.set_eager_mode("strict"):
        x.exp().log1p().sqrt().sin().cpu()
    assert _programs(lambda: x.exp().log1p().sqrt().sin().cos().tanh().cpu()) == (6, 2)


def test_third_size_of_a_stream_runs_op_by_op():
    def chain(x: torch.Tensor) -> torch.Tensor:
        return (x.exp().log1p().sqrt() * 2).cpu()

    tensors = [torch.rand(next(_sizes)).to("tpu") for _ in range(3)]
    runs = [_programs(lambda x=x: chain(x))[0] for x in tensors]
    assert runs == [1, 1, 4]


def test_long_stream_runs_op_by_op(x):
    fused.configure(at_first_sight=3)
    assert _programs(lambda: x.exp().log1p().sqrt().sin().cpu()) == (4, 4)


def test_first_step_of_an_optimizer_is_not_compiled_as_a_whole(x):
    weight = torch.zeros_like(x, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.1, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad()
        (weight - x).square().sum().backward()
        optimizer.step()

    runs, programs = _programs(step)
    assert runs > 1
    assert programs > 1


def test_op_that_cannot_be_compiled_is_named_by_its_line(x, monkeypatch):
    compile_function = compiling.compile_function

    def refusing(function, avals, donated, name):
        if "sqrt" in name or "fused" in name:
            raise RuntimeError("no such program")
        return compile_function(function, avals, donated, name)

    with monkeypatch.context() as patch:
        patch.setattr(compiling, "compile_function", refusing)
        y = x.exp().log1p()
        bad, line = y.sqrt(), inspect.currentframe().f_lineno
        with pytest.raises(RuntimeError, match="no such program") as raised:
            torch.tpu.synchronize()
    assert f"{__file__}:{line}" in str(raised.value)
    assert_close(y.cpu(), x.cpu().exp().log1p())
    with pytest.raises(RuntimeError):
        bad.cpu()


def test_it_is_explained_and_no_sign_of_a_script_that_recompiles():
    calls = [torch.exp, torch.log1p, torch.sqrt, torch.sin, torch.cos]
    known = torch.tpu.explain().compiles
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for first, second, third in itertools.permutations(calls, 3):
            third(second(first(torch.rand(next(_sizes), device="tpu")))).cpu()
    last = torch.tpu.explain().compiles[-1]
    assert last not in known
    assert last.reason == "host read"
    assert last.line.startswith(f"{__file__}:")
