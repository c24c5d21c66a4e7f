# SPDX-License-Identifier: Apache-2.0
"""Files of models that write their buffers and arguments, and that draw random numbers."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torchtpu_compile.ahead import AOTModel, aot, load


def loaded(model: nn.Module, args: Sequence[Any], path: Path) -> AOTModel:
    aot(model, args, path=path / "m", compiler="simulator")
    return load(path / "m")


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.cpu(), expected.detach().cpu(), rtol=1e-4, atol=1e-5)


def test_batch_norm_in_training_keeps_its_statistics(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    made = loaded(model, (torch.randn(2, 3, 8, 8),), tmp_path)
    for _ in range(3):
        x = torch.randn(2, 3, 8, 8)
        close(made(x), model(x))
    expected = model.state_dict()
    assert set(made.state_dict()) == set(expected)
    for name, tensor in made.state_dict().items():
        close(tensor, expected[name])


class Cache(nn.Module):
    """Keys of a decoder: one more per call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("keys", torch.zeros(2, 8, 4))
        self.register_buffer("place", torch.zeros((), dtype=torch.long), persistent=False)
        self.project = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys.index_copy_(1, self.place.reshape(1), self.project(x))
        self.place += 1
        return self.keys.sum(1), self.keys


def test_cache_grows_and_may_be_set_back(tmp_path: Path) -> None:
    model = Cache()
    start = {name: t.clone() for name, t in (*model.named_buffers(), *model.named_parameters())}
    made, before = loaded(model, (torch.randn(2, 1, 4),), tmp_path), []
    with torch.no_grad():
        for _ in range(4):
            x = torch.randn(2, 1, 4)
            result, expected = made(x), model(x)
            close(result[0], expected[0])
            close(result[1], expected[1])
            before.append((result[1], expected[1].clone()))
    for kept, expected in before:  # a returned buffer is as it was when it was returned
        close(kept, expected)
    assert made.state_dict()["place"].item() == 4
    made.load_state_dict({**start, "of another model": torch.zeros(1)})
    assert not made.state_dict()["keys"].any()
    del start["keys"]
    with pytest.raises(KeyError, match="lacks keys"):
        made.load_state_dict(start)
    with pytest.raises(ValueError, match=r"keys has size \[2\]"):
        made.load_state_dict({**start, "keys": torch.zeros(2)})


class Writes(nn.Module):
    """Writes slices of a buffer and of an argument, and returns what a buffer was before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(4, 3))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, ...]:
        old = self.last.clone()
        self.rows[1:3] = x
        cache[:, 0] += 1
        self.last.copy_(x[0])
        return old, self.rows.sum(), x


@pytest.mark.parametrize("device", ["cpu", "tpu"])
def test_slices_of_buffers_and_arguments_are_written(tmp_path: Path, device: str) -> None:
    model = Writes()
    made = loaded(model, (torch.randn(2, 3), torch.zeros(2, 2)), tmp_path)
    cache, expected_cache = torch.zeros(2, 2, device=device), torch.zeros(2, 2)
    for _ in range(3):
        x = torch.randn(2, 3)
        for result, expected in zip(made(x, cache), model(x, expected_cache), strict=True):
            close(result, expected)
    close(cache, expected_cache)
    assert cache.device.type == device


class Swap(nn.Module):
    """Two buffers that change places: neither may be written before it was read."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.tensor([1.0]))
        self.register_buffer("b", torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a = self.a.clone()
        self.a.copy_(self.b)
        self.b.copy_(a)
        return x + self.a


def test_buffers_that_change_places(tmp_path: Path) -> None:
    made = loaded(Swap(), (torch.zeros(1),), tmp_path)
    assert [made(torch.zeros(1)).item() for _ in range(3)] == [2.0, 1.0, 2.0]
    assert made.state_dict()["a"].item() == 2.0


class Draws(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        noise = torch.bernoulli(torch.sigmoid(x)) + torch.randn_like(x)
        chosen = torch.multinomial(torch.softmax(x, -1), 2)
        return self.drop(x) + noise, chosen, torch.randperm(7, device=x.device)


def test_random_numbers_are_those_of_eager_under_the_same_seed(tmp_path: Path) -> None:
    model, x = Draws(), torch.randn(4, 8, device="tpu")
    made = loaded(model, (x,), tmp_path)
    found = []
    for function in (made, model):
        torch.manual_seed(5)
        found.append([*function(x), *function(x), torch.rand(3, device="tpu")])
    for result, expected in zip(*found, strict=True):
        close(result, expected)
    assert not torch.equal(found[0][0].cpu(), found[0][3].cpu())  # another draw in each call


def test_attention_with_dropout_draws_in_training(tmp_path: Path) -> None:
    model, x = nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), torch.randn(2, 5, 8)
    made, on_device = loaded(model, (x,), tmp_path), copy.deepcopy(model).to("tpu")
    torch.manual_seed(3)
    result = made(x)
    torch.manual_seed(3)
    close(result, on_device(x.to("tpu")))
