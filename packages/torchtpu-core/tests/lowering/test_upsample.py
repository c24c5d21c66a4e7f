# SPDX-License-Identifier: Apache-2.0
"""Interpolation, grid sampling and block rearrangements against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering import folding, grid_sampler, upsample
from torchtpu_core.testing.lowering import check, lower

TABLE = (*upsample.TABLE, *grid_sampler.TABLE, *folding.TABLE)
_GENERATOR = torch.Generator().manual_seed(0)
NAN = float("nan")


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR).to(dtype)


NEAREST = [
    f"aten::{kind}{n}d"
    for kind in ("upsample_nearest", "_upsample_nearest_exact")
    for n in (1, 2, 3)
]
ALIGNED = [
    "aten::upsample_linear1d",
    "aten::upsample_bilinear2d",
    "aten::upsample_trilinear3d",
    "aten::upsample_bicubic2d",
    "aten::_upsample_bilinear2d_aa",
    "aten::_upsample_bicubic2d_aa",
    "aten::_upsample_lanczos2d_aa",
]
SIZES = (4, 5, 3)
#: Output sizes: whole multiples, odd ones up, odd ones down.
OUTPUTS = [(8, 10, 9), (7, 6, 10), (3, 2, 2)]


def spatial(overload: str) -> int:
    return int(next(c for c in overload if c.isdigit()))


def both_ways(overload: str, out: tuple[int, ...], *rest: Any) -> None:
    n = spatial(overload)
    x, outs = rand(2, 3, *SIZES[:n]), list(out[:n])
    check(overload, x, outs, *rest, table=TABLE)
    grad = rand(2, 3, *outs)
    check(f"{overload}_backward", grad, outs, list(x.shape), *rest, table=TABLE)


@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize("overload", NEAREST)
def test_nearest_equals_cpu(overload: str, out: tuple[int, ...]) -> None:
    both_ways(overload, out)


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("out", OUTPUTS)
@pytest.mark.parametrize("overload", ALIGNED)
def test_interpolation_equals_cpu(overload: str, out: tuple[int, ...], align: bool) -> None:
    both_ways(overload, out, align)


@pytest.mark.parametrize(
    "overload", ["aten::upsample_nearest2d", "aten::_upsample_nearest_exact2d"]
)
def test_nearest_with_given_scales_equals_cpu(overload: str) -> None:
    both_ways(overload, (6, 7), 1.7, 1.4)


@pytest.mark.parametrize("overload", [o for o in ALIGNED if spatial(o) == 2])
def test_interpolation_with_given_scales_equals_cpu(overload: str) -> None:
    both_ways(overload, (6, 7), False, 1.7, 1.4)


def test_interpolation_keeps_a_nan_where_it_is() -> None:
    x = rand(1, 1, 4, 4)
    x[0, 0, 1, 1] = NAN
    check("aten::upsample_nearest2d", x, [8, 6], table=TABLE)
    check("aten::upsample_bilinear2d", x, [7, 7], False, table=TABLE)
    check("aten::_upsample_bilinear2d_aa", x, [7, 3], False, table=TABLE)


@pytest.mark.parametrize("overload", ["aten::upsample_nearest2d", "aten::upsample_bilinear2d"])
def test_interpolation_of_bytes_equals_cpu(overload: str) -> None:
    x = torch.randint(0, 256, (2, 3, 9, 8), generator=_GENERATOR, dtype=torch.uint8)
    rest = (False,) if "bilinear" in overload else ()
    check(overload, x, [5, 12], *rest, table=TABLE)


@pytest.mark.parametrize("size", [(23, 29), (9, 7), (3, 40)])
@pytest.mark.parametrize("aligned", [False, True])
def test_cubic_interpolation_of_bytes_equals_cpu_to_the_last_one(size, aligned) -> None:
    x = torch.randint(0, 256, (2, 3, 16, 20), generator=_GENERATOR, dtype=torch.uint8)
    row = next(r for r in TABLE if r.overload == "aten::upsample_bicubic2d")
    exact = torch.ops.aten.upsample_bicubic2d(x, size, aligned)
    assert torch.equal(lower(row, (x, list(size), aligned), {}), exact)


def test_interpolation_bfloat16_computes_in_float32() -> None:
    x = rand(1, 2, 4, 5, dtype=torch.bfloat16)
    row = next(r for r in TABLE if r.overload == "aten::upsample_bicubic2d")
    exact = torch.ops.aten.upsample_bicubic2d(x.float(), [7, 6], False).bfloat16()
    torch.testing.assert_close(lower(row, (x, [7, 6], False), {}), exact)


MODES = [(i, p, a) for i in (0, 1, 2) for p in (0, 1, 2) for a in (True, False)]


@pytest.mark.parametrize(("interpolation", "padding", "align"), MODES)
def test_grid_sampler_2d_equals_cpu(interpolation: int, padding: int, align: bool) -> None:
    x, grid = rand(2, 3, 5, 4), 1.5 * rand(2, 3, 6, 2)
    rest = (interpolation, padding, align)
    check("aten::grid_sampler_2d", x, grid, *rest, table=TABLE)
    # A grid's gradient cancels over many terms: in float32 CPU's own is off by up to 1.4e-5.
    doubles = [value.double() for value in (rand(2, 3, 3, 6), x, grid)]
    arguments = (*doubles, *rest, [True, True])
    check("aten::grid_sampler_2d_backward", *arguments, table=TABLE)


@pytest.mark.parametrize(("interpolation", "padding"), [(0, 0), (0, 2), (1, 1)])
def test_grid_sampler_3d_equals_cpu(interpolation: int, padding: int) -> None:
    x, grid = rand(2, 2, 3, 4, 5), rand(2, 2, 3, 2, 3)
    rest = (interpolation, padding, False)
    check("aten::grid_sampler_3d", x, grid, *rest, table=TABLE)
    arguments = (rand(2, 2, 2, 3, 2), x, grid, *rest, [True, True])
    check("aten::grid_sampler_3d_backward", *arguments, table=TABLE)


@pytest.mark.parametrize("align", [True, False])
def test_affine_grid_equals_cpu(align: bool) -> None:
    check("aten::affine_grid_generator", rand(2, 2, 3), [2, 3, 4, 5], align, table=TABLE)
    check("aten::affine_grid_generator", rand(2, 3, 4), [2, 3, 2, 1, 4], align, table=TABLE)


BLOCKS = [
    ([2, 3], [1, 1], [0, 0], [1, 1]),
    ([2, 2], [1, 2], [1, 0], [2, 1]),
    ([3, 3], [1, 1], [1, 1], [2, 2]),
]


@pytest.mark.parametrize("geometry", BLOCKS)
@pytest.mark.parametrize("lead", [(), (2,)])
def test_im2col_and_col2im_equal_cpu(
    geometry: tuple[list[int], ...], lead: tuple[int, ...]
) -> None:
    x = rand(*lead, 3, 6, 7)
    check("aten::im2col", x, *geometry, table=TABLE)
    columns = torch.ops.aten.im2col(x, *geometry)
    check("aten::col2im", rand(*columns.shape), [6, 7], *geometry, table=TABLE)


def test_shuffles_equal_cpu() -> None:
    check("aten::pixel_shuffle", rand(2, 8, 3, 4), 2, table=TABLE)
    check("aten::pixel_shuffle", rand(9, 2, 1), 3, table=TABLE)
    check("aten::pixel_unshuffle", rand(2, 2, 6, 4), 2, table=TABLE)
    check("aten::channel_shuffle", rand(2, 6, 3), 3, table=TABLE)
