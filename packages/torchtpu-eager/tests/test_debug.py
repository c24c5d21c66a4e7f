# SPDX-License-Identifier: Apache-2.0
"""The checks of torch.tpu.debug: each finds its mistake, and nothing else."""

from __future__ import annotations

import inspect
import math

import pytest
import torch
from torchtpu_core.errors import MismatchError, NonFiniteError
from torchtpu_core.lowering import table
from torchtpu_core.runtime import startup, tables
from torchtpu_eager.indices import IndexOperandError
from torchtpu_eager.options import DebugOptionError


@pytest.fixture(autouse=True)
def _start_strict():
    torch.tpu.init()
    torch.tpu.set_eager_mode("strict")


def _ones():
    return torch.ones(4, device="tpu")


def test_debug_unknown_option_lists_the_known_ones():
    with pytest.raises(DebugOptionError, match=r"Did you mean 'compare'.*nonfinite=True.*memory"):
        torch.tpu.debug(compar=True)


def test_debug_option_of_the_wrong_type_raises():
    with pytest.raises(DebugOptionError, match="True or False"):
        torch.tpu.debug(nonfinite="yes")


def test_debug_block_restores_mode_and_options():
    with torch.tpu.debug(), torch.tpu.debug(nonfinite=False):
        assert math.isnan((_ones() * -1).sqrt()[0].item())
    assert torch.tpu.eager_mode is torch.tpu.EagerMode.STRICT
    assert math.isnan((_ones() * -1).sqrt()[0].item())


def test_nested_debug_restores_the_outer_options():
    with torch.tpu.debug():
        with torch.tpu.debug(nonfinite=False):
            (_ones() * -1).sqrt()
        with pytest.raises(NonFiniteError):
            (_ones() * -1).sqrt()


def test_nonfinite_names_op_line_and_operands():
    x = torch.tensor([4.0, -1.0, 9.0, -2.0], device="tpu")
    with torch.tpu.debug(), pytest.raises(NonFiniteError) as caught:
        line = inspect.currentframe().f_lineno + 1
        x.sqrt()
    message = str(caught.value)
    assert f"aten::sqrt at {__file__}:{line}" in message
    assert "2 NaN and 0 infinite of 4 values" in message
    assert "the first NaN one is at [1]" in message
    assert "self: float32 [4], min -2, max 9, mean 2.5, 0 NaN, 0 infinite" in message


def test_nonfinite_finds_an_infinity_made_of_finite_operands():
    with torch.tpu.debug(), pytest.raises(NonFiniteError, match="0 NaN and 4 infinite"):
        _ones() / 0


def test_nonfinite_shows_the_operand_before_an_inplace_op():
    x = torch.tensor([2.0, -8.0, 2.0, 2.0], device="tpu")
    with torch.tpu.debug(), pytest.raises(NonFiniteError, match=r"min -8, max 2, mean -0.5"):
        x.log_()


def test_nonfinite_says_that_nan_came_from_outside():
    x = torch.tensor([1.0, math.nan, 1.0, 1.0], device="tpu")
    with torch.tpu.debug(), pytest.raises(NonFiniteError, match="already in self"):
        x + 1


def test_nonfinite_lets_masks_pass():
    x = _ones()
    mask = torch.tensor([True, False, True, False], device="tpu")
    with torch.tpu.debug():
        masked = x.masked_fill(mask, -math.inf)
        assert masked.softmax(0).tolist() == [0.0, 0.5, 0.0, 0.5]


def test_indices_names_the_value_and_its_place():
    x = torch.arange(6.0, device="tpu").reshape(2, 3)
    index = torch.tensor([[0, 1], [5, 2]], device="tpu")
    with torch.tpu.debug(), pytest.raises(IndexOperandError) as caught:
        x.gather(1, index)
    assert "index[1, 0] is 5" in str(caught.value)
    assert "dimension 1 of self, which has size 3" in str(caught.value)
    assert "1 of 4 values" in str(caught.value)


def test_indices_stop_a_write_before_it_changes_anything():
    x = torch.zeros(4, device="tpu")
    with torch.tpu.debug(), pytest.raises(IndexError):
        x.index_put_((torch.tensor([1, 7], device="tpu"),), _ones()[:2])
    assert x.tolist() == [0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda x, i: x[-i],
        lambda x, i: x.take(-i),
        lambda x, i: x.index_select(0, i),
        lambda x, i: x.index_fill(0, -i, 2.0),
        lambda x, i: torch.nn.functional.embedding(i, x.reshape(4, 1)),
        lambda x, i: torch.nn.functional.nll_loss(x.expand(2, 4), i - 101),
    ],
)
def test_indices_in_range_pass(call):
    x, i = torch.arange(4.0), torch.tensor([1, 2])
    try:
        expected = call(x, i)
    except (IndexError, RuntimeError):
        with torch.tpu.debug(), pytest.raises((IndexError, RuntimeError)):
            call(x.to("tpu"), i.to("tpu"))
        return
    with torch.tpu.debug(nonfinite=False):
        torch.testing.assert_close(call(x.to("tpu"), i.to("tpu")).cpu(), expected)


@pytest.fixture
def wrong_op():
    """An op of our own whose lowering disagrees with its CPU kernel."""
    library = torch.library.Library("torchtpu_test", "FRAGMENT")
    library.define("halve(Tensor x) -> Tensor")
    library.impl("halve", lambda x: x / 2, "CPU")
    library.impl("halve", lambda x: torch.empty_like(x), "Meta")
    row = table.native("torchtpu_test::halve", lambda x: x * 0.5001)
    tables.add([row], "test")
    startup.register(row)
    yield torch.ops.torchtpu_test.halve
    tables._current.pop(row.overload)


def test_compare_finds_a_wrong_lowering(wrong_op):
    x = torch.tensor([1.0, 2.0, 4.0, 0.0], device="tpu")
    with torch.tpu.debug(compare=True), pytest.raises(MismatchError) as caught:
        wrong_op(x)
    message = str(caught.value)
    assert "torchtpu_test::halve" in message
    assert "3 of 4 values beyond rtol=1.3e-05" in message
    assert "the worst at [2]: tpu 2.0004, CPU 2" in message


def test_compare_accepts_a_training_step():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    model.to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    before = [p.detach().cpu() for p in model.parameters()]
    with torch.tpu.debug(compare=True):
        model(_ones().expand(2, 4)).square().mean().backward()
        optimizer.step()
    after = [p.detach().cpu() for p in model.parameters()]
    assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True))


def test_compare_leaves_random_ops_alone():
    with torch.tpu.debug(compare=True):
        assert torch.rand(4, device="tpu").lt(1).all()


def test_out_of_memory_lists_the_largest_live_tensors():
    capacity = torch.tpu.mem_get_info()[1]
    big = torch.ones(64, 1024, device="tpu")
    line = inspect.currentframe().f_lineno - 1
    from torchtpu_core import _C

    _C.set_memory_limit(0, torch.tpu.memory_allocated() + 1000)
    try:
        with torch.tpu.debug(), pytest.raises(torch.OutOfMemoryError) as caught:
            big + 1
    finally:
        _C.set_memory_limit(0, capacity)
    first = str(caught.value).partition("live tensors on tpu:0:\n")[2].splitlines()[0]
    assert "float32 [64, 1024]" in first
    assert f"{__file__}:{line}" in first


def test_debug_watches_compiled_calls_too():
    from torchtpu_core.calls import device_call

    call = device_call("test::reciprocal", lambda arrays: (1 / arrays[0],))
    spec = [([4], [1], torch.float32)]
    with torch.tpu.debug(), pytest.raises(NonFiniteError, match="test::reciprocal at"):
        call([torch.zeros(4, device="tpu")], [], [], lambda: spec)
