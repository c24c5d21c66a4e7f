# SPDX-License-Identifier: Apache-2.0
"""Prints how often the collector runs while a process group and the device are made."""

from __future__ import annotations

import gc

import torch
from torch import distributed as dist

phases: list[str] = []
gc.callbacks.append(lambda phase, _info: phases.append(phase))
dist.init_process_group(store=dist.HashStore(), rank=0, world_size=1)
torch.tpu.init()
print(phases.count("start"))
dist.destroy_process_group()
