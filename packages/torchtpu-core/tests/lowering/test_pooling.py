# SPDX-License-Identifier: Apache-2.0
"""Pooling, unpooling and their gradients against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering import average_pooling, pooling, unpooling
from torchtpu_core.testing.lowering import check, lower

TABLE = (*pooling.TABLE, *average_pooling.TABLE, *unpooling.TABLE)
_GENERATOR = torch.Generator().manual_seed(0)
INF, NAN = float("inf"), float("nan")


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return (3 * torch.randn(shape, generator=_GENERATOR)).to(dtype)


# shape, kernel, stride, padding, dilation, ceil_mode
MAX = {
    "plain": ((2, 3, 8, 6), [2, 2], [2, 2], [0, 0], [1, 1], False),
    "no batch": ((3, 5, 6), [2, 3], [], [0, 0], [1, 1], False),
    "overlapping": ((2, 2, 7, 8), [3, 3], [2, 1], [1, 1], [1, 1], False),
    "ceil": ((2, 2, 7, 8), [2, 3], [2, 3], [0, 1], [1, 1], True),
    "dilated": ((1, 2, 9, 9), [2, 3], [2, 2], [1, 1], [3, 2], False),
    "gaps": ((1, 2, 9, 8), [2, 1], [3, 2], [0, 0], [1, 1], False),
    "global": ((2, 2, 6, 7), [6, 7], [1, 1], [0, 0], [1, 1], False),
    "no rows": ((0, 2, 6, 7), [2, 2], [2, 2], [0, 0], [1, 1], False),
}


@pytest.mark.parametrize("case", MAX)
def test_max_pool2d_equals_cpu(case: str) -> None:
    shape, *geometry = MAX[case]
    check("aten::max_pool2d_with_indices", rand(*shape), *geometry, table=TABLE)


@pytest.mark.parametrize("case", MAX)
def test_max_pool2d_backward_equals_cpu(case: str) -> None:
    shape, *geometry = MAX[case]
    x = rand(*shape)
    out, indices = torch.ops.aten.max_pool2d_with_indices(x, *geometry)
    geometry[1] = geometry[1] or geometry[0]
    arguments = (rand(*out.shape), x, *geometry, indices)
    check("aten::max_pool2d_with_indices_backward", *arguments, table=TABLE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64, torch.int64], ids=str)
def test_max_pool2d_in_other_dtypes_equals_cpu(dtype: torch.dtype) -> None:
    x = rand(2, 2, 7, 7, dtype=dtype)
    check("aten::max_pool2d_with_indices", x, [3, 3], [2, 2], [1, 1], table=TABLE)


@pytest.mark.parametrize("kernel", [2, 3, 6])
def test_max_pool2d_of_ties_infinities_and_nan_picks_what_cpu_picks(kernel: int) -> None:
    x = torch.zeros(4, 1, 6, 6)
    x[1] = -INF
    x[2, 0, 1, 1] = x[2, 0, 1, 2] = x[2, 0, 4, 4] = NAN
    x[3, 0, 2] = INF
    padding = 0 if kernel == 6 else 1
    check("aten::max_pool2d_with_indices", x, [kernel] * 2, [2, 2], [padding] * 2, table=TABLE)


@pytest.mark.parametrize(("stride", "padding"), [([2, 2, 2], [0, 0, 0]), ([1, 2, 1], [1, 0, 1])])
def test_max_pool3d_equals_cpu(stride: list[int], padding: list[int]) -> None:
    x, geometry = rand(2, 2, 4, 5, 6), ([2, 2, 3], stride, padding, [1, 1, 1], False)
    check("aten::max_pool3d_with_indices", x, *geometry, table=TABLE)
    out, indices = torch.ops.aten.max_pool3d_with_indices(x, *geometry)
    arguments = (rand(*out.shape), x, *geometry, indices)
    check("aten::max_pool3d_with_indices_backward", *arguments, table=TABLE)


# kernel, stride, padding, ceil_mode, count_include_pad, divisor_override
AVERAGE: dict[str, tuple[Any, ...]] = {
    "plain": ([2, 2], [], [0, 0], False, True, None),
    "padded": ([3, 2], [2, 1], [1, 1], False, True, None),
    "padding not counted": ([3, 2], [2, 1], [1, 1], False, False, None),
    "ceil": ([3, 3], [2, 2], [1, 1], True, True, None),
    "ceil, padding not counted": ([3, 3], [2, 3], [1, 0], True, False, None),
    "divisor": ([2, 3], [2, 2], [1, 0], False, True, 5),
    "global": ([7, 8], [1, 1], [0, 0], False, True, None),
    "larger than the image": ([256, 99], [], [0, 0], True, True, None),
    "larger than the image, padded": ([12, 18], [2, 9], [5, 9], True, False, None),
}


@pytest.mark.parametrize("case", AVERAGE)
def test_avg_pool2d_equals_cpu(case: str) -> None:
    x = rand(2, 3, 7, 8)
    check("aten::avg_pool2d", x, *AVERAGE[case], table=TABLE)
    kernel, stride, *rest = AVERAGE[case]
    grad = rand(*torch.ops.aten.avg_pool2d(x, *AVERAGE[case]).shape)
    arguments = (grad, x, kernel, stride or kernel, *rest)
    check("aten::avg_pool2d_backward", *arguments, table=TABLE)


def test_kernels_beyond_the_image_make_no_larger_values() -> None:
    window = pooling.windows([7], [2560], [2560], [0], ceil_mode=True)[0]
    made = jax.make_jaxpr(lambda x: average_pooling.window_sum(x, 1, window))(np.ones((2, 7)))
    assert {equation.primitive.name for equation in made.eqns} <= {"reduce_sum", "broadcast_in_dim"}


def test_avg_pool2d_with_a_long_kernel_equals_cpu() -> None:
    check("aten::avg_pool2d", rand(1, 2, 40, 3), [20, 1], [3, 1], [4, 0], table=TABLE)


def test_avg_pool2d_backward_with_a_long_kernel_equals_cpu() -> None:
    x, grad = rand(1, 2, 40, 40), rand(1, 2, 4, 4)
    arguments = ([20, 20], [6, 6], [0, 0], False, True, None)
    check("aten::avg_pool2d_backward", grad, x, *arguments, table=average_pooling.TABLE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int64], ids=str)
def test_avg_pool2d_in_other_dtypes_equals_cpu(dtype: torch.dtype) -> None:
    check("aten::avg_pool2d", 10 * rand(2, 5, 6, dtype=dtype), [2, 2], table=TABLE)


def test_avg_pool2d_keeps_nan_and_infinity_in_their_windows() -> None:
    x = rand(1, 1, 6, 6)
    x[0, 0, 0, 0], x[0, 0, 5, 5] = NAN, INF
    check("aten::avg_pool2d", x, [2, 2], [1, 1], table=TABLE)


def test_avg_pool3d_equals_cpu() -> None:
    x, geometry = rand(2, 4, 5, 6), ([2, 3, 2], [2, 1, 2], [1, 1, 0], True, False, None)
    check("aten::avg_pool3d", x, *geometry, table=TABLE)
    grad = rand(*torch.ops.aten.avg_pool3d(x, *geometry).shape)
    check("aten::avg_pool3d_backward", grad, x, *geometry, table=TABLE)


ADAPTIVE = [
    ((2, 3, 6, 8), (3, 2)),
    ((3, 7, 5), (3, 4)),
    ((1, 2, 4, 3), (6, 5)),
    ((1, 1, 9, 9), (1, 1)),
]


@pytest.mark.parametrize(("shape", "sizes"), ADAPTIVE)
def test_adaptive_pools_equal_cpu(shape: tuple[int, ...], sizes: tuple[int, int]) -> None:
    x = rand(*shape)
    grad = rand(*shape[:-2], *sizes)
    check("aten::_adaptive_avg_pool2d", x, list(sizes), table=TABLE)
    check("aten::_adaptive_avg_pool2d_backward", grad, x, table=TABLE)
    check("aten::adaptive_max_pool2d", x, list(sizes), table=TABLE)
    indices = torch.ops.aten.adaptive_max_pool2d(x, list(sizes))[1]
    check("aten::adaptive_max_pool2d_backward", grad, x, indices, table=TABLE)


def test_adaptive_pools_in_three_dimensions_equal_cpu() -> None:
    x, sizes = rand(2, 2, 4, 5, 6), [2, 3, 4]
    grad = rand(2, 2, *sizes)
    check("aten::_adaptive_avg_pool3d", x, sizes, table=TABLE)
    check("aten::_adaptive_avg_pool3d_backward", grad, x, table=TABLE)
    check("aten::adaptive_max_pool3d", x, sizes, table=TABLE)
    indices = torch.ops.aten.adaptive_max_pool3d(x, sizes)[1]
    check("aten::adaptive_max_pool3d_backward", grad, x, indices, table=TABLE)


def test_adaptive_max_pool2d_of_nan_equals_cpu() -> None:
    x = rand(1, 1, 5, 5)
    x[0, 0, 1, 1] = x[0, 0, 2, 0] = NAN
    check("aten::adaptive_max_pool2d", x, [2, 2], table=TABLE)


def test_max_unpool_equals_cpu() -> None:
    values, indices = torch.ops.aten.max_pool2d_with_indices(rand(2, 3, 6, 4), [2, 2])
    check("aten::max_unpool2d", values, indices, [7, 5], table=TABLE)
    values, indices = torch.ops.aten.max_pool3d_with_indices(rand(2, 4, 6, 4), [2, 2, 2])
    arguments = (values, indices, [4, 6, 4], [2, 2, 2], [0, 0, 0])
    check("aten::max_unpool3d", *arguments, table=TABLE)


def test_max_unpool_of_an_index_outside_raises() -> None:
    row = next(r for r in TABLE if r.overload == "aten::max_unpool2d")
    with pytest.raises(RuntimeError, match="invalid max index"):
        lower(row, (torch.ones(1, 1, 1), torch.tensor([[[9]]]), [3, 3]), {})


def test_fractional_max_pools_equal_cpu() -> None:
    x, samples = rand(2, 3, 7, 9), torch.rand(2, 3, 2, generator=_GENERATOR)
    check("aten::fractional_max_pool2d", x, [2, 3], [4, 3], samples, table=TABLE)
    _, indices = torch.ops.aten.fractional_max_pool2d(x, [2, 3], [4, 3], samples)
    arguments = (rand(2, 3, 4, 3), x, [2, 3], [4, 3], indices)
    check("aten::fractional_max_pool2d_backward", *arguments, table=TABLE)
    x, samples = rand(1, 2, 5, 6, 7), torch.rand(1, 2, 3, generator=_GENERATOR)
    check("aten::fractional_max_pool3d", x, [2, 2, 3], [1, 3, 4], samples, table=TABLE)
    _, indices = torch.ops.aten.fractional_max_pool3d(x, [2, 2, 3], [1, 3, 4], samples)
    arguments = (rand(1, 2, 1, 3, 4), x, [2, 2, 3], [1, 3, 4], indices)
    check("aten::fractional_max_pool3d_backward", *arguments, table=TABLE)


def test_fractional_pooling_of_one_sample_takes_the_first_samples_of_a_batch() -> None:
    samples = torch.rand(2, 3, 3, generator=_GENERATOR)
    x = rand(3, 6, 7, 8)
    check("aten::fractional_max_pool3d", x, [2, 2, 2], [3, 3, 4], samples, table=TABLE)
