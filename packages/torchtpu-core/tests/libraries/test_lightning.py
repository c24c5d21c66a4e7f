# SPDX-License-Identifier: Apache-2.0
"""Lightning trains on the device with the accelerator that the manual shows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

lightning = pytest.importorskip("lightning", reason="needs requirements/zoo.txt")

PAGE = Path(__file__).resolve().parents[4] / "docs" / "how-to" / "use-other-libraries.md"


def _of_the_manual() -> dict:
    """What the page's block about Lightning defines."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (block,) = (b for b in blocks if "import lightning" in b)
    names: dict = {}
    exec(block, names)
    return names


class _Regression(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.losses, self.seen = nn.Linear(3, 1), [], set()

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        x, y = batch
        self.seen.add(x.device.type)
        loss = nn.functional.mse_loss(self.layer(x), y)
        self.losses.append(loss.detach())
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


def _losses(folder: Path, **options: object) -> tuple[set[str], list[float]]:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(12, 3, generator=generator), torch.randn(12, 1, generator=generator)
    module = _Regression()
    trainer = lightning.Trainer(
        max_epochs=2,
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        **options,
    )
    trainer.fit(module, DataLoader(TensorDataset(x, y), batch_size=4))
    return module.seen, [loss.item() for loss in module.losses]


def test_trainer_with_the_accelerator_of_the_manual_gives_the_losses_of_the_cpu(
    tmp_path: Path,
) -> None:
    seen, found = _losses(tmp_path / "tpu", **_of_the_manual()["on_tpu"]())
    assert seen == {"tpu"}
    assert found == pytest.approx(_losses(tmp_path / "cpu", accelerator="cpu")[1], rel=1e-4)
