# SPDX-License-Identifier: Apache-2.0
"""Windows of a sequence of open length, as local attention has them: one graph, right at each."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torchtpu_compile import bounded_program

#: Places of a window; half of it overlaps the next one.
W = 4
#: Multiples of a window, of one bucket and more.
SIZES = (8, 12, 16, 36)


def by_unfold(x: Tensor) -> Tensor:
    return x.unfold(1, W, W // 2).amax(-1)


def by_strides(x: Tensor) -> Tensor:
    b, s, d = x.shape
    return x.as_strided((b, s // W * 2 - 1, W, d), (s * d, W // 2 * d, d, 1))


def by_strides_of_blocks(x: Tensor) -> Tensor:
    """As Longformer makes its chunks."""
    b, s, d = x.shape
    blocks = x.view(b, s // W, W, d)
    size, stride = list(blocks.shape), list(blocks.stride())
    size[1], stride[1] = size[1] * 2 - 1, stride[1] // 2
    return blocks.as_strided(size, stride)


def by_strides_of_single_places(x: Tensor) -> Tensor:
    """Windows of the flat sequence, which hold no whole row."""
    flat = x.flatten() * 2
    return flat.as_strided((flat.shape[0] - 2, 3), (1, 1)).sin()


def of_a_transposed_tensor(x: Tensor) -> Tensor:
    """Values only: the derivative is PyTorch's, which is one graph per size."""
    y = (x.detach() + 1).transpose(0, 1)
    b, s, d = x.shape
    return y.as_strided((s - 1, b, d), (d, s * d, 1), 0) * x.mean()


def attention(x: Tensor) -> Tensor:
    chunks = by_strides_of_blocks(x)
    scores = torch.einsum("bcxd,bcyd->bcxy", chunks, chunks)
    return scores.softmax(-1) @ chunks


def by_slices(x: Tensor) -> Tensor:
    """Each block with the one after it; of two blocks there is one pair."""
    b, s, d = x.shape
    n = s // W
    left, right = x[:, : (n - 1) * W], x[:, W : n * W]
    return torch.stack([part.reshape(b, n - 1, W, d) for part in (left, right)], 2).amax(3)


FUNCTIONS = (
    by_unfold,
    by_strides,
    by_strides_of_blocks,
    by_strides_of_single_places,
    of_a_transposed_tensor,
    attention,
    by_slices,
)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_windows_of_an_open_length_are_as_on_the_cpu(function: Callable[[Tensor], Tensor]) -> None:
    graphs = torch._dynamo.utils.counters["stats"]
    before = graphs["unique_graphs"]
    compiled = torch.compile(function, backend="tpu", fullgraph=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        x = torch.randn(2, n, 6)
        y = x.to("tpu")
        torch._dynamo.mark_dynamic(y, 1)
        x.requires_grad_()
        y.requires_grad_()
        expected, actual = function(x), compiled(y)
        slope = torch.randn_like(expected)
        expected.backward(slope)
        actual.backward(slope.to("tpu"))
        torch.testing.assert_close(actual.detach().cpu(), expected.detach(), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(y.grad.cpu(), x.grad, rtol=1e-4, atol=1e-4)
    assert not bounded_program.reasons
    special = function is by_slices  # two blocks have one pair, and a size of 1 is no symbol
    assert graphs["unique_graphs"] - before == 1 + special


def test_strides_that_leave_an_open_tensor_are_told_with_the_line() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2).as_strided((x.shape[0], 6), (6, 2))

    x = torch.randn(8, 6, device="tpu")
    torch._dynamo.mark_dynamic(x, 0)
    with pytest.raises(ValueError, match=r"no tensor of the graph holds.*test_open_windows\.py"):
        torch.compile(function, backend="tpu", fullgraph=True)(x).cpu()


def test_memory_of_a_larger_tensor_is_read_at_true_sizes() -> None:
    def function(x: Tensor) -> Tensor:
        return (x * 2)[: x.shape[0] - 2].as_strided((x.shape[0], 6), (6, 1), 0)

    x = torch.randn(8, 6)
    y = x.to("tpu")
    torch._dynamo.mark_dynamic(y, 0)
    actual = torch.compile(function, backend="tpu", fullgraph=True)(y)
    torch.testing.assert_close(actual.cpu(), x * 2)


@pytest.mark.parametrize("dynamic", [False, True])
def test_gradient_through_the_strides_of_a_transposed_tensor_arrives(dynamic: bool) -> None:
    def function(x: Tensor) -> Tensor:
        y = (x + 1).transpose(0, 1)
        return y.as_strided((x.shape[1] - 1, 2, 6), (6, x.shape[1] * 6, 1), 0).sin()

    x = torch.randn(2, 8, 6)
    y = x.to("tpu").requires_grad_()
    function(x.requires_grad_()).sum().backward()
    torch.compile(function, backend="tpu", dynamic=dynamic)(y).sum().backward()
    torch.testing.assert_close(y.grad.cpu(), x.grad)


def test_windows_side_by_side_may_be_written_in_place_with_gradients():
    def step(w):
        x = w * 1
        windows = x.as_strided((x.shape[0] // 4, 4), (4, 1))
        windows.mul_(2.0)
        return windows.sum() + (x * x).sum()

    compiled = torch.compile(step, dynamic=True)
    for length in (16, 24):
        reference = torch.linspace(-1.0, 1.0, length, requires_grad=True)
        step(reference).backward()
        weight = reference.detach().to("tpu").requires_grad_()
        compiled(weight).backward()
        torch.testing.assert_close(weight.grad.cpu(), reference.grad)


def written_rows(x: Tensor) -> Tensor:
    """Whole rows of every second place in time."""
    y = x * 2
    b, s, d = x.shape
    y.as_strided((b, s // 2, d), (s * d, 2 * d, 1), d).mul_(3)
    return y.sin()


def written_places(x: Tensor) -> Tensor:
    """The diagonal of all but the first row of a flat sequence."""
    y = x.flatten() * 2
    diagonal = y.as_strided((x.shape[1] - 1, 2), (x.shape[2], 1), x.shape[2])
    diagonal.copy_(torch.arange(1.0, x.shape[1], device=x.device)[:, None] * x[0, 1:, :2])
    return y * x.flatten()


def written_turned(x: Tensor) -> Tensor:
    """Memory in another order than the dimensions; without gradients, as above."""
    y = (x.detach() + 1).transpose(0, 1)
    _, s, d = x.shape
    z = torch.as_strided_scatter(y, x.detach()[0, :, :2], (s, 2), (d, 1), 0)
    return z * x.mean()


@pytest.mark.parametrize("function", [written_rows, written_places, written_turned])
@pytest.mark.parametrize("backend", ["tpu", "inductor"])
def test_writes_by_strides_have_one_program_for_open_lengths(
    function: Callable[[Tensor], Tensor], backend: str
) -> None:
    compiled = torch.compile(function, backend=backend, fullgraph=True)
    bounded_program.reasons.clear()
    for n in SIZES:
        x = torch.randn(2, n, 6)
        y = x.to("tpu")
        torch._dynamo.mark_dynamic(y, 1)
        expected, actual = function(x.requires_grad_()), compiled(y.requires_grad_())
        slope = torch.randn_like(expected)
        expected.backward(slope)
        actual.backward(slope.to("tpu"))
        torch.testing.assert_close(actual.detach().cpu(), expected.detach())
        torch.testing.assert_close(y.grad.cpu(), x.grad)
    assert not bounded_program.reasons
