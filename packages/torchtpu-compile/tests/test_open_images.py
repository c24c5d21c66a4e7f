# SPDX-License-Identifier: Apache-2.0
"""Images and sequences whose sizes are open on more than one side: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchtpu_compile import bounded_program, open_composites

#: Sizes of one bucket, and one of the next.
SIZES = (9, 10, 15, 20)


class Case(NamedTuple):
    """A function, what makes its operands of a size, and which of their dimensions are open."""

    function: Callable[..., Any]
    make: Callable[[int], Sequence[Tensor]]
    open_dims: Sequence[Sequence[int]]


def image(n: int) -> Tensor:
    return torch.randn(2, 4, n, n + 3)


def grid(n: int) -> Tensor:
    return torch.rand(2, n, n + 3, 2) * 2.4 - 1.2


def cropped(x: Tensor) -> Tensor:
    """Without the last row and column of odd sizes, as pixels are joined in pairs."""
    return F.pixel_unshuffle(x[..., : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2], 2)


def sampled_by_a_map(x: Tensor, theta: Tensor) -> Tensor:
    return F.grid_sample(x, F.affine_grid(theta, x.shape, align_corners=False), align_corners=False)


def joined_after_transposed_convolution(x: Tensor, w: Tensor) -> Tensor:
    smaller = F.max_pool2d(x, 2)
    larger = F.conv_transpose2d(smaller, w, stride=2)
    return torch.cat([larger, x[:, :, : larger.shape[2], : larger.shape[3]]], 1)


WITH_TARGET = ((), (2, 3)), lambda n: (torch.randn(2, 4, 24, 30), image(n))
BOTH_OPEN = ((2, 3), (2, 3)), lambda n: (torch.randn(2, 4, 2 * n, n + 1), image(n))
SAMPLED = ((2, 3), (1, 2)), lambda n: (image(n), grid(n))
CASES: dict[str, Case] = {
    "averages for places of an open image": Case(
        lambda x, y: F.adaptive_avg_pool2d(x, y.shape[-2:]) * y, WITH_TARGET[1], WITH_TARGET[0]
    ),
    "averages of an open image for those of another": Case(
        lambda x, y: F.adaptive_avg_pool2d(x, (y.shape[2], 4)) * y[..., :4],
        BOTH_OPEN[1],
        BOTH_OPEN[0],
    ),
    "area resizing": Case(
        lambda x: F.interpolate(x, scale_factor=1.5, mode="area"), lambda n: [image(n)], [(2, 3)]
    ),
    "bilinear samples": Case(
        lambda x, g: F.grid_sample(x, g, align_corners=False), SAMPLED[1], SAMPLED[0]
    ),
    "nearest samples, border": Case(
        lambda x, g: F.grid_sample(x, g, "nearest", "border", True), SAMPLED[1], SAMPLED[0]
    ),
    "cubic samples, reflected": Case(
        lambda x, g: F.grid_sample(x, g, "bicubic", "reflection", False), SAMPLED[1], SAMPLED[0]
    ),
    "an affine map": Case(
        sampled_by_a_map, lambda n: (image(n), torch.randn(2, 2, 3)), ((2, 3), ())
    ),
    "cropped to pairs": Case(cropped, lambda n: [image(n)], [(2, 3)]),
    "skip connection": Case(
        joined_after_transposed_convolution,
        lambda n: (image(n), torch.randn(4, 3, 2, 2)),
        ((2, 3), ()),
    ),
    "max_pool1d": Case(
        lambda x: F.max_pool1d(x, 3, 2, 1), lambda n: [torch.randn(2, 3, n)], [(2,)]
    ),
    "kron": Case(torch.kron, lambda n: (torch.randn(n, 3), torch.randn(2)), ((0,), ())),
    "block_diag": Case(
        lambda x, y: torch.block_diag(x, y[0], x),
        lambda n: (torch.randn(n, 3), torch.randn(2, n)),
        ((0,), (1,)),
    ),
    "gradient": Case(
        lambda x: torch.gradient(x, spacing=0.5, dim=-1, edge_order=2)[0],
        lambda n: [torch.randn(3, n)],
        [(1,)],
    ),
    "tensordot": Case(
        lambda x, y: torch.tensordot(x, y, ([1, 2], [0, 1])),
        lambda n: (torch.randn(3, n, 2), torch.randn(n, 2, 4)),
        ((1,), (0,)),
    ),
    "take_along_dim": Case(
        lambda x: torch.take_along_dim(x, x.argsort(0), 0), lambda n: [torch.randn(n, 3)], [(0,)]
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_are_as_on_the_cpu_at_padded_sizes(name: str) -> None:
    case = CASES[name]
    compiled = torch.compile(case.function, backend="tpu", fullgraph=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        torch.manual_seed(n)
        given = [x.requires_grad_() for x in case.make(n)]
        on_device = [x.detach().to("tpu").requires_grad_() for x in given]
        for x, dims in zip(on_device, case.open_dims, strict=True):
            for dim in dims:
                torch._dynamo.mark_dynamic(x, dim)
        expected, actual = case.function(*given), compiled(*on_device)
        slope = torch.randn_like(expected)
        expected.backward(slope)
        actual.backward(slope.to("tpu"))
        pairs = [(actual.detach(), expected.detach())]
        pairs += [(d.grad, x.grad) for d, x in zip(on_device, given, strict=True)]
        for a, e in pairs:
            torch.testing.assert_close(a.cpu(), e, rtol=1e-3, atol=1e-4)
    assert not bounded_program.reasons


#: Pools of maxima, which plain torch.compile splits into ops of Inductor, and their operands.
POOLS: dict[str, tuple[Callable[[Tensor], Any], Callable[[int], Tensor]]] = {
    "2d": (lambda x: F.max_pool2d(x.relu(), (2, 3), (2, 1), 1, ceil_mode=True), image),
    "3d": (
        lambda x: F.max_pool3d(x, 2, 2, ceil_mode=True),
        lambda n: torch.randn(1, 1, n, n + 1, 6),
    ),
    "places": (lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), image),
}


@pytest.mark.parametrize("name", POOLS)
def test_maxima_of_open_images_by_plain_compile_are_those_of_the_cpu(name: str) -> None:
    function, make = POOLS[name]
    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    for n in (9, 10, 20):
        torch.manual_seed(n)
        x = make(n).requires_grad_()
        on_device = x.detach().to("tpu").requires_grad_()
        results = []
        for given, run in ((x, function), (on_device, compiled)):
            found = run(given)
            values, *places = found if isinstance(found, tuple) else (found,)
            values.backward(torch.arange(values.numel()).reshape(values.shape).to(values))
            results.append([y.detach().cpu() for y in (values, *places, given.grad)])
        for a, e in zip(results[1], results[0], strict=True):
            torch.testing.assert_close(a, e)
    assert not bounded_program.reasons


@pytest.mark.parametrize("align", [True, False])
@pytest.mark.parametrize("size", [(2, 3, 4, 5), (2, 3, 4, 5, 6), (2, 3, 1, 4)])
def test_grid_of_an_affine_map_is_that_of_torch(size: tuple[int, ...], align: bool) -> None:
    theta = torch.randn(2, len(size) - 2, len(size) - 1)
    expected = F.affine_grid(theta, size, align_corners=align)
    torch.testing.assert_close(open_composites.affine_grid(theta, size, align), expected)


def test_products_over_pairs_of_dimensions_are_those_of_torch() -> None:
    a, b = torch.randn(2, 3, 4), torch.randn(4, 5, 3)
    for x in (a, a[:, :1], a[..., :1]):
        found = open_composites.tensordot(x, b, [1, -1], [2, 0])
        torch.testing.assert_close(found, torch.tensordot(x, b, ([1, 2], [2, 0])))
    x, y = torch.randn(2, 3), torch.randn(2, 1, 4)
    torch.testing.assert_close(open_composites.kron(x, y), torch.kron(x, y))
    index = torch.randint(0, 3, (1, 5))
    found = open_composites.take_along_dim(x, index, -1)
    torch.testing.assert_close(found, torch.take_along_dim(x, index, -1))
    torch.testing.assert_close(
        open_composites.take_along_dim(x, index), torch.take_along_dim(x, index)
    )


def test_differences_and_blocks_are_those_of_torch() -> None:
    x = torch.randn(4, 5)
    for order in (1, 2):
        for spacing, dim in ((None, None), (2, (1, 0)), ([0.5, 3.0], (0, -1)), (0.5, 1)):
            options = {"spacing": spacing, "dim": dim, "edge_order": order}
            expected = torch.gradient(x, **{k: v for k, v in options.items() if v is not None})
            torch.testing.assert_close(open_composites.gradient(x, **options), list(expected))
    for options in ({"dim": 2}, {"dim": (0, 0)}, {"edge_order": 3}, {"spacing": [1.0]}):
        with pytest.raises(RuntimeError, match=r"torch\.gradient"):
            open_composites.gradient(x, **options)
    with pytest.raises(RuntimeError, match=r"torch\.block_diag"):
        open_composites.block_diag([x, x[None]])
    for blocks in ((x, x[0], x[0, 0]), (x[:, :0], x), (x.long(), x)):
        torch.testing.assert_close(open_composites.block_diag(blocks), torch.block_diag(*blocks))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_large_images_are_smoothed_to_open_sizes_within_memory(mode: str) -> None:
    """A table of every place that an output may need at padded sizes would take 8 GiB and more."""

    def resized(x: Tensor, like: Tensor) -> Tensor:
        return F.interpolate(x, like.shape[-2:], mode=mode, antialias=True)

    compiled = torch.compile(resized, backend="tpu", dynamic=True)
    bounded_program.reasons.clear()
    for size, out in ((380, 600), (400, 30), (200, 590)):
        x = torch.rand(1, 3, size, size, requires_grad=True)
        on_device = x.detach().to("tpu").requires_grad_()
        like = torch.zeros(out, out)
        expected, found = resized(x, like), compiled(on_device, like.to("tpu"))
        torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)
        for result in (expected, found):
            result.square().mean().backward()
        torch.testing.assert_close(on_device.grad.cpu(), x.grad, rtol=1e-4, atol=1e-8)
    assert not bounded_program.reasons


def test_what_is_not_finite_in_an_image_of_open_size_stays_in_its_place() -> None:
    compiled = torch.compile(
        lambda x: F.interpolate(x, (6, 7), mode="bilinear", antialias=True),
        backend="tpu",
        dynamic=True,
    )
    for n in SIZES:
        x = image(n)
        x[0, 0, 1, 1], x[1, 2, -1, -1] = float("nan"), float("inf")
        expected = F.interpolate(x, (6, 7), mode="bilinear", antialias=True)
        torch.testing.assert_close(compiled(x.to("tpu")).cpu(), expected, equal_nan=True)


def test_last_nan_of_a_window_of_open_size_is_its_maximum() -> None:
    def pooled(x: Tensor) -> tuple[Tensor, Tensor]:
        return F.adaptive_max_pool2d(x, (4, 5), return_indices=True)

    compiled = torch.compile(pooled, backend="tpu", dynamic=True)
    for n in SIZES:
        x = image(n).round()
        x[0, 0, 1, 1] = x[0, 0, 1, 2] = x[0, 0, 2, 1] = float("nan")
        for found, expected in zip(compiled(x.to("tpu")), pooled(x), strict=True):
            torch.testing.assert_close(found.cpu(), expected, equal_nan=True)
