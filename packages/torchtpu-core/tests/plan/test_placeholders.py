# SPDX-License-Identifier: Apache-2.0
"""Scripts that read values and write checkpoints are planned without either."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python

MODEL = """
import torch
from torch import nn

model = nn.Linear(64, 64).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
"""
SCALED = (
    MODEL
    + """
scaler = torch.amp.GradScaler("tpu")
for _ in range(3):
    with torch.autocast("tpu", dtype=torch.bfloat16):
        loss = model(torch.randn(8, 64, device="tpu")).square().mean()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
    if torch.isnan(loss) or not torch.isfinite(norm) or loss.isinf().any().item():
        raise SystemExit("a plan has no infinities")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    print(f"loss {loss:.3f}")
"""
)
SAVED = (
    MODEL
    + """
for _ in range(3):
    model(torch.randn(8, 64, device="tpu")).square().mean().backward()
    torch.save({"model": model.state_dict(), "step": 7}, "best.pt")
    best = torch.load("best.pt", map_location="cpu", weights_only=True)
    assert best["step"] == 7
    model.load_state_dict(best["model"])
    optimizer.step()
    optimizer.zero_grad()
"""
)
TWO_OPTIMIZERS = """
import torch
from torch import nn

makes, judges = (nn.Linear(64, 64).to("tpu") for _ in range(2))
of_makes, of_judges = (torch.optim.Adam(m.parameters()) for m in (makes, judges))
unused = torch.optim.SGD(judges.parameters())
for _ in range(30):
    for optimizer, source in ((of_judges, makes(torch.randn(8, 64, device="tpu")).detach()),
                              (of_makes, makes(torch.randn(8, 64, device="tpu")))):
        optimizer.zero_grad()
        judges(source).square().mean().backward()
        optimizer.step()
"""
GENERATION = """
import torch
from torch import nn

table, head = nn.Embedding(100, 64, device="tpu"), nn.Linear(64, 100, device="tpu")
tokens = torch.zeros(2, 1, dtype=torch.long, device="tpu")
going = torch.ones(2, dtype=torch.long, device="tpu")
while going.max() != 0:
    chosen = head(table(tokens[:, -1:])).argmax(-1)
    tokens = torch.cat([tokens, chosen * going.unsqueeze(1)], 1)
    ended = torch.full((2,), tokens.shape[1] >= 9, device="tpu") | (chosen[:, 0] == 3)
    going = going & ~ended
print("length", tokens.shape[1])
done = torch.zeros(2, dtype=torch.bool, device="tpu")
for _ in range(9):
    done |= head(table(tokens[:, -1])).argmax(-1) == 3
    if done.all():
        break
    tokens = torch.cat([tokens, tokens[:, -1:]], 1)
print("longer", tokens.shape[1])
seen = torch.zeros(3, device="tpu")
seen[1] += 2
print("changed", seen.sum().item())
"""
FACTORISED = """
import torch

matrix = torch.eye(4, device="tpu")
named = {
    "cholesky": torch.linalg.cholesky_ex(matrix).info,
    "inverse": torch.linalg.inv_ex(matrix).info,
    "lu": torch.linalg.lu_factor_ex(matrix).info,
    "ldl": torch.linalg.ldl_factor_ex(matrix).info,
    "solution": torch.linalg.solve_ex(matrix, torch.ones(4, 1, device="tpu")).info,
}
failed = [name for name, info in named.items() if torch.any(info)]
print("failed:", failed)
"""
ENDLESS = """
import torch

x = torch.ones(4, device="tpu")
while x.sum().item() < 100:
    x = x * 2
"""


def _run(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    code = "from torchtpu_core.cli.app import main; main()"
    options = ("--target", "v5e:1x1", "--json", "plan.json")
    return warm_python.run(
        [sys.executable, "-c", code, "plan", str(script), *options],
        cwd=tmp_path,
        timeout=300,
    )


def test_values_are_taken_to_be_finite(tmp_path) -> None:
    done = _run(tmp_path, SCALED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no optimizer step was seen" not in done.stdout
    assert "loss 1.000" in done.stdout
    plan = json.loads((tmp_path / "plan.json").read_text())
    assert plan["hbm"]["at_peak"]["optimizer state"] >= 4 * (64 * 64 + 64)


def test_step_of_two_optimizers_holds_both(tmp_path) -> None:
    done = _run(tmp_path, TWO_OPTIMIZERS)
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    # Products of 8 x 64 by 64 x 64: forward twice each; backward two weights of the judge, its
    # input's gradient once, one weight of the maker.
    flops = (2 + 2 + 2 + 1 + 1) * 2 * 8 * 64 * 64
    assert plan["mfu"] * plan["step_s"] * 197e12 == pytest.approx(flops, rel=0.01)
    parameters = 2 * 4 * (64 * 64 + 64)
    assert plan["hbm"]["at_peak"]["optimizer state"] == pytest.approx(2 * parameters, rel=0.02)


def test_generation_ends_by_its_length(tmp_path) -> None:
    done = _run(tmp_path, GENERATION)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "length 9" in done.stdout
    assert "longer 18" in done.stdout
    assert "changed 1.0" in done.stdout  # not the zero it was filled with


def test_checkpoint_is_not_written_over_the_users(tmp_path) -> None:
    (tmp_path / "best.pt").write_bytes(b"the user's")
    done = _run(tmp_path, SAVED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "best.pt").read_bytes() == b"the user's"
    assert "script.py:10 saves a checkpoint" in " ".join(done.stdout.split())


def test_loop_that_waits_for_a_value_is_named(tmp_path) -> None:
    done = _run(tmp_path, ENDLESS)
    assert done.returncode == 1
    assert "script.py:5 has read a number" in " ".join(done.stderr.split())


SYNCHRONISED = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
layers = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8))
model = DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(layers).to("tpu"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    model(torch.randn(4, 3, 8, 8, device="tpu")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_norm_over_all_ranks_is_planned_with_samples_on_each(planned) -> None:
    rows = planned(SYNCHRONISED)["communication"]["collectives"]
    gathered, summed = rows["all_gather of 4 ranks"], rows["all_reduce of 4 ranks"]
    # Mean and deviation of 8 features, and the count; their gradients' sums; DDP's gradients.
    assert (gathered["runs"], gathered["bytes_per_rank"]) == (1, 4 * (2 * 8 + 1))
    assert summed["runs"] == 2


def test_factorisations_are_taken_to_succeed(tmp_path) -> None:
    done = _run(tmp_path, FACTORISED)
    assert "failed: []" in done.stdout, done.stdout + done.stderr
