# SPDX-License-Identifier: Apache-2.0
"""Layer, group, RMS, weight and batch normalisation against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering import batch_norm, normalization
from torchtpu_core.testing.lowering import assert_close, check, lower

TABLE = (*normalization.TABLE, *batch_norm.TABLE)
_GENERATOR = torch.Generator().manual_seed(0)
MASKS = [[True, True, True], [True, False, False], [False, True, True]]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR).to(dtype)


def positive(*shape: int) -> Tensor:
    return torch.rand(shape, generator=_GENERATOR) + 0.5


def run(overload: str, *arguments: Any, **keywords: Any) -> Any:
    return lower(next(r for r in TABLE if r.overload == overload), arguments, keywords)


@pytest.mark.parametrize("normalized", [1, 2])
@pytest.mark.parametrize("affine", [(True, True), (True, False), (False, False)])
def test_layer_norm_equals_cpu(normalized: int, affine: tuple[bool, bool]) -> None:
    x = rand(2, 3, 4) + 2
    shape = x.shape[3 - normalized :]
    weight, bias = (rand(*shape) if wanted else None for wanted in affine)
    check("aten::native_layer_norm", x, list(shape), weight, bias, 1e-5, table=TABLE)


@pytest.mark.parametrize("mask", MASKS)
def test_layer_norm_backward_equals_cpu(mask: list[bool]) -> None:
    x, weight, bias, grad = rand(5, 4), rand(4), rand(4), rand(5, 4)
    _, mean, rstd = torch.native_layer_norm(x, [4], weight, bias, 1e-5)
    arguments = (grad, x, [4], mean, rstd, weight, bias, mask)
    check("aten::native_layer_norm_backward", *arguments, table=TABLE)


def test_layer_norm_of_a_large_mean_keeps_its_precision() -> None:
    x = rand(4, 64) + 1000
    exact = torch.nn.functional.layer_norm(x.double(), [64]).float()
    actual = run("aten::native_layer_norm", x, [64], None, None, 1e-5)[0]
    torch.testing.assert_close(actual, exact, rtol=1e-3, atol=1e-3)


def test_layer_norm_bfloat16_has_float32_statistics() -> None:
    x = rand(4, 16, dtype=torch.bfloat16)
    out, mean, rstd = run("aten::native_layer_norm", x, [16], None, None, 1e-5)
    expected = torch.native_layer_norm(x.float(), [16], None, None, 1e-5)
    assert_close(out, expected[0].bfloat16())
    assert_close([mean, rstd], list(expected[1:]))


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_equals_cpu(groups: int, affine: bool) -> None:
    x, weight, bias = rand(2, 6, 3, 2), rand(6), rand(6)
    parameters = (weight, bias) if affine else (None, None)
    check("aten::native_group_norm", x, *parameters, 2, 6, 6, groups, 1e-5, table=TABLE)


@pytest.mark.parametrize("mask", MASKS)
def test_group_norm_backward_equals_cpu(mask: list[bool]) -> None:
    x, weight, bias, grad = rand(2, 6, 3, 2), rand(6), rand(6), rand(2, 6, 3, 2)
    _, mean, rstd = torch.native_group_norm(x, weight, bias, 2, 6, 6, 3, 1e-5)
    arguments = (grad, x, mean, rstd, weight, 2, 6, 6, 3, mask)
    check("aten::native_group_norm_backward", *arguments, table=TABLE)


@pytest.mark.parametrize("eps", [None, 1e-3])
def test_rms_norm_equals_its_definition(eps: float | None) -> None:
    x, weight = rand(3, 5), rand(5)
    small = torch.finfo(torch.float32).eps if eps is None else eps
    rstd = (x.square().mean(-1, keepdim=True) + small).rsqrt()
    assert_close(run("aten::_fused_rms_norm", x, [5], weight, eps), [x * rstd * weight, rstd])
    assert_close(run("aten::rms_norm", x, [5], weight, eps), x * rstd * weight)


def test_rms_norm_backward_equals_autograd() -> None:
    x, weight, grad = rand(3, 5).requires_grad_(), rand(5).requires_grad_(), rand(3, 5)
    out = torch.nn.functional.rms_norm(x, [5], weight, 1e-3)
    expected = torch.autograd.grad(out, (x, weight), grad)
    rstd = run("aten::_fused_rms_norm", x, [5], weight, 1e-3)[1]
    arguments = (grad, x, [5], rstd, weight, [True, True])
    assert_close(run("aten::_fused_rms_norm_backward", *arguments), list(expected))


@pytest.mark.parametrize("dim", [0, 1])
def test_weight_norm_equals_cpu(dim: int) -> None:
    v = rand(3, 4)
    g = positive(3, 1) if dim == 0 else positive(1, 4)
    check("aten::_weight_norm_interface", v, g, dim, table=TABLE)
    norms = torch._weight_norm_interface(v, g, dim)[1]
    arguments = (rand(3, 4), v, g, norms, dim)
    check("aten::_weight_norm_interface_backward", *arguments, table=TABLE)


@pytest.mark.parametrize("p", [1, 2, 3.0, 0.5, float("inf")])
@pytest.mark.parametrize("dim", [0, -1])
def test_renorm_equals_cpu(p: float, dim: int) -> None:
    check("aten::renorm", rand(3, 4, 2), p, dim, 1.5, table=TABLE)


SHAPES = [(4, 3), (4, 3, 5), (2, 3, 4, 2)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("affine", [True, False])
def test_batch_norm_training_equals_cpu_and_moves_the_statistics(
    shape: tuple[int, ...], affine: bool
) -> None:
    x, mean, var = rand(*shape) + 1, rand(3), positive(3)
    weight, bias = (rand(3), rand(3)) if affine else (None, None)
    actual = run("aten::native_batch_norm", x, weight, bias, mean, var, True, 0.3, 1e-5)
    expected = torch.native_batch_norm(x, weight, bias, mean, var, True, 0.3, 1e-5)
    assert_close(actual, [*expected, mean, var])


def test_batch_norm_training_without_running_statistics_returns_none_for_them() -> None:
    x = rand(4, 3)
    actual = run("aten::native_batch_norm", x, None, None, None, None, True, 0.1, 1e-5)
    expected = torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5)
    assert actual[3:] == [None, None]
    assert_close(actual[:3], list(expected))


@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_evaluation_uses_the_running_statistics(shape: tuple[int, ...]) -> None:
    x, weight, bias, mean, var = rand(*shape), rand(3), rand(3), rand(3), positive(3)
    actual = run("aten::native_batch_norm", x, weight, bias, mean, var, False, 0.1, 1e-5)
    expected = torch.native_batch_norm(x, weight, bias, mean, var, False, 0.1, 1e-5)[0]
    assert len(actual) == 3, "nothing is written in evaluation"
    assert_close(actual[0], expected)
    assert_close(actual[1:], [mean, (var + 1e-5).rsqrt()])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("mask", MASKS)
def test_batch_norm_backward_equals_cpu(training: bool, mask: list[bool]) -> None:
    x, grad, weight, mean, var = rand(4, 3, 5), rand(4, 3, 5), rand(3), rand(3), positive(3)
    saved = torch.native_batch_norm(x, weight, None, mean, var, training, 0.1, 1e-5)[1:]
    arguments = (grad, x, weight, mean, var, *saved, training, 1e-5, mask)
    check("aten::native_batch_norm_backward", *arguments, table=TABLE)


def test_batch_norm_functional_overloads_return_the_statistics() -> None:
    x, mean, var = rand(4, 3), rand(3), positive(3)
    arguments = (x, rand(3), rand(3), mean, var)
    check("aten::_native_batch_norm_legit_functional", *arguments, True, 0.1, 1e-5, table=TABLE)
    actual = run("aten::_native_batch_norm_legit_functional", *arguments, False, 0.1, 1e-5)
    assert_close(actual[3:], [mean, var])
    expected = torch.ops.aten._batch_norm_with_update_functional(*arguments, 0.1, 1e-5)
    actual = run("aten::_batch_norm_with_update_functional", *arguments, 0.1, 1e-5)
    assert_close([*actual[:3], *actual[4:]], [*expected[:3], *expected[4:]])


def test_batch_norm_bfloat16_normalises_in_float32() -> None:
    x = rand(8, 3, 4, dtype=torch.bfloat16)
    actual = run("aten::native_batch_norm", x, None, None, None, None, True, 0.1, 1e-5)
    expected = torch.native_batch_norm(x.float(), None, None, None, None, True, 0.1, 1e-5)
    assert_close(actual[:3], [expected[0].bfloat16(), *expected[1:]])


def test_synchronised_batch_norm_of_two_shares_equals_the_whole_batch() -> None:
    x, grad, weight = rand(6, 3, 4), rand(6, 3, 4), rand(3)
    running = rand(3), positive(3)
    shares, counts = x.split([2, 4]), torch.tensor([8.0, 16.0])
    stats = [run("aten::batch_norm_stats", share, 1e-5) for share in shares]
    means, invstds = (torch.stack(s) for s in zip(*stats, strict=True))
    mean, invstd, *moved = run(
        "aten::batch_norm_gather_stats_with_counts",
        x, means, invstds, *running, 0.1, 1e-5, counts,
    )  # fmt: skip
    out = run("aten::batch_norm_elemt", x, weight, None, mean, invstd, 1e-5)
    whole = torch.native_batch_norm(x, weight, None, *running, True, 0.1, 1e-5)
    assert_close([out, mean, invstd, *moved], [*whole, *running])

    reduced = [
        run("aten::batch_norm_backward_reduce", g, s, mean, invstd, weight, True, True, True)
        for g, s in zip(grad.split([2, 4]), shares, strict=True)
    ]
    sum_dy, sum_dy_xmu, d_weight, d_bias = (sum(s) for s in zip(*reduced, strict=True))
    d_input = run(
        "aten::batch_norm_backward_elemt",
        grad, x, mean, invstd, weight, sum_dy, sum_dy_xmu, counts.int(),
    )  # fmt: skip
    expected = torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, None, None, mean, invstd, True, 1e-5, [True] * 3
    )
    assert_close([d_input, d_weight, d_bias], list(expected))
