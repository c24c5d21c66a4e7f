# SPDX-License-Identifier: Apache-2.0
"""Four square products, sharded with FSDP2 over all ranks, with AdamW."""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group()
mesh = init_device_mesh("tpu", (dist.get_world_size(),))
model = nn.Sequential(*(nn.Linear(4096, 4096, bias=False) for _ in range(4)))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    x = torch.randn(8192, 4096, device="tpu")
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
