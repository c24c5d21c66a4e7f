# SPDX-License-Identifier: Apache-2.0
"""Three steps on a device, after joining a process group or not: argv is device and `join`."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

device, *join = sys.argv[1:]
if join:
    dist.init_process_group("tpu_dist")
weight = torch.nn.Parameter(torch.ones(2, device=device))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
print(torch.zeros(1, device="tpu").cpu(), weight.detach().cpu())
if join:
    dist.destroy_process_group()
