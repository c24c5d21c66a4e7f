# SPDX-License-Identifier: Apache-2.0
"""Causal attention, forward and backward, in bfloat16."""

from __future__ import annotations

import torch
from torch.nn import functional as F

shape = (4, 16, 2048, 128)
query = torch.nn.Parameter(torch.ones(shape, device="tpu", dtype=torch.bfloat16))
optimizer = torch.optim.SGD([query], lr=0.1)
for _ in range(3):
    key, value = (torch.randn(shape, device="tpu", dtype=torch.bfloat16) for _ in range(2))
    optimizer.zero_grad()
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    out.float().square().mean().backward()
    optimizer.step()
