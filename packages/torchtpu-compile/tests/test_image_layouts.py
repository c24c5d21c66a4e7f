# SPDX-License-Identifier: Apache-2.0
"""Compiled code returns images whose channels are last as CPU eager mode does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_map

_WEIGHT = torch.randn(6, 4, 3, 3)


def _convolved(x: Tensor, weight: Tensor) -> Tensor:
    return F.relu(F.conv2d(x, weight, padding=1))


def _strides(function: Callable[..., Tensor], device: str, last: tuple[bool, bool]) -> object:
    """Strides of a result and of the gradients of an image and a weight."""
    operands = []
    for source, is_last in zip((torch.ones(2, 4, 6, 5), _WEIGHT), last, strict=True):
        layout = torch.channels_last if is_last else torch.contiguous_format
        operands.append(source.to(device).to(memory_format=layout).requires_grad_())
    result = function(*operands)
    gradients = torch.autograd.grad(result, operands, torch.ones_like(result), allow_unused=True)
    return tree_map(lambda t: t.stride(), (result, gradients))


@pytest.mark.parametrize("last", [(True, False), (False, True), (False, False)])
def test_convolution_and_its_gradients_are_laid_out_as_on_the_cpu(last) -> None:
    compiled = torch.compile(_convolved, backend="tpu")
    assert _strides(compiled, "tpu", last) == _strides(_convolved, "cpu", last)


def test_convolution_of_open_sizes_is_laid_out_as_on_the_cpu() -> None:
    compiled = torch.compile(lambda x: _convolved(x, _WEIGHT.to(x.device)), backend="tpu")
    for batch in (2, 3, 5):
        x = torch.ones(batch, 4, 6, 5).to(memory_format=torch.channels_last)
        assert compiled(x.to("tpu")).stride() == _convolved(x, _WEIGHT).stride()


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pixel_shuffle(x, 2),
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: x.roll(1, 2),
        lambda x: 2**x,
        lambda x: torch.isin(x, torch.ones(2, device=x.device)),
        F.rrelu,
    ],
)
def test_other_results_of_images_are_laid_out_as_on_the_cpu(function) -> None:
    x = torch.ones(2, 4, 6, 5).to(memory_format=torch.channels_last)
    found = torch.compile(function, backend="tpu")(x.to("tpu"))
    assert found.stride() == function(x).stride()


@pytest.mark.parametrize("dynamic", [False, True])
def test_batch_norm_of_turned_input_and_its_gradient_are_contiguous_as_on_the_cpu(
    dynamic: bool,
) -> None:
    def normal(x: Tensor) -> Tensor:
        return F.batch_norm(x, None, None, training=True)

    compiled = torch.compile(normal, backend="tpu", dynamic=dynamic)
    for batch in (3, 5):
        pair = []
        for function, device in ((compiled, "tpu"), (normal, "cpu")):
            x = (_WEIGHT[0].flatten()[: 4 * batch].view(4, batch).to(device)).t().requires_grad_()
            y = function(x)
            pair.append((y, *torch.autograd.grad(y, x, y.detach().cos())))
        for found, expected in zip(*pair, strict=True):
            assert found.stride() == expected.stride()
            torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True])
def test_result_of_two_layouts_follows_the_first_as_on_the_cpu(dynamic: bool) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        floor = torch.div(x, y, rounding_mode="floor")
        return x.copysign(y), x // y, x.xlogy(y), torch.special.xlog1py(x, y), floor

    compiled = torch.compile(function, backend="tpu", dynamic=dynamic)
    for batch in (2, 3):
        x = torch.rand(batch, 4, 6, 5)
        for pair in ((x, x.to(memory_format=torch.channels_last)), (x.mT.contiguous().mT, x)):
            found = compiled(*(t.to("tpu") for t in pair))
            expected = function(*pair)
            assert [t.stride() for t in found] == [t.stride() for t in expected]


def test_operands_on_two_devices_are_still_refused() -> None:
    compiled = torch.compile(torch.copysign, backend="tpu")
    with pytest.raises(RuntimeError, match="same device"):
        compiled(torch.ones(3, device="tpu"), torch.ones(3))


def _gradient(function: Callable[[Tensor], Tensor], device: str, batch: int = 2) -> Tensor:
    """Of an image whose channels are last."""
    x = torch.linspace(-1, 1, batch * 120).reshape(batch, 4, 6, 5).to(device)
    x = x.to(memory_format=torch.channels_last).requires_grad_()
    result = function(x)
    return torch.autograd.grad(result, x, torch.ones_like(result))[0]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"),
        lambda x: F.mse_loss(x, torch.zeros_like(x)),
        lambda x: F.huber_loss(x, torch.zeros_like(x)),
        lambda x: F.glu(x, 1),
        F.logsigmoid,
        lambda x: F.interpolate(x, scale_factor=2),
        lambda x: F.interpolate(x, size=(7, 9), mode="bilinear"),
    ],
)
def test_gradient_is_laid_out_as_on_the_cpu(function) -> None:
    found = _gradient(torch.compile(function, backend="tpu"), "tpu")
    expected = _gradient(function, "cpu")
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found.cpu(), expected)


def test_gradient_of_open_size_is_laid_out_as_on_the_cpu() -> None:
    def loss(x: Tensor) -> Tensor:
        return F.smooth_l1_loss(x, torch.zeros_like(x))

    compiled = torch.compile(loss, backend="tpu", dynamic=True)
    for batch in (2, 3):
        found, expected = _gradient(compiled, "tpu", batch), _gradient(loss, "cpu", batch)
        assert found.stride() == expected.stride()


def test_layouts_on_the_cpu_follow_its_own_kernels() -> None:
    x = torch.ones(2, 4, 6, 5).to(memory_format=torch.channels_last)
    compiled = torch.compile(_convolved, backend="aot_eager")
    assert compiled(x, _WEIGHT).stride() == _convolved(x, _WEIGHT).stride()
    assert compiled(x.contiguous(), _WEIGHT).is_contiguous()


@pytest.mark.parametrize("dynamic", [False, True])
def test_results_on_the_cpu_are_still_those_of_pytorchs_decompositions(dynamic: bool) -> None:
    def shuffled(x: Tensor) -> Tensor:
        return F.pixel_shuffle(x, 2)

    x = torch.rand(2, 4, 6, 5).to(memory_format=torch.channels_last)
    found = torch.compile(shuffled, backend="aot_eager", dynamic=dynamic)(x)
    torch.testing.assert_close(found, shuffled(x))
