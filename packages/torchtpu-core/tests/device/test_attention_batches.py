# SPDX-License-Identifier: Apache-2.0
"""Attention in per-sample gradients: fused operators under `torch.vmap`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F

#: Sizes of a mask beside its number of samples: for each sequence and head, for all of them.
MASKS = [(), (2, 3, 4, 5), (1, 1, 4, 5), (4, 5)]


def _operands(device: str, mask: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)

    def draw(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator).to(device)

    return draw(6, 2, 3, 4, 8), draw(2, 3, 5, 8), draw(2, 6, 3, 5, 8), draw(6, *mask)


def _loss(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    bias = mask if mask.dim() else None
    return F.scaled_dot_product_attention(query, key, value, attn_mask=bias).sin().sum()


@pytest.mark.parametrize("mask", MASKS, ids=str)
def test_per_sample_gradients_match_cpu(mask: tuple[int, ...]) -> None:
    function = vmap(grad(_loss, (0, 1, 2, 3)), in_dims=(0, None, 1, 0))
    if not mask:
        function = vmap(grad(_loss, (0, 1, 2)), in_dims=(0, None, 1, 0))
    for actual, expected in zip(
        function(*_operands("tpu", mask)), function(*_operands("cpu", mask)), strict=True
    ):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


def test_gradients_of_a_mask_that_samples_share_match_cpu() -> None:
    function = vmap(grad(_loss, (0, 3)), in_dims=(0, None, 1, None))
    pairs = []
    for device in ("tpu", "cpu"):
        query, key, value, mask = _operands(device, (4, 5))
        pairs.append([x.cpu() for x in function(query, key, value, mask[0])])
    for actual, expected in zip(*pairs, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


def test_maps_in_maps_match_cpu() -> None:
    def inner(query: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, value, value).sin().sum()

    function = vmap(vmap(grad(inner), in_dims=(0, None)), in_dims=(None, 0))
    query, _, value, _ = _operands("tpu", ())
    value = value.movedim(1, 0)
    actual, expected = function(query, value), function(query.cpu(), value.cpu())
    torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("randomness", "error", "text"),
    [
        ("error", RuntimeError, "randomness error mode"),
        ("same", NotImplementedError, "SDPBackend.MATH"),
    ],
)
def test_dropout_of_another_randomness_is_refused(
    randomness: str, error: type[Exception], text: str
) -> None:
    query = _operands("tpu", ())[0]
    with pytest.raises(error, match=text):
        vmap(grad(_dropped), randomness=randomness)(query)


def test_dropout_is_drawn_for_each_sample() -> None:
    query = _operands("tpu", ())[0][:1].expand(4, 2, 3, 4, 8)
    slopes = vmap(grad(_dropped), randomness="different")(query)
    assert not torch.equal(slopes[0], slopes[1])


def _dropped(query: Tensor) -> Tensor:
    dropped: Callable[..., Tensor] = F.scaled_dot_product_attention
    return dropped(query, query, query, dropout_p=0.5).sin().sum()
