# SPDX-License-Identifier: Apache-2.0
"""Calls that PyTorch's meta kernels let through are refused as CPU refuses them."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.nn import functional

ONES = torch.ones
WHOLE = torch.int64

#: A call and the operands that it must refuse.
MISTAKES: dict[str, tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]] = {
    "addbmm, integer batch": (
        torch.addbmm,
        (ONES(2, 4), ONES(5, 2, 3, dtype=WHOLE), ONES(5, 3, 4)),
    ),
    "cross, integer operand": (torch.linalg.cross, (ONES(5, 3), ONES(5, 3, dtype=WHOLE))),
    "heaviside, integer values": (torch.heaviside, (ONES(3), ONES(3, dtype=WHOLE))),
    "diagonal_scatter, source too long": (torch.diagonal_scatter, (ONES(3, 5), ONES(6))),
    "diagonal_scatter, one dimension": (torch.diagonal_scatter, (ONES(3), ONES(3))),
    "softmax gradient, integers": (
        partial(torch.ops.aten._softmax_backward_data, dim=1, input_dtype=WHOLE),
        (ONES(2, 2, dtype=WHOLE), ONES(2, 2, dtype=WHOLE)),
    ),
    "batch norm, complex": (
        lambda x: torch.native_batch_norm(x, None, None, None, None, True, 0.1, 1e-5),
        (ONES(2, 2, 2, dtype=torch.complex64),),
    ),
    "group norm, complex": (
        lambda x: torch.native_group_norm(x, None, None, 2, 2, 2, 1, 1e-5),
        (ONES(2, 2, 2, dtype=torch.complex64),),
    ),
    "bounds of a list, complex": (lambda x: torch._foreach_clamp_min([x], 1j), (ONES(3),)),
    "maximum of a list, complex": (lambda x: torch._foreach_maximum([x], [1j]), (ONES(3),)),
    "bernoulli, integers": (torch.bernoulli, (ONES(3, dtype=WHOLE),)),
    "normal, integer out": (
        lambda mean, std, out: torch.normal(mean, std, out=out),
        (ONES(3), ONES(3), ONES(3, dtype=torch.int8)),
    ),
    "rand, integer out": (lambda out: torch.rand(3, out=out), (ONES(3, dtype=torch.int8),)),
    **{
        f"randperm, {n} in {dtype}": (
            lambda out: torch.randperm(out.numel(), out=out),
            (torch.empty(n, dtype=dtype),),
        )
        for n, dtype in ((257, torch.uint8), (129, torch.int8), (2050, torch.float16))
    },
    **{
        f"{mode} of integers": (
            partial(functional.interpolate, size=3, mode=mode),
            (ONES((1, 4, *[4] * ndim), dtype=WHOLE),),
        )
        for mode, ndim in (("linear", 1), ("bilinear", 2), ("bicubic", 2), ("trilinear", 3))
    },
    "as_strided_copy, integer out": (
        lambda x, out: torch.as_strided_copy(x, [2], [1], out=out),
        (ONES(3), ONES(2, dtype=torch.int8)),
    ),
    "neg, out of another dtype": (
        lambda x, out: torch.neg(x, out=out),
        (ONES(3, dtype=WHOLE), ONES(3)),
    ),
    "round, out of another dtype": (
        lambda x, out: torch.round(x, out=out),
        (ONES(3), ONES(3, dtype=torch.float64)),
    ),
    "mul_, float factor of integers": (lambda x: x.mul_(2.5), (ONES(3, dtype=WHOLE),)),
    "mul_, integer factor of bools": (lambda x: x.mul_(2), (ONES(3, dtype=torch.bool),)),
    "add_, complex summand": (lambda x: x.add_(1j), (ONES(3),)),
    "mul_, float tensor": (torch.Tensor.mul_, (ONES(3, dtype=WHOLE), ONES(3))),
    "atan2, complex": (torch.atan2, (ONES(3, dtype=torch.complex64), ONES(3))),
    "nonzero, float out": (lambda x, out: torch.nonzero(x, out=out), (ONES(3), ONES(0))),
    "angle, integer out": (
        lambda x, out: torch.angle(x, out=out),
        (ONES(3), ONES(3, dtype=WHOLE)),
    ),
    "floor, complex": (torch.floor, (ONES(3, dtype=torch.complex64),)),
    "trunc_, complex": (torch.trunc_, (ONES(3, dtype=torch.complex64),)),
    "round, complex": (torch.round, (ONES(3, dtype=torch.complex64),)),
    "signbit, complex": (torch.signbit, (ONES(3, dtype=torch.complex64),)),
    "frac, integers": (torch.frac, (ONES(3, dtype=WHOLE),)),
    "bitwise_not, floats": (torch.bitwise_not, (ONES(3),)),
    "conv1d, bias of another length": (torch.conv1d, (ONES(1, 4, 9), ONES(8, 4, 3), ONES(5))),
    "conv2d, bias of one": (torch.conv2d, (ONES(1, 4, 9, 9), ONES(8, 4, 3, 3), ONES(1))),
    "conv_transpose1d, channels": (torch.conv_transpose1d, (ONES(1, 4, 9), ONES(8, 4, 3))),
    "conv_transpose1d, groups": (
        partial(torch.conv_transpose1d, groups=3),
        (ONES(1, 8, 9), ONES(8, 4, 3)),
    ),
    "conv_transpose1d, bias": (
        torch.conv_transpose1d,
        (ONES(1, 8, 9), ONES(8, 4, 3), ONES(5)),
    ),
    "conv_transpose1d, weight of two dimensions": (
        torch.conv_transpose1d,
        (ONES(1, 8, 9), ONES(8, 4, 3, 3)),
    ),
    "histogramdd, one dimension": (partial(torch.histogramdd, bins=[2]), (ONES(3),)),
    "histogramdd, no bins": (partial(torch.histogramdd, bins=[0]), (ONES(3, 1),)),
    "histogramdd, integers": (partial(torch.histogramdd, bins=[2]), (ONES(3, 1, dtype=WHOLE),)),
    "put, another dtype": (
        lambda x, i, y: x.put_(i, y),
        (ONES(3), ONES(1, dtype=WHOLE), ONES(1, dtype=WHOLE)),
    ),
    "index_fill, float index": (lambda x, i: x.index_fill_(0, i, 1), (ONES(3), ONES(1))),
    "masked_fill, integer mask": (
        lambda x, mask: x.masked_fill(mask, 1),
        (ONES(3), ONES(3, dtype=WHOLE)),
    ),
    "sub, mask and number": (lambda x: x - 1, (ONES(3) > 0,)),
    "sub, number and mask": (lambda x: 1 - x, (ONES(3) > 0,)),
    "add, factor not whole": (
        partial(torch.add, alpha=1.1),
        (ONES(3, dtype=WHOLE), ONES(3, dtype=WHOLE)),
    ),
    "sub, two masks": (torch.sub, (ONES(3) > 0, ONES(3) > 0)),
    "_foreach_sub, number that is a bool": (lambda x: torch._foreach_sub([x], True), (ONES(3),)),
    "_foreach_sub, list of masks": (
        lambda x, y: torch._foreach_sub([x], [y]),
        (ONES(3), ONES(3) > 0),
    ),
    "_foreach_norm, whole": (lambda x: torch._foreach_norm([x]), (ONES(3, dtype=WHOLE),)),
    "conv1d, weight of no channels out": (functional.conv1d, (ONES(2, 6, 5), ONES(0, 6, 3))),
    "conv_transpose2d, weight of no channels": (
        functional.conv_transpose2d,
        (ONES(1, 0, 2, 2), ONES(0, 4, 1, 1)),
    ),
    "sign, complex": (torch.sign, (ONES(3, dtype=torch.complex64),)),
    "all, float out": (lambda x, out: torch.all(x, 0, out=out), (ONES(3), ONES(()))),
    "grid_sample, grid of another dtype": (
        functional.grid_sample,
        (ONES(1, 1, 3, 3), ONES(1, 2, 2, 2, dtype=torch.float64)),
    ),
    "cross_entropy, weights of another dtype": (
        functional.cross_entropy,
        (ONES(2, 3), ONES(2, dtype=WHOLE), ONES(3, dtype=torch.float64)),
    ),
    "index_reduce, source of another dtype": (
        lambda x, i, y: torch.index_reduce(x, 0, i, y, "mean"),
        (ONES(3), ONES(1, dtype=WHOLE), ONES(1, dtype=torch.float64)),
    ),
    "histogram, edges of another dtype": (
        torch.histogram,
        (ONES(3), torch.linspace(0, 1, 3, dtype=torch.float64)),
    ),
    "renorm, negative norm": (partial(torch.renorm, p=2, dim=0, maxnorm=-1.0), (ONES(2, 2),)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_raises_cpus_class_and_words(name: str) -> None:
    function, operands = MISTAKES[name]
    with pytest.raises(Exception) as expected:
        function(*operands)
    with pytest.raises(type(expected.value)) as raised:
        function(*(operand.to("tpu") for operand in operands))
    assert str(raised.value).startswith(str(expected.value).split("(")[0][:40])


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32")])
@pytest.mark.parametrize("layer", [functional.conv2d, functional.conv_transpose2d])
def test_convolution_of_mixed_dtypes_is_refused_in_the_words_of_this_cpu(layer, dtypes) -> None:
    image, kernel = (torch.ones(1, 1, 4, 4, dtype=getattr(torch, d)) for d in dtypes)
    with pytest.raises(RuntimeError) as expected:  # by its instructions for 16 bits
        layer(image, kernel)
    with pytest.raises(RuntimeError, match=re.escape(str(expected.value))):
        layer(image.to("tpu"), kernel.to("tpu"))
    # CPUs without such instructions take the other bias of a transposed one
    with pytest.raises(RuntimeError, match=r"Input type \(.*\) and bias type .* be the same"):
        layer(image.to("tpu"), image.to("tpu"), torch.ones(1, device="tpu", dtype=kernel.dtype))


def test_factors_of_a_bag_have_the_dtype_of_its_table() -> None:
    rows, starts = torch.tensor([0, 1], device="tpu"), torch.tensor([0], device="tpu")
    table, factors = torch.ones(3, 4, device="tpu"), torch.ones(2, device="tpu").double()
    with pytest.raises(RuntimeError, match=r"'weight' .* 'per_sample_weights'"):
        functional.embedding_bag(rows, table, starts, mode="sum", per_sample_weights=factors)


def test_tensors_of_two_dtypes_are_compared_as_on_cpu() -> None:
    for other in (ONES(3).bfloat16(), ONES(3, dtype=WHOLE), torch.zeros(3, dtype=WHOLE)):
        assert torch.equal(ONES(3).to("tpu"), other.to("tpu")) is torch.equal(ONES(3), other)


def test_bernoulli_out_takes_any_dtype() -> None:
    out = torch.zeros(3, dtype=torch.int8, device="tpu")
    assert torch.bernoulli(ONES(3, device="tpu"), out=out).tolist() == [1, 1, 1]


def test_comparing_float16_with_complex_numbers_equals_cpu() -> None:
    half = torch.tensor([1.0, 0.0], dtype=torch.float16)
    for other in (1j, 1 + 0j, torch.tensor([1j, 0])):
        on_tpu = other.to("tpu") if isinstance(other, torch.Tensor) else other
        assert half.to("tpu").eq(on_tpu).tolist() == half.eq(other).tolist()


def test_a_complex32_result_is_refused_with_the_way_out() -> None:
    half = torch.ones(2, dtype=torch.float16, device="tpu")
    with pytest.raises(RuntimeError, match=r"complex32.*float32 first"):
        half * 1j
