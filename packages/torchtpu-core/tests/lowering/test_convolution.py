# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their gradients against CPU PyTorch."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering import convolution_products, mxu
from torchtpu_core.lowering.convolution import TABLE
from torchtpu_core.lowering.convolution_geometry import Geometry
from torchtpu_core.testing.lowering import assert_close, check, lower

_GENERATOR = torch.Generator().manual_seed(0)


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    numbers = torch.randn(shape, generator=_GENERATOR, dtype=torch.float64)
    # Eighths: sums of their products are exact in float32, in whatever order they are added up.
    return ((8 * numbers).round() / 8).to(dtype)


@dataclass(frozen=True, kw_only=True)
class Case:
    """One convolution; lists may have one entry for all spatial dimensions."""

    x: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = (1,)
    padding: tuple[int, ...] = (0,)
    dilation: tuple[int, ...] = (1,)
    transposed: bool = False
    output_padding: tuple[int, ...] = (0,)
    groups: int = 1

    @property
    def channels(self) -> int:
        """Output channels."""
        return self.weight[1] * self.groups if self.transposed else self.weight[0]

    @property
    def rest(self) -> tuple[object, ...]:
        """The arguments after the bias."""
        lists = [list(v) for v in (self.stride, self.padding, self.dilation)]
        return (*lists, self.transposed, list(self.output_padding), self.groups)


CASES = {
    "1d": Case(x=(2, 3, 9), weight=(4, 3, 3)),
    "1d strided": Case(x=(2, 3, 10), weight=(4, 3, 4), stride=(3,), padding=(2,)),
    "2d": Case(x=(2, 3, 6, 7), weight=(4, 3, 3, 2), padding=(1, 0)),
    "2d strided and dilated": Case(
        x=(2, 3, 9, 8), weight=(4, 3, 3, 2), stride=(2, 3), padding=(2, 1), dilation=(2, 1)
    ),
    "2d leftover": Case(x=(1, 2, 8, 8), weight=(3, 2, 3, 3), stride=(2,), padding=(0,)),
    "1x1": Case(x=(2, 3, 4, 5), weight=(6, 3, 1, 1)),
    "1x1 strided": Case(x=(2, 3, 5, 5), weight=(6, 3, 1, 1), stride=(2,)),
    "3d": Case(x=(2, 2, 4, 5, 4), weight=(3, 2, 2, 3, 2), padding=(1,)),
    "3d strided": Case(x=(1, 2, 5, 5, 6), weight=(3, 2, 2, 3, 2), stride=(2,), padding=(1,)),
    "grouped": Case(x=(2, 6, 5, 6), weight=(4, 3, 3, 3), groups=2, padding=(1,)),
    "depthwise": Case(x=(2, 4, 6, 5), weight=(4, 1, 3, 3), groups=4, padding=(1,)),
    "depthwise strided": Case(
        x=(2, 4, 7, 6), weight=(4, 1, 3, 2), groups=4, stride=(2,), dilation=(1, 2)
    ),
    "depthwise multiplied": Case(x=(2, 3, 6, 5), weight=(6, 1, 2, 3), groups=3),
    "depthwise 1d": Case(x=(2, 4, 9), weight=(4, 1, 4), groups=4, padding=(3,)),
    "transposed": Case(
        x=(2, 3, 4, 5),
        weight=(3, 4, 3, 3),
        transposed=True,
        stride=(2,),
        padding=(1,),
        output_padding=(1, 0),
    ),
    "transposed grouped": Case(
        x=(2, 4, 4, 3), weight=(4, 2, 2, 3), transposed=True, groups=2, dilation=(2, 1)
    ),
    "transposed output padding of a stride": Case(
        x=(2, 2, 4, 4),
        weight=(2, 3, 4, 3),
        transposed=True,
        stride=(3, 2),
        padding=(1, 2),
        output_padding=(2, 3),
        dilation=(4, 4),
    ),
    "transposed 1d": Case(x=(2, 3, 5), weight=(3, 2, 4), transposed=True, stride=(2,)),
    "transposed 3d": Case(
        x=(1, 2, 3, 3, 2), weight=(2, 3, 2, 2, 3), transposed=True, stride=(2,), padding=(1,)
    ),
    "padding beyond the kernel": Case(x=(1, 2, 3, 3), weight=(2, 2, 1, 1), padding=(2,)),
    "no batch": Case(x=(0, 3, 5, 5), weight=(4, 3, 3, 3)),
}


@pytest.mark.parametrize("case", CASES)
def test_convolution_equals_cpu(case: str) -> None:
    c = CASES[case]
    operands = rand(*c.x), rand(*c.weight), rand(c.channels)
    check("aten::convolution", *operands, *c.rest, table=TABLE)


@pytest.mark.parametrize("case", CASES)
def test_convolution_backward_equals_cpu(case: str) -> None:
    c = CASES[case]
    x, weight = rand(*c.x), rand(*c.weight)
    grad = rand(*torch.ops.aten.convolution(x, weight, None, *c.rest).shape)
    arguments = (grad, x, weight, [c.channels], *c.rest, [True, True, True])
    check("aten::convolution_backward", *arguments, table=TABLE)


@pytest.mark.parametrize("case", CASES)
def test_convolution_for_tpus_equals_cpu(case: str) -> None:
    c = CASES[case]
    x, weight = rand(*c.x), rand(*c.weight)
    grad = rand(*torch.ops.aten.convolution(x, weight, None, *c.rest).shape)
    with mxu.for_platform("tpu"):
        check("aten::convolution", x, weight, None, *c.rest, table=TABLE)
        arguments = (grad, x, weight, [c.channels], *c.rest, [True, True, False])
        check("aten::convolution_backward", *arguments, table=TABLE)


@pytest.mark.parametrize(("platform", "whole"), [("tpu", True), ("cpu", False)])
def test_depthwise_convolution_is_one_operation_on_tpus(platform: str, whole: bool) -> None:
    """A TPU's compiler keeps the shifted copies of a sum of products."""
    c = CASES["depthwise"]
    x, weight = (jnp.ones(shape) for shape in (c.x, c.weight))
    geometry = Geometry(stride=(1, 1), padding=((1, 1), (1, 1)), dilation=(1, 1), groups=c.groups)
    with mxu.for_platform(platform):
        made = str(
            jax.make_jaxpr(lambda a, b: convolution_products.forward(a, b, geometry))(x, weight)
        )
    assert ("feature_group_count=4" in made) is whole
    assert ("slice" in made) is not whole


@pytest.mark.parametrize(
    ("weight", "stride", "platform", "by_image"),
    [
        ((64, 64, 3, 3), 1, "tpu", True),
        ((32, 128, 3, 3), 1, "tpu", True),
        ((128, 32, 3, 3), 1, "tpu", False),  # 32 features would waste lanes
        ((64, 64, 3, 3), 2, "tpu", False),
        ((64, 64, 3, 3, 3), 1, "tpu", False),
        ((64, 64, 3, 3), 1, "cpu", False),
    ],
)
def test_weight_gradient_for_tpus_is_made_in_its_weights_order(
    weight: tuple[int, ...], stride: int, platform: str, by_image: bool
) -> None:
    rank = len(weight) - 2
    x = jnp.ones((2, weight[1], *(9,) * rank))
    geometry = Geometry(
        stride=(stride,) * rank, padding=((1, 1),) * rank, dilation=(1,) * rank, groups=1
    )
    grad = jnp.ones((2, weight[0], *(-(-9 // stride),) * rank))
    made = []
    with mxu.for_platform(platform):
        text = jax.make_jaxpr(
            lambda *a: convolution_products.weight_gradient(*a, weight[2:], geometry)
        )
        for equation in text(grad, x).eqns:
            if equation.primitive is jax.lax.conv_general_dilated_p:
                made.append(equation.outvars[0].aval.shape[:2])
    assert made == [weight[:2] if by_image else weight[1::-1]]


@pytest.mark.parametrize("mask", [[True, False, False], [False, True, False]])
def test_convolution_backward_gives_only_what_is_asked_for(mask: list[bool]) -> None:
    c = CASES["2d"]
    x, weight = rand(*c.x), rand(*c.weight)
    grad = rand(*torch.ops.aten.convolution(x, weight, None, *c.rest).shape)
    check("aten::convolution_backward", grad, x, weight, [4], *c.rest, mask, table=TABLE)


def test_convolution_backward_of_the_bias_alone_is_a_sum() -> None:
    c = CASES["2d"]
    x, weight = rand(*c.x), rand(*c.weight)
    grad = rand(*torch.ops.aten.convolution(x, weight, None, *c.rest).shape)
    row = next(r for r in TABLE if r.overload == "aten::convolution_backward")
    actual = lower(row, (grad, x, weight, [4], *c.rest, [False, False, True]), {})
    assert actual[:2] == [None, None]
    assert_close(actual[2], grad.sum((0, 2, 3)))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64], ids=str)
def test_convolution_in_other_dtypes_equals_cpu(dtype: torch.dtype) -> None:
    c = CASES["grouped"]
    operands = (3 * rand(*c.x)).to(dtype), (3 * rand(*c.weight)).to(dtype)
    check("aten::convolution", *operands, None, *c.rest, table=TABLE)


@pytest.mark.parametrize("case", ["2d", "depthwise", "1x1"])
def test_convolution_bfloat16_equals_cpu(case: str) -> None:
    c = CASES[case]
    operands = (rand(*s, dtype=torch.bfloat16).abs() for s in (c.x, c.weight, (c.channels,)))
    check("aten::convolution", *operands, *c.rest, table=TABLE)
