# SPDX-License-Identifier: Apache-2.0
"""Started by `torchtpu run`: one reduction, or a wait for a collective that never comes."""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed as dist

dist.init_process_group()
rank = dist.get_rank()
torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
x = torch.tensor(rank + 1.0, device="tpu")
dist.all_reduce(x)
line = f"rank {rank} of {dist.get_world_size()} on {os.environ['TORCH_TPU_TARGET']}: {x.item()}\n"
if sys.argv[1] == "wait":
    line = f"rank {rank} waits in process {os.getpid()}\n"
os.write(1, line.encode())  # in one piece: the ranks share the stream
if sys.argv[1] == "wait":
    dist.recv(x, (rank + 1) % 2)
dist.destroy_process_group()
