# SPDX-License-Identifier: Apache-2.0
"""Transformers: text generation, reduced precision, checkpoints, files, the Trainer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

transformers = pytest.importorskip("transformers", reason="needs requirements/zoo.txt")

Make = Callable[[], nn.Module]
NEW_WORDS = 6


def _generated(model: nn.Module, ids: torch.Tensor, **options: Any) -> torch.Tensor:
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    found = model.eval().generate(
        ids.to(model.device),
        attention_mask=mask.to(model.device),
        max_new_tokens=NEW_WORDS,
        **options,
    )
    return found.cpu()


@pytest.mark.parametrize(
    "options",
    [
        {"do_sample": False},
        {"do_sample": False, "cache_implementation": "static"},
        {"do_sample": False, "num_beams": 2},
        {"do_sample": False, "repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
    ],
    ids=["greedy", "static cache", "beams", "penalties"],
)
def test_generate_without_chance_gives_the_words_of_the_cpu(
    options: dict[str, Any], language_model: Make, ids: torch.Tensor
) -> None:
    expected = _generated(language_model(), ids, **options)
    assert torch.equal(_generated(language_model().to("tpu"), ids, **options), expected)


def test_generate_with_chance_repeats_under_a_seed(language_model: Make, ids: torch.Tensor) -> None:
    model, found = language_model().to("tpu"), []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        options = {"do_sample": True, "top_k": 20, "top_p": 0.9, "temperature": 0.8}
        found.append(_generated(model, ids, **options))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def _losses(model: nn.Module, ids: torch.Tensor, autocast: bool = False) -> list[float]:
    """Of three steps with clipped gradients."""
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-2), []
    ids = ids.to(model.device)
    for _ in range(3):
        with torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=autocast):
            loss = model(ids, labels=ids).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_steps_with_checkpointed_activations_give_the_losses_of_the_cpu(
    language_model: Make, ids: torch.Tensor
) -> None:
    expected = _losses(language_model(), ids)
    model = language_model().to("tpu").train()
    model.gradient_checkpointing_enable()
    assert _losses(model, ids) == pytest.approx(expected, rel=1e-4)


def test_steps_in_bfloat16_give_about_the_losses_of_the_cpu(
    language_model: Make, ids: torch.Tensor
) -> None:
    expected = _losses(language_model().bfloat16(), ids)
    # AdamW in bfloat16 rounds every weight to 8 bits, so a gradient's last bit moves a weight
    assert _losses(language_model().bfloat16().to("tpu"), ids) == pytest.approx(expected, rel=2e-2)


def test_steps_under_autocast_give_about_the_losses_of_the_cpu(
    language_model: Make, ids: torch.Tensor
) -> None:
    expected = _losses(language_model(), ids, autocast=True)
    found = _losses(language_model().to("tpu"), ids, autocast=True)
    assert found == pytest.approx(expected, rel=2e-2)


@pytest.mark.parametrize("device_map", ["tpu", {"": "tpu:0"}], ids=str)
def test_from_pretrained_with_a_device_map_loads_onto_the_device(
    device_map: Any, language_model: Make, ids: torch.Tensor, tmp_path: Path
) -> None:
    pytest.importorskip("accelerate", reason="needs requirements/zoo.txt")
    model = language_model()
    model.to("tpu").save_pretrained(tmp_path)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path, device_map=device_map)
    assert {p.device for p in loaded.parameters()} == {torch.device("tpu", 0)}
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name].cpu(), value.cpu()), name


class _Words(Dataset):
    def __len__(self) -> int:
        return 16

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        words = torch.randint(5, 80, (7,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


def _trainer(model: nn.Module, folder: Path, **options: Any) -> Any:
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=4,
        logging_steps=1,
        save_steps=2,
        report_to=[],
        disable_tqdm=True,
        learning_rate=1e-2,
        **options,
    )
    return transformers.Trainer(model=model, args=arguments, train_dataset=_Words())


def _logged(trainer: Any) -> list[float]:
    return [float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry]


def test_trainer_logs_the_losses_of_the_cpu_and_resumes(
    language_model: Make,
    accelerate_on_tpu: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = _trainer(language_model(), tmp_path / "tpu")
    assert trainer.args.device == torch.device("tpu", 0)
    trainer.train()
    assert trainer.model.device.type == "tpu"
    again = _trainer(language_model(), tmp_path / "tpu")
    again.train(resume_from_checkpoint=str(tmp_path / "tpu" / "checkpoint-2"))

    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "cpu")
    expected = _trainer(language_model(), tmp_path / "cpu", use_cpu=True)
    expected.train()
    assert _logged(trainer) == pytest.approx(_logged(expected), rel=1e-3)
    assert _logged(again)[-2:] == pytest.approx(_logged(expected)[-2:], rel=1e-3)
