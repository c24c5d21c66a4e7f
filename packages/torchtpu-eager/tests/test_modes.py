# SPDX-License-Identifier: Apache-2.0
"""Choosing an eager mode, and when each raises what the device found."""

from __future__ import annotations

import inspect

import pytest
import torch
from torchtpu_core.errors import DeferredIndexError


@pytest.fixture(autouse=True)
def _start_strict():
    torch.tpu.init()
    torch.tpu.set_eager_mode("strict")


@pytest.mark.parametrize(
    ("alias", "mode"),
    [
        ("DEFER_NEVER_AND_LAUNCH_BLOCKING", "DEBUG"),
        ("DEFER_NEVER", "STRICT"),
        ("DEFER_AND_FUSE", "FUSED"),
    ],
)
def test_eager_mode_alias_is_the_same_mode(alias, mode):
    assert torch.tpu.EagerMode[alias] is torch.tpu.EagerMode[mode]


def test_set_eager_mode_block_restores_the_previous_mode():
    with torch.tpu.set_eager_mode(torch.tpu.EagerMode.DEBUG):
        assert torch.tpu.eager_mode is torch.tpu.EagerMode.DEBUG
    assert torch.tpu.eager_mode is torch.tpu.EagerMode.STRICT


def test_set_eager_mode_restores_after_an_exception():
    with pytest.raises(KeyError), torch.tpu.set_eager_mode("debug"):
        raise KeyError
    assert torch.tpu.eager_mode is torch.tpu.EagerMode.STRICT


def test_set_eager_mode_without_block_stays():
    torch.tpu.set_eager_mode("debug")
    assert torch.tpu.eager_mode is torch.tpu.EagerMode.DEBUG


def test_set_eager_mode_unknown_lists_the_modes():
    with pytest.raises(ValueError, match="DEBUG, STRICT, FUSED"):
        torch.tpu.set_eager_mode("lazy")


def test_strict_raises_at_the_synchronisation_with_the_line_of_the_op():
    x = torch.arange(4.0, device="tpu")
    index = torch.tensor([9], device="tpu")
    line = inspect.currentframe().f_lineno + 1
    x[index]
    with pytest.raises(DeferredIndexError, match=rf"test_modes\.py:{line} in test_strict"):
        torch.tpu.synchronize()


def test_strict_failed_op_leaves_the_device_usable():
    x = torch.arange(4.0, device="tpu")
    x[torch.tensor([9], device="tpu")]
    with pytest.raises(IndexError):
        torch.tpu.synchronize()
    torch.tpu.synchronize()
    assert (x + 1).tolist() == [1.0, 2.0, 3.0, 4.0]


def test_debug_raises_at_the_line():
    x = torch.arange(4.0, device="tpu")
    index = torch.tensor([9], device="tpu")
    with torch.tpu.set_eager_mode("debug"), pytest.raises(IndexError, match="out of bounds"):
        x[index]


def test_debug_raises_in_backward_with_the_forward_line():
    x = torch.ones(4, device="tpu", requires_grad=True)
    with torch.tpu.debug():
        line = inspect.currentframe().f_lineno + 1
        y = x.sub(1).sqrt()
        with pytest.raises(RuntimeError, match=rf"test_modes\.py:{line} in test_debug_raises"):
            y.sum().backward()


#: Calls whose shapes do not fit, which PyTorch's meta kernels accept.
_UNFIT = {
    "values": lambda x, i: x.index_put_((i,), x.new_ones(3, 3)),
    "values of more dimensions": lambda x, i: x.index_put_((i,), x.new_ones(1, 2, 3)),
    "values behind a whole dimension": lambda x, i: x.__setitem__(
        (slice(None), i), x.new_ones(4, 2)
    ),
    "values, not in place": lambda x, i: torch.index_put(x, (i, i), x.new_ones(3)),
    "indices written by": lambda x, i: x.index_put_(
        (i, torch.arange(3, device=i.device)), x.new_ones(1)
    ),
    "indices read by": lambda x, i: x[i, torch.arange(3, device=i.device)],
    "an empty dimension": lambda x, i: x[:0][i],
    "too many indices": lambda x, i: x.index_put_((i, i, i), x.new_ones(1)),
    "more samples than categories": lambda x, i: x.add(1).multinomial(4),
    "one value too many": lambda x, i: x.put_(i, x.new_ones(3)),
}


@pytest.mark.parametrize("name", _UNFIT)
def test_fused_refuses_what_shapes_forbid_at_the_call_in_cpus_words(name):
    call, x, index = _UNFIT[name], torch.zeros(5, 3), torch.tensor([0, 1])
    with pytest.raises((IndexError, RuntimeError)) as expected:
        call(x, index)
    with torch.tpu.set_eager_mode("fused"):
        on_device = x.to("tpu"), index.to("tpu")
        with pytest.raises(type(expected.value)) as found:
            call(*on_device)
        assert str(found.value) == str(expected.value)
        assert on_device[0].sum().item() == 0


_DISTRIBUTIONS = {
    "cauchy_": ((0.0, 0.5), (0.0, 0.0)),
    "exponential_": ((0.5,), (-1.0,)),
    "geometric_": ((0.5,), (1.5,)),
    "log_normal_": ((0.0, 0.5), (0.0, -1.0)),
    "normal_": ((0.0, 0.5), (0.0, -1.0)),
}


@pytest.mark.parametrize("name", _DISTRIBUTIONS)
def test_fused_refuses_a_distribution_at_the_call_after_one_that_it_took(name):
    taken, refused = _DISTRIBUTIONS[name]
    with pytest.raises(RuntimeError) as expected:
        getattr(torch.ones(3), name)(*refused)
    with torch.tpu.set_eager_mode("fused"):
        x = torch.ones(3, device="tpu")
        getattr(x, name)(*taken)
        torch.tpu.synchronize()
        with pytest.raises(RuntimeError) as found:
            getattr(x, name)(*refused)
        assert str(found.value) == str(expected.value)
        assert x.isfinite().all()


def test_fused_refuses_a_deviation_beside_a_tensor_of_means_at_the_call():
    with pytest.raises(RuntimeError) as expected:
        torch.normal(torch.zeros(3), -1.0)
    with torch.tpu.set_eager_mode("fused"):
        means = torch.zeros(3, device="tpu")
        assert torch.normal(means, 1.0).isfinite().all()
        with pytest.raises(RuntimeError) as found:
            torch.normal(means, -1.0)
    assert str(found.value) == str(expected.value)
