# SPDX-License-Identifier: Apache-2.0
"""Compiled networks of convolutions: what the forward pass saves has its channels last."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchtpu_compile import saved_images


class Network(nn.Module):
    """``[B, 3, H, W]`` to ``[B, 5]``; batch norm, a strided shortcut, pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv, self.norm = nn.Conv2d(8, 12, 3, 2, 1), nn.BatchNorm2d(12)
        self.skip = nn.Conv2d(8, 12, 1, 2)
        self.head = nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem_norm(self.stem(x)))
        x = F.relu(self.norm(self.conv(x)) + self.skip(x))
        return self.head(F.max_pool2d(F.dropout2d(x, 0.0), 2).mean((2, 3)))


def _train(model: nn.Module, forward: object, device: str) -> list[Tensor]:
    torch.manual_seed(2)
    x, y = torch.randn(4, 3, 12, 10).to(device), torch.randint(0, 5, (4,)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(3):
        optimizer.zero_grad()
        F.cross_entropy(forward(x), y).backward()  # type: ignore[operator]
        optimizer.step()
    return [t.detach().cpu() for t in (*model.parameters(), *model.buffers())]


def test_training_agrees_with_cpu() -> None:
    """Parameters, momentum's effect and running statistics after three steps."""
    torch.manual_seed(0)
    model = Network()
    on_tpu = copy.deepcopy(model).to("tpu")
    wanted = _train(model, model, "cpu")
    got = _train(on_tpu, torch.compile(on_tpu, backend="tpu"), "tpu")
    for mine, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_saved_images_cross_with_their_channels_last(monkeypatch, layout) -> None:
    """Every image that one program saves for the other is stored channels last."""
    seen = []
    change = saved_images.keep_channels_last

    def watch(forward, backward, user_outputs: int) -> None:
        change(forward, backward, user_outputs)
        results = next(n for n in forward.graph.nodes if n.op == "output").args[0]
        seen.extend(n.meta["val"].shape for n in results[user_outputs:] if "val" in n.meta)

    monkeypatch.setattr(saved_images, "keep_channels_last", watch)
    model = Network().to("tpu", memory_format=layout)
    x = torch.randn(4, 3, 12, 10, device="tpu").to(memory_format=layout)
    torch.compile(model, backend="tpu")(x).sum().backward()
    images = [shape for shape in seen if len(shape) == 4 and shape[0] == 4]
    assert (4, 12, 10, 8) in images
    assert {shape[1] for shape in images} <= {3, 12, 6}
    assert not any(shape[1:] in ((8, 12, 10), (12, 6, 5)) for shape in images)


def test_results_of_the_user_keep_their_order() -> None:
    """A feature map that is returned and saved is as eager mode returns it."""

    class Features(Network):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            x = F.relu(self.stem_norm(self.stem(x)))
            y = F.relu(self.norm(self.conv(x)) + self.skip(x))
            return x, y

    torch.manual_seed(0)
    model = Features()
    x = torch.randn(2, 3, 8, 8)
    wanted = model(x)
    on_tpu = copy.deepcopy(model).to("tpu")
    got = torch.compile(on_tpu, backend="tpu")(x.to("tpu"))
    sum(t.sum() for t in wanted).backward()
    sum(t.sum() for t in got).backward()
    for mine, theirs in zip(got, wanted, strict=True):
        assert mine.stride() == theirs.stride()
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(on_tpu.parameters(), model.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(mine.grad.cpu(), theirs.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dynamic", [None, True])
def test_norm_of_images_that_need_no_gradient_learns(dynamic: bool | None, training: bool) -> None:
    norm = nn.BatchNorm2d(3).train(training)
    on_device = copy.deepcopy(norm).to("tpu")
    compiled = torch.compile(on_device, backend="tpu", dynamic=dynamic)
    for size in (5, 6):
        images = torch.randn(2, 3, size, size)
        norm(images).sin().sum().backward()
        compiled(images.to("tpu")).sin().sum().backward()
    for expected, actual in zip(norm.parameters(), on_device.parameters(), strict=True):
        torch.testing.assert_close(actual.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-4)
