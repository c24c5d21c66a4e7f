# SPDX-License-Identifier: Apache-2.0
"""Activations and their backward passes against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torchtpu_core.lowering import activation_gradients, activations
from torchtpu_core.testing.lowering import check

TABLE = (*activations.TABLE, *activation_gradients.TABLE)

INF, NAN = float("inf"), float("nan")
RANDOM = torch.rand(14, generator=torch.Generator().manual_seed(0))
X = torch.tensor([-100.0, -3.0, -1.5, -0.5, -0.0, 0.0, 0.3, 0.5, 1.0, 2.9, 3.0, 6.5, 30.0, 100.0])
EDGES = torch.cat([X, torch.tensor([INF, -INF, NAN])])
GRAD = torch.linspace(-2, 2, len(X))
UNIT = torch.tensor([0.0, 0.1, 0.5, 0.9, 1.0, 1.2, -0.2])

FORWARD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("relu", (), {}),
    ("gelu", (), {}),
    ("gelu", (), {"approximate": "tanh"}),
    ("silu", (), {}),
    ("mish", (), {}),
    ("hardsigmoid", (), {}),
    ("hardswish", (), {}),
    ("hardtanh", (), {}),
    ("hardtanh", (-0.5, 2.5), {}),
    ("leaky_relu", (), {}),
    ("leaky_relu", (0.3,), {}),
    ("elu", (), {}),
    ("elu", (1.5, 1.1, 0.7), {}),
    ("celu", (), {}),
    ("celu", (2.0,), {}),
    ("softplus", (), {}),
    ("softplus", (2.0, 5.0), {}),
    ("softshrink", (), {}),
    ("softshrink", (1.5,), {}),
    ("hardshrink", (), {}),
    ("threshold", (0.4, -7.0), {}),
    ("log_sigmoid_forward", (), {}),
]
FORWARD_IDS = [f"{name}{list(args) or ''}" for name, args, _ in FORWARD]


@pytest.mark.parametrize(("name", "args", "options"), FORWARD, ids=FORWARD_IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_forward_equals_cpu(
    name: str, args: tuple[Any, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    args = tuple(a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args)
    check(f"aten::{name}", X.to(dtype), *args, **options, table=TABLE)


@pytest.mark.parametrize("name", ["relu", "hardtanh", "leaky_relu", "elu", "softplus", "threshold"])
def test_forward_keeps_nan_and_infinity(name: str) -> None:
    args = (0.4, -7.0) if name == "threshold" else ()
    check(f"aten::{name}", EDGES, *args, table=TABLE)


def test_relu_of_integers_equals_cpu() -> None:
    check("aten::relu", torch.tensor([-3, 0, 4]), table=TABLE)
    check("aten::hardtanh", torch.tensor([-3, 0, 4]), -2, 2, table=TABLE)


BACKWARD: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("gelu_backward", (), {}),
    ("gelu_backward", (), {"approximate": "tanh"}),
    ("silu_backward", (), {}),
    ("mish_backward", (), {}),
    ("hardsigmoid_backward", (), {}),
    ("hardswish_backward", (), {}),
    ("hardtanh_backward", (-1.5, 3), {}),
    ("leaky_relu_backward", (0.3, False), {}),
    ("softplus_backward", (2.0, 5.0), {}),
    ("softshrink_backward", (0.5,), {}),
    ("hardshrink_backward", (0.5,), {}),
    ("threshold_backward", (0.5,), {}),
    ("threshold_backward", (0,), {}),
    ("tanh_backward", (), {}),
    ("sigmoid_backward", (), {}),
    ("log_sigmoid_backward", (torch.exp(-X.abs()),), {}),
    ("rrelu_with_noise_backward", (RANDOM, 0.1, 0.3, False, False), {}),
    ("rrelu_with_noise_backward", (RANDOM, 0.1, 0.3, True, False), {}),
]
BACKWARD_IDS = [f"{i}-{name}" for i, (name, _, _) in enumerate(BACKWARD)]


@pytest.mark.parametrize(("name", "args", "options"), BACKWARD, ids=BACKWARD_IDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_backward_equals_cpu(
    name: str, args: tuple[Any, ...], options: dict[str, Any], dtype: torch.dtype
) -> None:
    # An output of tanh or sigmoid is at most 1: larger ones would only measure rounding.
    x = X.clamp(-1, 1) if name in ("tanh_backward", "sigmoid_backward") else X
    args = tuple(a.to(dtype) if isinstance(a, torch.Tensor) else a for a in args)
    check(f"aten::{name}", GRAD.to(dtype), x.to(dtype), *args, **options, table=TABLE)


@pytest.mark.parametrize("is_result", [False, True])
def test_elu_backward_equals_cpu(is_result: bool) -> None:
    x = X.clamp(min=-1) if is_result else X
    check("aten::elu_backward", GRAD, 1.5, 1.1, 0.7, is_result, x, table=TABLE)


@pytest.mark.parametrize("eps", [None, 0.7, 0.05])
def test_logit_equals_cpu(eps: float | None) -> None:
    check("aten::logit", UNIT, eps, table=TABLE)
    check("aten::logit_backward", torch.ones_like(UNIT), UNIT, eps, table=TABLE)


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_glu_equals_cpu(dim: int) -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 6, 2)
    check("aten::glu", x, dim, table=TABLE)
    out = torch.ops.aten.glu(x, dim)
    check("aten::glu_backward", torch.randn_like(out), x, dim, table=TABLE)
    check("aten::glu_jvp", out, x, torch.randn_like(x), dim, table=TABLE)


def test_prelu_broadcasts_its_weight() -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(2, 3, 4), torch.rand(1, 3, 1)
    check("aten::_prelu_kernel", x, weight, table=TABLE)
    check("aten::_prelu_kernel_backward", torch.randn(2, 3, 4), x, weight, table=TABLE)


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    check("aten::silu", torch.ones(shape), table=TABLE)
