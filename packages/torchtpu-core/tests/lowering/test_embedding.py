# SPDX-License-Identifier: Apache-2.0
"""Embedding tables and bags of embeddings against CPU PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering import embedding, embedding_bag
from torchtpu_core.testing.lowering import assert_close, check, lower

TABLE = (*embedding.TABLE, *embedding_bag.TABLE)
_GENERATOR = torch.Generator().manual_seed(0)
SUM, MEAN, MAX = 0, 1, 2


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=_GENERATOR).to(dtype)


def run(overload: str, *arguments: Any) -> Any:
    return lower(next(r for r in TABLE if r.overload == overload), arguments, {})


@pytest.mark.parametrize("shape", [(), (5,), (2, 3), (0,)])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32], ids=str)
def test_embedding_equals_cpu(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    index = torch.randint(0, 6, shape, generator=_GENERATOR).to(dtype)
    check("aten::embedding", rand(6, 4), index, table=TABLE)


@pytest.mark.parametrize("index", [6, -1])
def test_embedding_of_an_index_outside_raises(index: int) -> None:
    with pytest.raises(IndexError, match="index out of range in self"):
        run("aten::embedding", rand(6, 4), torch.tensor([0, index]))


@pytest.mark.parametrize("padding_idx", [-1, 2])
@pytest.mark.parametrize("by_frequency", [True, False])
def test_embedding_dense_backward_equals_cpu(padding_idx: int, by_frequency: bool) -> None:
    index = torch.tensor([[0, 2, 2], [5, 0, 0]])
    arguments = (rand(2, 3, 4), index, 6, padding_idx, by_frequency)
    check("aten::embedding_dense_backward", *arguments, table=TABLE)


def test_embedding_dense_backward_bfloat16_adds_in_float32() -> None:
    grad = torch.ones(300, 2, dtype=torch.bfloat16)
    index = torch.zeros(300, dtype=torch.int64)
    actual = run("aten::embedding_dense_backward", grad, index, 2, -1, False)
    assert actual[0, 0] == 300


@pytest.mark.parametrize("norm_type", [1.0, 2.0, float("inf")])
def test_embedding_renorm_equals_cpu(norm_type: float) -> None:
    weight, index = rand(6, 4), torch.tensor([0, 3, 3, 5])
    expected = torch.ops.aten.embedding_renorm_(weight.clone(), index, 1.0, norm_type)
    assert_close(run("aten::embedding_renorm", weight, index, 1.0, norm_type), expected)


INDEX = torch.tensor([0, 2, 2, 5, 1, 2, 4])
OFFSETS = {"plain": [0, 3, 4], "an empty bag": [0, 3, 3, 5], "an empty end": [0, 4, 7], "one": [0]}


@pytest.mark.parametrize("offsets", OFFSETS)
@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("padding_idx", [-1, 2])
def test_embedding_bag_equals_cpu(offsets: str, mode: int, padding_idx: int) -> None:
    weight, starts = rand(6, 4), torch.tensor(OFFSETS[offsets])
    arguments = (weight, INDEX, starts, False, mode, False, None, False, padding_idx)
    actual = run("aten::_embedding_bag", *arguments)
    expected = torch.ops.aten._embedding_bag(*arguments)
    assert_close(actual[0], expected[0])


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
def test_embedding_bag_with_last_offset_equals_cpu(mode: int) -> None:
    arguments = (rand(6, 4), INDEX, torch.tensor([0, 3, 5, 7]), False, mode, False, None, True)
    actual = run("aten::_embedding_bag_forward_only", *arguments)
    expected = torch.ops.aten._embedding_bag_forward_only(*arguments)
    assert_close(actual[0], expected[0])


@pytest.mark.parametrize("mode", [SUM, MEAN, MAX])
@pytest.mark.parametrize("padding_idx", [None, 2])
@pytest.mark.parametrize("by_frequency", [True, False])
def test_embedding_bag_backward_equals_autograd(
    mode: int, padding_idx: int | None, by_frequency: bool
) -> None:
    if mode == MAX and by_frequency:
        pytest.skip("PyTorch refuses scale_grad_by_freq with the mode max")
    weight, starts, grad = rand(6, 4).requires_grad_(), torch.tensor([0, 3, 3]), rand(3, 4)
    out = torch.nn.functional.embedding_bag(
        INDEX,
        weight,
        starts,
        mode=("sum", "mean", "max")[mode],
        padding_idx=padding_idx,
    )
    (expected,) = torch.autograd.grad(out, weight, grad)
    if by_frequency:
        # Not from CPU PyTorch, which divides by the count of another index
        # (counts[indices_data[i]] with i the number of the unique index).
        expected = expected / INDEX.bincount(minlength=6).clamp_min(1)[:, None]
    padding = -1 if padding_idx is None else padding_idx
    saved = run(
        "aten::_embedding_bag",
        weight, INDEX, starts, by_frequency, mode, False, None, False, padding,
    )[1:]  # fmt: skip
    actual = run(
        "aten::_embedding_bag_backward",
        grad, INDEX, starts, *saved, 6, by_frequency, mode, False, None, padding,
    )  # fmt: skip
    assert_close(actual, expected)


def test_embedding_bag_with_sample_weights_equals_autograd() -> None:
    weight, starts, grad = rand(6, 4).requires_grad_(), torch.tensor([0, 3, 3]), rand(3, 4)
    samples = rand(7).requires_grad_()
    out = torch.nn.functional.embedding_bag(
        INDEX, weight, starts, mode="sum", per_sample_weights=samples
    )
    expected = torch.autograd.grad(out, (weight, samples), grad)
    arguments = (weight, INDEX, starts, False, SUM, False, samples)
    forward = run("aten::_embedding_bag", *arguments)
    assert_close(forward[0], out.detach())
    tail = (6, False, SUM, False, samples, -1)
    d_weight = run("aten::_embedding_bag_backward", grad, INDEX, starts, *forward[1:], *tail)
    d_samples = run(
        "aten::_embedding_bag_per_sample_weights_backward",
        grad, weight, INDEX, starts, forward[1], SUM,
    )  # fmt: skip
    assert_close([d_weight, d_samples], list(expected))


@pytest.mark.parametrize(
    ("index", "offsets", "message"),
    [
        ([0, 6], [0], "Expected idx >= 0 && idx < num_embeddings"),
        ([0, 1], [1], r"offsets\[0\] has to be 0"),
        ([0, 1], [0, 3], r"offsets\[-1\] can not be greater"),
    ],
)
def test_embedding_bag_of_bad_values_raises(
    index: list[int], offsets: list[int], message: str
) -> None:
    with pytest.raises(RuntimeError, match=message):
        run("aten::_embedding_bag", rand(6, 4), torch.tensor(index), torch.tensor(offsets))


def test_embedding_bag_sparse_gradient_is_refused_with_the_fix() -> None:
    arguments = (rand(1, 4), INDEX, torch.tensor([0]), INDEX, INDEX[:1], INDEX[:0], 6)
    with pytest.raises(NotImplementedError, match="Use sparse=False"):
        run("aten::_embedding_bag_backward", *arguments, False, SUM, True, None, -1)
