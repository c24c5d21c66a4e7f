# SPDX-License-Identifier: Apache-2.0
"""Plans of scripts see the collectives that DTensors of the device make."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import warm_python

SCRIPT = """
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.experimental import context_parallel
from torch.nn import functional as F

dist.init_process_group()
mesh = init_device_mesh("tpu", (dist.get_world_size(),))
project = nn.Linear(64, 3 * 64, bias=False).to("tpu")
optimizer = torch.optim.SGD(project.parameters())
for _ in range(3):
    x = torch.randn(1, 256, 64, device="tpu")
    with context_parallel(mesh, buffers=(x,), buffer_seq_dims=(1,)):
        q, k, v = project(x).view(1, -1, 3, 4, 16).permute(2, 0, 3, 1, 4)
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()
    optimizer.step()
"""


def test_attention_along_the_sequence_sends_keys_and_values(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    code = "from torchtpu_core.cli.app import main; main()"
    options = ("--target", "v5p:2x2x1", "--json", "plan.json")
    command = [sys.executable, "-c", code, "plan", "script.py", *options]
    done = warm_python.run(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "read from the environment" not in done.stdout  # not by the script
    collectives = json.loads((tmp_path / "plan.json").read_text())["communication"]["collectives"]
    gathered = collectives["all_gather of 4 ranks"]
    heads, tokens, width = 4, 256 // 4, 16
    assert gathered["bytes_per_rank"] == gathered["runs"] * 2 * 4 * heads * tokens * width
    assert "all_to_all of 4 ranks" in collectives  # the gradients of keys and values go round
