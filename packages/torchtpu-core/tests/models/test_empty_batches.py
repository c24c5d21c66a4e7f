# SPDX-License-Identifier: Apache-2.0
"""Layers and losses take a batch of nothing wherever CPU does, as at the end of a filter."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

_IMAGES, _WAVES, _VOLUMES, _TOKENS = (0, 4, 4, 4), (0, 4, 4), (0, 4, 4, 4, 4), (0, 5, 4)

_LAYERS = {
    "convolution": (lambda: nn.Conv2d(4, 2, 3), _IMAGES),
    "transposed convolution": (lambda: nn.ConvTranspose2d(4, 2, 3), _IMAGES),
    "grouped convolution of waves": (lambda: nn.Conv1d(4, 4, 3, groups=2), _WAVES),
    "convolution of no channels": (lambda: nn.Conv2d(0, 2, 3), (2, 0, 4, 4)),
    "convolution of nothing": (lambda: nn.Conv1d(0, 2, 3), (0, 0, 4)),
    "linear": (lambda: nn.Linear(4, 2), _TOKENS),
    "batch norm": (lambda: nn.BatchNorm2d(4).eval(), _IMAGES),
    "layer norm": (lambda: nn.LayerNorm(4), _TOKENS),
    "group norm": (lambda: nn.GroupNorm(2, 4), _IMAGES),
    "maxima": (lambda: nn.MaxPool2d(2), _IMAGES),
    "means": (lambda: nn.AvgPool2d(2), _IMAGES),
    "means of given sizes": (lambda: nn.AdaptiveAvgPool2d(2), _IMAGES),
    "nearest of waves": (lambda: nn.Upsample(scale_factor=2), _WAVES),
    "nearest of images": (lambda: nn.Upsample(scale_factor=2), _IMAGES),
    "nearest of volumes": (lambda: nn.Upsample(scale_factor=2), _VOLUMES),
    "exactly nearest": (lambda: nn.Upsample(scale_factor=2, mode="nearest-exact"), _IMAGES),
    "bilinear": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), _IMAGES),
    "reflected": (lambda: nn.ReflectionPad2d(1), _IMAGES),
    "lstm": (lambda: nn.LSTM(4, 3, batch_first=True), _TOKENS),
    "encoder": (lambda: nn.TransformerEncoderLayer(4, 2, batch_first=True), _TOKENS),
    "dropout": (lambda: nn.Dropout(), _TOKENS),
}


@pytest.mark.parametrize(("make", "shape"), _LAYERS.values(), ids=_LAYERS)
def test_layer_of_an_empty_batch_gives_the_shapes_and_gradients_of_cpu(make, shape) -> None:
    layer = make()
    results = []
    for device in ("tpu", "cpu"):
        moved = copy.deepcopy(layer).to(device)
        x = torch.zeros(shape, device=device, requires_grad=True)
        out = moved(x)
        out = out[0] if isinstance(out, tuple) else out
        out.sum().backward()
        gradients = [p.grad.cpu() for p in moved.parameters()]
        results.append((out.shape, x.grad.shape, gradients))
    (shapes, gradients), (expected_shapes, expected) = ((r[:2], r[2]) for r in results)
    assert shapes == expected_shapes
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


_LOSSES = (
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy_with_logits,
    functional.kl_div,
    functional.soft_margin_loss,
)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("loss", _LOSSES, ids=lambda f: f.__name__)
def test_loss_of_an_empty_batch_is_that_of_cpu(loss, reduction) -> None:
    results = []
    for device in ("tpu", "cpu"):
        x = torch.zeros((0, 4), device=device, requires_grad=True)
        value = loss(x, torch.zeros((0, 4), device=device), reduction=reduction)
        value.sum().backward()
        results.append((value.detach().cpu(), x.grad.cpu()))
    torch.testing.assert_close(*results, equal_nan=True)


@pytest.mark.parametrize("reduction", ["mean", "none"])
@pytest.mark.parametrize("target", [3, [3]], ids=["number", "batch of one"])
def test_margin_loss_of_one_sample_has_the_shape_of_cpus(target, reduction) -> None:
    x = torch.linspace(-1, 1, 5)
    results = [
        functional.multi_margin_loss(x.to(d), torch.tensor(target, device=d), reduction=reduction)
        for d in ("tpu", "cpu")
    ]
    torch.testing.assert_close(results[0].cpu(), results[1])


def test_call_that_cpu_refuses_too_keeps_its_error() -> None:
    messages = []
    for device in ("tpu", "cpu"):
        with pytest.raises(RuntimeError) as raised:
            functional.interpolate(torch.zeros((0, 0, 4, 4), device=device), 2)
        messages.append(str(raised.value))
    assert messages[0] == messages[1]
