# SPDX-License-Identifier: Apache-2.0
"""Layers of images and matrices at open sizes: values and gradients as on the CPU."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves
from torchtpu_compile import bounded_program

SCALE, SHIFT = torch.randn(4), torch.randn(4)
#: Sizes of one bucket.
SIZES = (5, 9, 14)
Make = Callable[[int], Tensor]


def batch(n: int) -> Tensor:
    return torch.randn(n, 4, 7, 8)


def image(n: int) -> Tensor:
    return torch.randn(2, 4, n, n + 1)


def matrix(n: int) -> Tensor:
    return torch.randn(n, n)


def matrices(n: int) -> Tensor:
    return torch.randn(n, 3, 3)


def sequences(n: int) -> Tensor:
    return torch.randn(n, n + 1, 4)


def regular(x: Tensor) -> Tensor:
    """A positive definite matrix."""
    return x @ x.mT + torch.eye(x.shape[-1], device=x.device)


def batch_norm(x: Tensor) -> Any:
    mean, var = (torch.ones(4, device=x.device) * i for i in (1, 2))
    out = F.batch_norm(x, mean, var, SCALE.to(x.device), SHIFT.to(x.device), training=True)
    return out, mean, var


def instance_norm_with_statistics(x: Tensor) -> Any:
    mean, var = (torch.ones(4, device=x.device) * i for i in (1, 2))
    out = F.instance_norm(x, mean, var, SCALE.to(x.device), SHIFT.to(x.device))
    return out, mean, var


def max_pool_of_overlapping_windows(x: Tensor) -> Any:
    return F.max_pool2d(x, 3, 2, 1, return_indices=True)


def average_of_what_is_there(x: Tensor) -> Tensor:
    return F.avg_pool2d(x, 3, 2, 1, count_include_pad=False)


def attention_by_products(x: Tensor) -> Tensor:
    """Two heads of queries share one of keys; the gradients' batches lie in different places."""
    b, t, _ = x.shape
    q = x.view(b, t, 2, 2).transpose(1, 2)
    k = (x * SCALE.to(x.device))[..., :2].view(b, t, 1, 2).transpose(1, 2).repeat_interleave(2, 1)
    return ((q @ k.mT).softmax(-1) @ k).transpose(1, 2).reshape(b, t, 4)


def added_to_products(x: Tensor) -> Tensor:
    """The sum of a product of ``[B*T, 4]`` and a matrix of one factor."""
    flat = x.reshape(-1, 4)
    return torch.addmm(flat.flip(0)[:, :2], flat, flat[:4, :2])


def solve(x: Tensor) -> Tensor:
    return torch.linalg.solve(regular(x), x[:, :2])


def solve_from_the_right(x: Tensor) -> Tensor:
    return torch.linalg.solve(regular(x), x[:2], left=False)


def sampled(x: Tensor) -> Tensor:
    """Each image turned, and resized by a filter that widens with the ratio."""
    turn = torch.tensor([[0.9, 0.2, 0.0], [-0.2, 0.8, 0.1]], device=x.device)
    grid = F.affine_grid(turn.expand(x.shape[0], 2, 3), list(x.shape), align_corners=False)
    turned = F.grid_sample(x, grid * x.mean().exp(), align_corners=False)
    return F.interpolate(turned, (4, 5), mode="bilinear", antialias=True)


def cells(x: Tensor) -> Any:
    """One step of two recurrent cells over a batch."""
    rows, w = x.flatten(1)[:, :3], torch.linspace(-1, 1, 36, device=x.device).view(12, 3)
    b = w[:, 0].clone()
    h, c = torch.lstm_cell(rows, [rows.sin(), rows.cos()], w, w * 0.5, b, b)
    return h, c, torch.gru_cell(rows, h, w[:9], w[:9] * 0.5, b[:9], b[:9])


LAYERS = {
    "post-norm": torch.nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True),
    "pre-norm": torch.nn.TransformerEncoderLayer(
        4, 2, 8, 0.0, F.gelu, batch_first=True, norm_first=True
    ),
    "attention": torch.nn.MultiheadAttention(4, 2, batch_first=True),
}


def evaluated(layers: dict[str, torch.nn.Module], x: Tensor) -> Any:
    """A module whose eval mode has one operator of its own, with a mask of late keys."""
    layer = layers[x.device.type]
    late = torch.arange(x.shape[1], device=x.device).expand(x.shape[:2]) > 2
    if isinstance(layer, torch.nn.MultiheadAttention):
        return layer(x, x, x, key_padding_mask=late), layer(x, x, x, need_weights=False)[0]
    return layer(x, src_key_padding_mask=late), layer(x)


IMAGES = (
    batch_norm,
    lambda x: F.instance_norm(x),
    instance_norm_with_statistics,
    lambda x: F.group_norm(x, 2, SCALE.to(x.device), SHIFT.to(x.device)),
    lambda x: F.max_pool2d(x, 2),
    max_pool_of_overlapping_windows,
    lambda x: F.avg_pool2d(x, 3, 2, 1),
    average_of_what_is_there,
    lambda x: F.adaptive_avg_pool2d(x, 1),
    lambda x: F.adaptive_avg_pool2d(x, (3, 2)),
    lambda x: F.adaptive_max_pool2d(x, (2, 3), return_indices=True),
    lambda x: F.max_pool2d(x, 3, 2, ceil_mode=True, return_indices=True),
    lambda x: F.max_pool2d(x, 2, 3, 1, ceil_mode=True),
    lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True),
    lambda x: F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False),
    lambda x: F.pixel_shuffle(x, 2),
    lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
)
MATRICES = (
    lambda x: torch.linalg.det(regular(x) / x.shape[0]),
    lambda x: torch.linalg.slogdet(regular(x)),
    lambda x: torch.linalg.inv(regular(x)),
    lambda x: torch.linalg.cholesky(regular(x)),
    solve,
    solve_from_the_right,
)
BATCHES = (
    lambda x: torch.linalg.inv(regular(x)),
    lambda x: (torch.linalg.eigvalsh(regular(x)), torch.linalg.svdvals(x)),
)


def check(
    function: Any,
    make: Make,
    open_dims: tuple[int, ...],
    *,
    gradients: bool = True,
    backend: str = "tpu",
) -> None:
    """Values and gradients at each size, at padded sizes."""
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        x = make(n)
        y = x.to("tpu")
        for dim in open_dims:
            torch._dynamo.mark_dynamic(y, dim)
        x.requires_grad_(gradients)
        y.requires_grad_(gradients)
        expected, actual = tree_leaves(function(x)), tree_leaves(compiled(y))
        if gradients:
            slopes = [torch.randn_like(e) for e in expected if e.requires_grad]
            torch.autograd.backward([e for e in expected if e.requires_grad], slopes)
            on_device = [s.to("tpu") for s in slopes]
            torch.autograd.backward([a for a in actual if a.requires_grad], on_device)
            expected.append(x.grad)
            actual.append(y.grad)
        for a, e in zip(actual, expected, strict=True):
            torch.testing.assert_close(a.detach().cpu(), e.detach(), rtol=1e-3, atol=1e-3)
    assert not bounded_program.reasons


@pytest.mark.parametrize("function", IMAGES)
def test_layer_of_images_at_open_batch_sizes_is_as_on_the_cpu(function: Any) -> None:
    check(function, batch, (0,))


@pytest.mark.parametrize("function", IMAGES)
def test_layer_of_images_of_open_size_is_as_on_the_cpu(function: Any) -> None:
    check(function, image, (2, 3))


@pytest.mark.parametrize("function", (sampled, cells))
def test_operators_on_each_member_of_an_open_batch_are_as_on_the_cpu(function: Any) -> None:
    check(function, batch, (0,))


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "tpu") for name in LAYERS), ("pre-norm", "inductor")]
)
def test_fast_paths_of_eval_mode_run_at_padded_sizes(name: str, backend: str) -> None:
    layer = LAYERS[name].eval()
    layers = {"cpu": layer, "tpu": copy.deepcopy(layer).to("tpu")}
    function = functools.partial(evaluated, layers)
    with torch.no_grad():
        check(function, sequences, (0, 1), gradients=False, backend=backend)


@pytest.mark.parametrize("function", (attention_by_products, added_to_products))
def test_products_of_open_batches_and_lengths_are_as_on_the_cpu(function: Any) -> None:
    check(function, sequences, (0, 1))


def test_heads_of_open_number_and_width_joined_for_a_layer_of_fixed_width() -> None:
    weight = torch.randn(32, 32)

    def joined(x: Tensor) -> Tensor:
        return F.linear(x.transpose(1, 2).flatten(2), weight.to(x.device))

    check(joined, lambda n: torch.randn(2, 4, n, 8), (1, 2, 3))


def test_layer_of_fixed_width_on_one_half_of_open_columns() -> None:
    weight = torch.randn(2, 2)

    def coupled(x: Tensor) -> Tensor:
        kept, changed = x.chunk(2, -1)
        return torch.cat([kept, changed * F.linear(kept, weight.to(x.device)).tanh()], -1)

    check(coupled, lambda n: torch.randn(n, 4), (0, 1))


def test_gradient_whose_sizes_are_stated_in_another_way_meets_the_activation() -> None:
    """A layer of fixed width makes the width of its image a quotient of the height."""
    layer = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3, 2, 1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(128, 3)
    )
    own = copy.deepcopy(layer).to("tpu")
    compiled = torch.compile(own, backend="tpu", dynamic=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        x = torch.randn(n, 1, 8, 8)
        layer(x).square().sum().backward()
        compiled(x.to("tpu")).square().sum().backward()
    for p, q in zip(own.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-3, atol=1e-3)
    assert not bounded_program.reasons


NORMS = (
    lambda: torch.nn.InstanceNorm2d(8),
    lambda: torch.nn.BatchNorm2d(8),
    lambda: torch.nn.GroupNorm(2, 8),
    lambda: torch.nn.Softmax(1),
)


@pytest.mark.parametrize("make", NORMS)
def test_gradient_with_other_room_than_the_image_reaches_a_norm(make: Any) -> None:
    """A layer of fixed width makes the image's width a quotient, whose padded size is larger."""
    tail = torch.nn.Flatten(), torch.nn.Linear(128, 3)
    layer = torch.nn.Sequential(torch.nn.Conv2d(1, 8, 4, 2, 1), make(), *tail)
    own = copy.deepcopy(layer).to("tpu")
    compiled = torch.compile(own, backend="tpu", dynamic=True)
    bounded_program.reasons.clear()
    x = torch.randn(3, 1, 8, 8)
    layer(x).square().sum().backward()
    compiled(x.to("tpu")).square().sum().backward()
    for p, q in zip(own.parameters(), layer.parameters(), strict=True):
        torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-3, atol=1e-3)
    assert not bounded_program.reasons


def attention_in_windows(x: Tensor) -> Tensor:
    """Swin's: the number of images is recovered from that of windows through a float."""
    n, c, h, w = x.shape[0], 4, 4, 8
    windows = x[:, :, :h].reshape(n, c, h // 2, 2, w // 2, 2).permute(0, 2, 4, 3, 5, 1)
    rows = windows.reshape(-1, 4, c)
    images = int(rows.shape[0] / (h * w / 4))
    shift = torch.linspace(-1, 1, 32, device=x.device).view(1, 8, 4, 1)
    scores = ((rows @ rows.mT).view(-1, 8, 4, 4) + shift).view(-1, 4, 4)
    return (scores.softmax(-1) @ rows).view(images, h // 2, w // 2, 2, 2, c)


def test_attention_in_windows_of_an_open_number_of_images_is_as_on_the_cpu() -> None:
    check(attention_in_windows, batch, (0,))


def a_mask(b: int, t: int, s: int) -> Tensor:
    return torch.rand(t, s) > 0.2


def a_bias(b: int, t: int, s: int) -> Tensor:
    return torch.randn(t, s)


def a_row_of_each_sequence(b: int, t: int, s: int) -> Tensor:
    return torch.randn(b, 1, 1, s)


@pytest.mark.parametrize("make", (a_mask, a_bias, a_row_of_each_sequence))
def test_attention_whose_lengths_no_guard_relates_is_as_on_the_cpu(make: Any) -> None:
    def attend(operands: list[Tensor]) -> Tensor:
        return F.scaled_dot_product_attention(*operands)

    compiled = torch.compile(attend, backend="tpu", dynamic=True)
    bounded_program.reasons.clear()
    for b, t, s in ((2, 3, 5), (2, 9, 21), (3, 4, 9)):
        shapes = ((b, 2, t, 8), (b, 2, s, 8), (b, 2, s, 8))
        on_cpu = [*(torch.randn(shape) for shape in shapes), make(b, t, s)]
        on_tpu = [x.to("tpu").requires_grad_(x.is_floating_point()) for x in on_cpu]
        [x.requires_grad_(x.is_floating_point()) for x in on_cpu]
        expected, actual = attend(on_cpu), compiled(on_tpu)
        slope = torch.randn_like(expected)
        expected.backward(slope)
        actual.backward(slope.to("tpu"))
        pairs = [(a.grad, e.grad) for a, e in zip(on_tpu, on_cpu, strict=True) if e.requires_grad]
        for a, e in ((actual, expected), *pairs):
            torch.testing.assert_close(a.cpu(), e, rtol=1e-3, atol=1e-3)
    assert not bounded_program.reasons


@pytest.mark.parametrize("function", MATRICES)
def test_linear_algebra_of_matrices_of_open_size_is_as_on_the_cpu(function: Any) -> None:
    check(function, matrix, (0, 1), gradients=False)


@pytest.mark.parametrize("function", BATCHES)
def test_linear_algebra_of_open_batches_is_as_on_the_cpu(function: Any) -> None:
    check(function, matrices, (0,), gradients=False)


def test_smoothed_resizing_of_images_of_open_size_is_as_on_the_cpu() -> None:
    def resized(x: Tensor) -> Tensor:
        return F.interpolate(x, (4, 5), mode="bilinear", antialias=True)

    compiled = torch.compile(resized, backend="tpu", dynamic=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        x = image(n).requires_grad_()
        on_device = x.detach().to("tpu").requires_grad_()
        found, expected = compiled(on_device), resized(x)
        torch.testing.assert_close(found.cpu(), expected)
        found.sin().sum().backward()
        expected.sin().sum().backward()
        torch.testing.assert_close(on_device.grad.cpu(), x.grad, rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons


def weighted(n: int, *shapes: tuple[int, ...]) -> list[Tensor]:
    return [torch.randn(2, n, 6), *(torch.randn(shape) for shape in shapes)]


#: Functions of an input and its parameters, all of open size, and what makes the operands.
PARAMETERS: dict[str, tuple[Callable[..., Tensor], Callable[[int], list[Tensor]]]] = {
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
        lambda n: weighted(n, (n, 6), (n, 6)),
    ),
    "group norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        lambda n: weighted(2 * n, (2 * n,), (2 * n,)),
    ),
    "convolution in groups": (
        lambda x, w: F.conv1d(x, w, groups=2),
        lambda n: weighted(2 * n, (4, n, 3)),
    ),
    "transposed convolution in groups": (
        lambda x, w: F.conv_transpose1d(x, w, stride=3, output_padding=2, groups=2),
        lambda n: weighted(4, (4, n, 3)),
    ),
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_that_are_operands_of_open_size(name: str) -> None:
    function, make = PARAMETERS[name]
    compiled = torch.compile(function, backend="tpu", dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    for n in (5, 7):
        operands = [x.requires_grad_() for x in make(n)]
        on_device = [x.detach().to("tpu").requires_grad_() for x in operands]
        expected, actual = function(*operands), compiled(*on_device)
        slope = torch.randn_like(expected)
        expected.backward(slope)
        actual.backward(slope.to("tpu"))
        pairs = [(actual.detach(), expected.detach())]
        pairs += [(d.grad, x.grad) for d, x in zip(on_device, operands, strict=True)]
        for a, e in pairs:
            torch.testing.assert_close(a.cpu(), e, rtol=1e-3, atol=1e-3)
    assert bool(bounded_program.reasons) == ("convolution" in name)


def test_attention_whose_heads_share_keys_is_as_on_the_cpu() -> None:
    """All sizes are open, the numbers of heads too."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    compiled = torch.compile(attend, backend="tpu", dynamic=True)
    bounded_program.reasons.clear()
    for b, heads, own, t in ((2, 6, 2, 7), (3, 6, 2, 21), (2, 8, 4, 9)):
        case = torch.randn(b, heads, t, 4), torch.randn(b, own, t, 4), torch.randn(b, own, t, 4)
        found = []
        for device, function in (("cpu", attend), ("tpu", compiled)):
            leaves = [x.to(device).detach().requires_grad_() for x in case]
            out = function(*leaves)
            found.append([out, *torch.autograd.grad(out.square().sum(), leaves)])
        torch.testing.assert_close([x.cpu() for x in found[1]], found[0], rtol=1e-4, atol=1e-5)
    assert not bounded_program.reasons
