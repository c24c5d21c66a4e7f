# SPDX-License-Identifier: Apache-2.0
"""Accelerate and PEFT: a loop of the user's own, and adapters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerate = pytest.importorskip("accelerate", reason="needs requirements/zoo.txt")

Make = Callable[[], nn.Module]


def _plain(model: nn.Module, ids: torch.Tensor) -> list[float]:
    """The losses of the same loop without Accelerate, on the CPU."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(3):
        loss = model(ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(("precision", "rel"), [("no", 1e-4), ("bf16", 2e-2)])
def test_accelerator_loop_gives_the_losses_of_a_plain_loop(
    precision: str,
    rel: float,
    language_model: Make,
    ids: torch.Tensor,
    accelerate_on_tpu: None,
    tmp_path: Path,
) -> None:
    accelerator = accelerate.Accelerator(mixed_precision=precision)
    assert accelerator.device.type == "tpu"
    model = language_model()
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-2),
        DataLoader(TensorDataset(ids.repeat(3, 1)), batch_size=2),
    )
    found = []
    for (batch,) in loader:
        assert batch.device.type == "tpu"
        with accelerator.accumulate(model):
            loss = model(batch, labels=batch).loss
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        found.append(accelerator.gather(loss.detach()).item())
    assert found == pytest.approx(_plain(language_model(), ids), rel=rel)

    saved = [p.detach().cpu() for p in model.parameters()]
    accelerator.save_state(str(tmp_path))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(str(tmp_path))
    for parameter, value in zip(model.parameters(), saved, strict=True):
        assert torch.equal(parameter.cpu(), value)


def test_adapters_train_and_merge_as_on_the_cpu(language_model: Make, ids: torch.Tensor) -> None:
    peft = pytest.importorskip("peft", reason="needs requirements/zoo.txt")
    found = []
    for device in ("cpu", "tpu"):
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)
        model, words = peft.get_peft_model(language_model().to(device), config), ids.to(device)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "lora" in name:
                    parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        for _ in range(2):
            loss = model(words, labels=words).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        merged = model.merge_and_unload()
        found.append([loss.item(), merged(words, labels=words).loss.item()])
    assert found[1] == pytest.approx(found[0], rel=1e-4)
    assert found[0][1] < found[0][0]
