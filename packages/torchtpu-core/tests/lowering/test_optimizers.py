# SPDX-License-Identifier: Apache-2.0
"""Fused optimizer steps and gradient scaling against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtpu_core.lowering.optimizers import TABLE
from torchtpu_core.testing.lowering import check

SHAPES = ((3, 2), (5,))


def tensors(seed: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator).to(dtype) for s in SHAPES]


def positive(seed: int) -> list[torch.Tensor]:
    return [t.abs() for t in tensors(seed)]


def steps(count: float) -> list[torch.Tensor]:
    return [torch.tensor(count) for _ in SHAPES]


ADAM = {"lr": 0.01, "beta1": 0.9, "beta2": 0.999, "weight_decay": 0.1, "eps": 1e-8}
SGD = {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.5}
ADAGRAD = {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-10}
SCALED = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(0.0)}
OVERFLOWED = {"grad_scale": torch.tensor(4.0), "found_inf": torch.tensor(1.0)}


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("extra", [{}, SCALED, OVERFLOWED], ids=["plain", "scaled", "overflow"])
def test_fused_adam_equals_cpu(name: str, amsgrad: bool, extra: dict[str, Any]) -> None:
    peaks = positive(3) if amsgrad else []
    lists = (tensors(0), tensors(1), tensors(2), positive(4), peaks, steps(3.0))
    flags = {"amsgrad": amsgrad, "maximize": amsgrad}
    check(f"aten::{name}", *lists, **ADAM, **flags, **extra, table=TABLE)


@pytest.mark.parametrize("name", ["_fused_adam_", "_fused_adamw_"])
def test_fused_adam_tensor_lr_equals_cpu(name: str) -> None:
    lists = (tensors(0), tensors(1), tensors(2), positive(4), [], steps(1.0))
    options = {**ADAM, "lr": torch.tensor(0.02)}
    check(f"aten::{name}.tensor_lr", *lists, **options, amsgrad=False, maximize=False, table=TABLE)


@pytest.mark.parametrize("momentum", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("extra", [{}, SCALED], ids=["plain", "scaled"])
def test_fused_sgd_equals_cpu(
    momentum: bool, first: bool, nesterov: bool, extra: dict[str, Any]
) -> None:
    options = {**SGD, "momentum": 0.9 if momentum else 0.0}
    buffers = tensors(2) if momentum else []
    flags = {"nesterov": nesterov, "maximize": first, "is_first_step": first}
    check(
        "aten::_fused_sgd_", tensors(0), tensors(1), buffers, **options, **flags, **extra,
        table=TABLE,
    )  # fmt: skip


def test_fused_sgd_tensor_lr_equals_cpu() -> None:
    options = {**SGD, "lr": torch.tensor(0.02)}
    flags = {"nesterov": False, "maximize": False, "is_first_step": False}
    lists = (tensors(0), tensors(1), tensors(2))
    check("aten::_fused_sgd_.tensor_lr", *lists, **options, **flags, table=TABLE)


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("extra", [{}, SCALED, OVERFLOWED], ids=["plain", "scaled", "overflow"])
def test_fused_adagrad_equals_cpu(maximize: bool, extra: dict[str, Any]) -> None:
    lists = (tensors(0), tensors(1), positive(2), steps(4.0))
    check("aten::_fused_adagrad_", *lists, **ADAGRAD, maximize=maximize, **extra, table=TABLE)


def test_fused_adagrad_tensor_lr_equals_cpu() -> None:
    lists = (tensors(0), tensors(1), positive(2), steps(4.0))
    options = {**ADAGRAD, "lr": torch.tensor(0.02)}
    check("aten::_fused_adagrad_.tensor_lr", *lists, **options, maximize=False, table=TABLE)


@pytest.mark.parametrize("bad", [None, float("inf"), float("nan")])
def test_amp_check_and_unscale_reports_nonfinite(bad: float | None) -> None:
    grads = tensors(0)
    if bad is not None:
        grads[1][2] = bad
    name = "aten::_amp_foreach_non_finite_check_and_unscale_"
    check(name, grads, torch.zeros(1), torch.tensor(0.25), table=TABLE)


@pytest.mark.parametrize("found_inf", [0.0, 1.0])
@pytest.mark.parametrize("tracker", [0, 3])
@pytest.mark.parametrize("scale", [1024.0, 3e38])
def test_amp_update_scale_equals_cpu(found_inf: float, tracker: int, scale: float) -> None:
    operands = (torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32))
    check("aten::_amp_update_scale_", *operands, torch.tensor(found_inf), 2.0, 0.5, 4, table=TABLE)
