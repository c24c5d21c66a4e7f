# SPDX-License-Identifier: Apache-2.0
"""Twelve steps on a device. argv: the device; `join` makes a process group, `reduce` uses it."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

device, *join = sys.argv[1:]
if join:
    dist.init_process_group("tpu_dist")
weight = torch.nn.Parameter(torch.ones(2, device=device))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(12):
    optimizer.zero_grad()
    weight.sum().backward()
    if "reduce" in join:
        dist.all_reduce(weight.grad)
    optimizer.step()
print(torch.zeros(1, device="tpu").cpu(), weight.detach().cpu())
if join:
    dist.destroy_process_group()
