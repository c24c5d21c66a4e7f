# SPDX-License-Identifier: Apache-2.0
"""Layouts of results: strides of values and gradients are those of the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

Function = Callable[..., torch.Tensor]
IMAGE, VOLUME = torch.channels_last, torch.channels_last_3d
DRAWS = torch.Generator().manual_seed(0)


def _filled(*shape: int, layout: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    made = torch.empty(shape).uniform_(-1, 1, generator=DRAWS)
    return made.to(memory_format=layout)


X = _filled(2, 4, 8, 6, layout=IMAGE)
X3 = _filled(2, 4, 4, 8, 6, layout=VOLUME)

#: A function and its operands, on the CPU.
CASES: dict[str, tuple[Function, tuple[torch.Tensor, ...]]] = {
    "conv2d": (F.conv2d, (X, _filled(5, 4, 3, 3))),
    "conv2d, weight alone": (F.conv2d, (X.contiguous(), _filled(5, 4, 3, 3, layout=IMAGE))),
    "conv2d, neither": (F.conv2d, (X.contiguous(), _filled(5, 4, 3, 3))),
    "conv2d, one channel": (F.conv2d, (_filled(2, 1, 8, 6, layout=IMAGE), _filled(5, 1, 3, 3))),
    "conv2d, unbatched": (F.conv2d, (X[0], _filled(5, 4, 3, 3))),
    "conv3d": (F.conv3d, (X3, _filled(5, 4, 3, 3, 3))),
    "conv_transpose2d": (F.conv_transpose2d, (X, _filled(4, 5, 3, 3))),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), (X,)),
    "group_norm": (lambda x: F.group_norm(x, 2), (X,)),
    "logsigmoid": (F.logsigmoid, (X,)),
    "power of a number": (lambda x: 2**x, (X,)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (X,)),
    "max_unpool2d": (lambda x: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2), (X,)),
    "max_pool3d": (lambda x: F.max_pool3d(x, 2), (X3,)),
    "max_pool3d, unbatched": (lambda x: F.max_pool3d(x, 2), (X3[0],)),
    "max_pool3d, contiguous": (lambda x: F.max_pool3d(x, 2), (X3[0].contiguous(),)),
    "avg_pool3d": (lambda x: F.avg_pool3d(x, 2), (X3,)),
    "adaptive_avg_pool2d": (lambda x: F.adaptive_avg_pool2d(x, 1), (X,)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (X,)),
    "pad, reflect": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), (X,)),
    "pad, replicate": (lambda x: F.pad(x, (1,) * 6, mode="replicate"), (X3,)),
    "pad, zeros": (lambda x: F.pad(x, (1, 1, 1, 1)), (X,)),
    "pixel_shuffle": (lambda x: F.pixel_shuffle(x, 2), (X,)),
    "channel_shuffle": (lambda x: F.channel_shuffle(x, 2), (X,)),
    "roll": (lambda x: x.roll(1, 2), (X,)),
    "rrelu": (lambda x: F.rrelu(x, training=True), (X,)),
    "elementwise": (lambda x, y: torch.relu(x * 2 + y).sigmoid(), (X, _filled(2, 4, 8, 6))),
    "cat": (lambda x: torch.cat([x, x], 1), (X,)),
}


@pytest.mark.parametrize("name", CASES)
def test_layout_of_result_and_gradients_equals_cpus(name: str) -> None:
    function, operands = CASES[name]

    def layouts(device: str) -> list[tuple[torch.Size, tuple[int, ...]]]:
        leaves = [operand.to(device).detach().requires_grad_() for operand in operands]
        result = function(*leaves)
        result.sum().backward()
        return [(t.shape, t.stride()) for t in (result, *(leaf.grad for leaf in leaves))]

    assert layouts("tpu") == layouts("cpu")


@pytest.mark.parametrize(
    "function",
    [
        torch.copysign,
        torch.floor_divide,
        torch.xlogy,
        torch.special.xlog1py,
        lambda x, y: torch.div(x, y, rounding_mode="floor"),
        lambda x, y: F.binary_cross_entropy(x, y, reduction="none"),
    ],
)
def test_result_of_two_layouts_follows_the_first_as_on_cpu(function: Function) -> None:
    pair = X.abs(), X.abs().contiguous()
    for operands in (pair, pair[::-1]):
        found, expected = (function(*(t.to(device) for t in operands)) for device in ("tpu", "cpu"))
        assert found.stride() == expected.stride()
        assert found.dtype == expected.dtype


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_of_turned_input_and_its_gradient_are_contiguous_as_on_cpu(
    training: bool,
) -> None:
    statistics = torch.zeros(8), torch.ones(8)

    def strides(device: str) -> list[tuple[int, ...]]:
        x = X[0, 0].to(device).detach().t().requires_grad_()
        result = F.batch_norm(x, *(t.to(device) for t in statistics), training=training)
        return [t.stride() for t in (result, *torch.autograd.grad(result.sum(), x))]

    assert strides("tpu") == strides("cpu")


def test_membership_is_laid_out_as_on_cpu() -> None:
    turned = torch.arange(6).view(2, 3).t()
    for pair in ((turned, torch.arange(3)), (turned, 1)):
        found = torch.isin(*(t.to("tpu") if isinstance(t, torch.Tensor) else t for t in pair))
        assert found.stride() == torch.isin(*pair).stride()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.glu(x, 1),
        lambda x: F.huber_loss(x, x.detach() + 1),
        lambda x: F.mse_loss(x, x.detach() + 1),
        lambda x: F.smooth_l1_loss(x, x.detach() + 1),
    ],
)
def test_gradient_that_the_cpu_makes_contiguous_is_so_inside_the_graph(function: Function) -> None:
    """A leaf's `.grad` would be laid out as the leaf; hooks and `autograd.grad` see this one."""

    def strides(device: str) -> tuple[int, ...]:
        leaf = X.to(device).detach().requires_grad_()
        return torch.autograd.grad(function(leaf).sum(), leaf)[0].stride()

    assert strides("tpu") == strides("cpu")


@pytest.mark.parametrize("mode", ["reflect", "replicate"])
@pytest.mark.parametrize(
    "x",
    [X, X.contiguous(), X[0], X3, X3[0], X3[0].to(memory_format=IMAGE)],
    ids=["image", "contiguous", "one image", "volume", "one volume", "one volume, slices last"],
)
def test_gradient_of_padding_is_laid_out_as_cpus(x: torch.Tensor, mode: str) -> None:
    """Before it is accumulated, which gives it the layout of its leaf."""
    sides = (1, 2) * (3 if x.ndim == 5 or x.shape == X3[0].shape else 2)
    found = []
    for device in ("tpu", "cpu"):
        leaf = x.to(device).detach().requires_grad_()
        padded = F.pad(leaf, sides, mode=mode)
        found.append(torch.autograd.grad(padded, leaf, torch.ones_like(padded))[0])
    assert found[0].stride() == found[1].stride()
    torch.testing.assert_close(found[0].cpu(), found[1])


def test_convolution_of_channels_last_input_has_cpus_values() -> None:
    weight = _filled(5, 4, 3, 3)
    result = F.conv2d(X.to("tpu"), weight.to("tpu"))
    torch.testing.assert_close(result.cpu(), F.conv2d(X, weight))


@pytest.mark.parametrize("x", [X, X3, X.contiguous()], ids=["image", "volume", "contiguous"])
def test_synchronised_batch_norm_keeps_the_layout(x: torch.Tensor) -> None:
    x, of_channels = x.to("tpu"), torch.rand(4, device="tpu")
    result = torch.batch_norm_elemt(x, None, None, of_channels, of_channels, 1e-5)
    gradient = torch.batch_norm_backward_elemt(
        result, x, of_channels, of_channels, None, of_channels, of_channels, of_channels.int()
    )
    assert result.stride() == gradient.stride() == x.stride()


def test_padding_with_wrong_size_raises_cpus_error() -> None:
    with pytest.raises(RuntimeError, match="Padding size should be less than"):
        F.pad(X.to("tpu"), (9, 9, 1, 1), mode="reflect")
