# SPDX-License-Identifier: Apache-2.0
"""Fake quantisation and its observers against CPU PyTorch."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch.ao.quantization import FusedMovingAvgObsFakeQuantize
from torch.ao.quantization import MovingAveragePerChannelMinMaxObserver as Channelwise
from torchtpu_core.lowering.fake_quantize import TABLE
from torchtpu_core.testing.lowering import check

_G = torch.Generator().manual_seed(0)
X = torch.randn(4, 6, 5, generator=_G) * 3
X[0, 0, :3] = torch.tensor([float("nan"), -9.0, 9.0])
FINITE = X.nan_to_num(0.25).detach()
SCALES = torch.rand(6, generator=_G) * 0.1 + 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_values_and_masks_by_one_scale_equal_the_cpu(dtype: torch.dtype) -> None:
    x = X.to(dtype)
    check("aten::fake_quantize_per_tensor_affine_cachemask", x, 0.03, 7, -128, 127, table=TABLE)
    name = "aten::_fake_quantize_per_tensor_affine_cachemask_tensor_qparams"
    point = torch.tensor([3], dtype=torch.int32)
    for on in (0, 1) if dtype == torch.float32 else ():
        check(name, x, torch.tensor([0.02]), point, torch.tensor([on]), 0, 255, table=TABLE)


@pytest.mark.parametrize("points", [torch.int32, torch.float32])
def test_values_and_masks_by_channel_equal_the_cpu(points: torch.dtype) -> None:
    zero = (torch.arange(6) * 1.3 - 3).to(points)
    name = "aten::fake_quantize_per_channel_affine_cachemask"
    check(name, FINITE, SCALES, zero, 1, -128, 127, table=TABLE)


def test_learned_scales_and_points_equal_the_cpu() -> None:
    factor = 0.3
    name, grad = "aten::_fake_quantize_learnable_per_{}_affine{}", torch.randn_like(FINITE)
    zero = torch.linspace(-3.5, 3, 6)
    for kind, given in (
        ("tensor", (FINITE, torch.tensor([0.021]), torch.tensor([1.5]), -128, 127, factor)),
        ("channel", (FINITE, SCALES, zero, 1, -128, 127, factor)),
    ):
        check(name.format(kind, ""), *given, table=TABLE)
        check(name.format(kind, "_backward"), grad, *given, table=TABLE)


INF = float("inf")
#: Running least and most, as observers start, and of values seen before.
RANGES = {"first": (INF, -INF), "later": (-2.0, 3.0), "positive": (0.5, 1.0), "tiny": (0.0, 1e-6)}


@pytest.mark.parametrize("start", RANGES)
def test_observed_ranges_scales_and_points_equal_the_cpu(start: str) -> None:
    """By channel and symmetric, where the first range is open, else by one scale of bytes."""
    name = "aten::_fused_moving_avg_obs_fq_helper_functional"
    channels = start in ("first", "tiny")
    shape = (4,) if channels else (1,)
    least, most = (torch.full(shape, end) for end in RANGES[start])
    scale, point = torch.ones(shape), torch.zeros(shape, dtype=torch.int32)
    how = (-128, 127, 0, True, True) if channels else (0, 255, -1, False, False)
    on = torch.tensor([1])
    share = 1e-9 if start == "tiny" else 0.01
    check(name, FINITE, on, on, least, most, scale, point, share, *how, table=TABLE)


def test_a_module_that_observes_channels_equals_the_cpu_without_the_host() -> None:
    how = {"qscheme": torch.per_channel_symmetric, "dtype": torch.qint8, "ch_axis": 0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        own = FusedMovingAvgObsFakeQuantize(Channelwise, -127, 127, **how)
    mine = copy.deepcopy(own).to("tpu")
    before = dict(torch.tpu.counters().get("fallbacks", {}))
    found = []
    for module, device in ((own, "cpu"), (mine, "tpu")):
        x = FINITE.to(device).detach().clone().requires_grad_()
        value = module(x)
        module.disable_observer()
        value = module(value)
        value.sum().backward()
        found.append((value.detach(), x.grad, *module.state_dict().values()))
    for e, a in zip(*found, strict=True):
        torch.testing.assert_close(a.cpu(), e)
    assert torch.tpu.counters().get("fallbacks", {}) == before


def test_ranges_and_channels_that_do_not_fit_are_refused_as_on_the_cpu() -> None:
    x, zero = FINITE.to("tpu"), torch.zeros(6, dtype=torch.int32, device="tpu")
    by_one, by_channel = (
        torch.fake_quantize_per_tensor_affine,
        torch.fake_quantize_per_channel_affine,
    )
    scale = SCALES.to("tpu")
    with pytest.raises(RuntimeError, match="`quant_min` should be less"):
        by_one(x, 0.1, 0, 127, -128)
    with pytest.raises(RuntimeError, match="`zero_point` must be between"):
        by_one(x, 0.1, 300, -128, 127)
    with pytest.raises(RuntimeError, match="not consistent with input"):
        by_channel(x, scale, zero, 0, -128, 127)
    with pytest.raises(RuntimeError, match="the same dimensions"):
        by_channel(x, scale[:5], zero, 1, -128, 127)
    with pytest.raises(RuntimeError, match="found Long"):
        by_channel(x, scale, zero.long(), 1, -128, 127)
