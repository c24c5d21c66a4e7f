# SPDX-License-Identifier: Apache-2.0
"""Safetensors writes tensors of the device and reads onto it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

files = pytest.importorskip("safetensors.torch", reason="needs requirements/zoo.txt")


def test_tensors_written_from_the_device_are_read_onto_it_by_its_index(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    values = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(3, dtype=torch.bfloat16)}
    files.save_file({name: x.to("tpu") for name, x in values.items()}, path)
    for name, x in files.load_file(path, device=0).items():
        assert x.device == torch.device("tpu", 0)
        assert torch.equal(x.cpu(), values[name])


def test_model_is_loaded_in_place_on_the_device(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    source, target = torch.nn.Linear(3, 2).to("tpu"), torch.nn.Linear(3, 2).to("tpu")
    files.save_model(source, str(path))
    files.load_model(target, str(path), device=0)
    assert torch.equal(target.weight.cpu(), source.weight.cpu())
