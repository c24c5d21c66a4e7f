# SPDX-License-Identifier: Apache-2.0
"""Accelerate, the Trainer and Lightning over two ranks, started as the manual shows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torchtpu_distributed", reason="needs torchtpu-distributed")

PAGE = Path(__file__).resolve().parents[4] / "docs" / "how-to" / "use-other-libraries.md"
RUN = "import sys; from torchtpu_core.cli import main; sys.argv[0] = 'torchtpu'; main()"

DATA = """
import json, os, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

# Eight batches of the whole job; a rank has its part of each.
generator = torch.Generator().manual_seed(0)
x, y = torch.randn(64, 3, generator=generator), torch.randn(64, 1, generator=generator)
ranks = int(os.environ.get("WORLD_SIZE", "1"))
loader = DataLoader(TensorDataset(x, y), batch_size=8 // ranks)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 1))


def report(losses):
    if int(os.environ.get("RANK", "0")) == 0:
        print("losses", json.dumps(losses), flush=True)
"""
ACCELERATE = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
losses = []
for a, b in loader:
    assert a.device.type == "tpu"
    loss = nn.functional.mse_loss(model(a), b)
    accelerator.backward(loss)
    accelerator.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    losses.append(accelerator.gather(loss.detach()[None]).mean().item())
accelerator.end_training()
report(losses)
"""
TRAINER = """
import tempfile
import transformers

torch.manual_seed(0)
words = torch.randint(0, 96, (32, 8), generator=generator)
config = transformers.LlamaConfig(
    vocab_size=96, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=48
)
arguments = transformers.TrainingArguments(
    tempfile.mkdtemp(), per_device_train_batch_size=8 // ranks, max_steps=4, logging_steps=1,
    learning_rate=1e-2, report_to=[], disable_tqdm=True, seed=0,
    save_strategy="no", use_cpu="RANK" in os.environ,
)
trainer = transformers.Trainer(
    transformers.LlamaForCausalLM(config), arguments,
    train_dataset=[{"input_ids": row, "labels": row} for row in words],
)
assert arguments.world_size == ranks and arguments.device.type == "tpu"
trainer.train()
report([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
"""
SHARDED = """
if ranks > 1:
    assert all(hasattr(p, "full_tensor") for p in model.parameters())
"""
SHARDED_TRAINER = TRAINER.replace(
    "tempfile.mkdtemp(),",
    """tempfile.mkdtemp(), fsdp="full_shard auto_wrap" if ranks > 1 else "",
    fsdp_config={"fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]},""",
).replace(
    "trainer = ",
    """if ranks > 1:
    from accelerate import PartialState
    from accelerate.utils import DistributedType

    PartialState().distributed_type = DistributedType.MULTI_GPU
trainer = """,
)
LIGHTNING = """
class Regression(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model, self.losses = model, []

    def training_step(self, batch, index):
        assert batch[0].device.type == "tpu"
        loss = nn.functional.mse_loss(self.model(batch[0]), batch[1])
        self.losses.append(self.all_gather(loss.detach()).mean())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


module = Regression()
trainer = lightning.Trainer(
    max_epochs=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, use_distributed_sampler=False,
    **(on_ranks() if "RANK" in os.environ else on_tpu()),
)
if ranks > 1:
    from torch.utils.data import DistributedSampler

    mine = DistributedSampler(loader.dataset, ranks, int(os.environ["RANK"]), shuffle=False)
    loader = DataLoader(loader.dataset, batch_size=8 // ranks, sampler=mine)
trainer.fit(module, loader)
report([loss.item() for loss in module.losses])
"""


def _blocks(*words: str) -> str:
    """The page's blocks of code that hold each of some words, as far as they are definitions."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    chosen = [next(block for block in blocks if word in block) for word in words]
    return "\n".join(block.partition("\ntrainer = ")[0] for block in chosen)


@pytest.mark.parametrize(
    ("library", "words", "loop"),
    [
        ("accelerate", ("Accelerator(cpu=True)",), ACCELERATE),
        ("accelerate", ("ACCELERATE_TORCH_DEVICE", "fsdp_plugin=plugin"), ACCELERATE + SHARDED),
        ("transformers", ("Accelerator(cpu=True)",), TRAINER),
        (
            "transformers",
            ("Accelerator(cpu=True)",),
            SHARDED_TRAINER + "model = trainer.model_wrapped" + SHARDED,
        ),
        ("lightning", ("SingleDeviceStrategy", "TorchTpuDDP"), LIGHTNING),
    ],
)
def test_losses_of_two_ranks_are_those_of_one(
    library: str, words: tuple[str, ...], loop: str, tmp_path: Path
) -> None:
    pytest.importorskip(library, reason="needs requirements/zoo.txt")
    script = tmp_path / "script.py"
    start = _blocks(*words)
    if library == "transformers":  # The arguments make Accelerate's state.
        start = start.replace("accelerator = Accelerator(cpu=True)", "")
    script.write_text(start + DATA + loop)
    found = []
    for command in ([str(script)], ["-c", RUN, "run", "--chips", "2", str(script)]):
        done = subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, timeout=300, cwd=tmp_path
        )
        assert done.returncode == 0, done.stderr[-3000:]
        assert "trains alone" not in done.stderr
        (line,) = (line for line in done.stdout.splitlines() if "losses [" in line)
        found.append(json.loads(line[line.index("losses ") + len("losses ") :]))
    assert len(found[0]) >= 4
    assert found[1] == pytest.approx(found[0], rel=1e-4)
