# SPDX-License-Identifier: Apache-2.0
"""Other people's libraries on the device, each with what its users do first.

The libraries are in `requirements/zoo.txt`, not among what CI installs; without its library a
module is skipped. `nox -s model_zoo` installs them and runs these tests. Nothing is fetched: models
are made from small configurations.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(autouse=True)
def _fresh_state(strict_on_device_0: None) -> None:
    """The shared start: known seeds; programs of single operators are shared between tests."""


@pytest.fixture
def accelerate_on_tpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Accelerate as its users are told to start it; its state is that of the process."""
    state = pytest.importorskip("accelerate.state", reason="needs requirements/zoo.txt")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "tpu")
    state.AcceleratorState._reset_state(reset_partial_state=True)
    yield
    state.AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def language_model() -> Callable[[], nn.Module]:
    """Makes a Llama of one layer, with the same weights at every call, on the CPU."""
    transformers = pytest.importorskip("transformers", reason="needs requirements/zoo.txt")

    def make() -> nn.Module:
        torch.manual_seed(0)
        config = transformers.LlamaConfig(
            vocab_size=96,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            intermediate_size=48,
            max_position_embeddings=64,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
        return transformers.LlamaForCausalLM(config)

    return make


@pytest.fixture
def ids() -> torch.Tensor:
    """`(2, 7)` words."""
    return torch.randint(5, 80, (2, 7), generator=torch.Generator().manual_seed(1))
