# SPDX-License-Identifier: Apache-2.0
"""Four pairs of linear layers in bfloat16 with AdamW."""

from __future__ import annotations

import torch
from torch import nn

pairs = [(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)) for _ in range(4)]
model = nn.Sequential(*(layer for pair in pairs for layer in pair))
model = model.to("tpu").bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    x = torch.randn(4096, 1024, device="tpu", dtype=torch.bfloat16)
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
