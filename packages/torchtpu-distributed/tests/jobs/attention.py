# SPDX-License-Identifier: Apache-2.0
"""Attention over ranks: along the sequence, by batch and by head, against one process."""

from __future__ import annotations

import torch
from torch import distributed as dist
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.experimental._attention import _cp_options, context_parallel_unshard
from torch.nn import functional

Tensor = torch.Tensor
Pair = tuple[list[Tensor], list[Tensor]]


def operands(key_heads: int = 4) -> list[Tensor]:
    """Query, key and value `(batch 2, heads 4 or fewer, sequence 16, 8)`."""
    generator = torch.Generator().manual_seed(1)
    heads = (4, key_heads, key_heads)
    return [torch.randn(2, count, 16, 8, generator=generator) for count in heads]


def alone(causal: bool, key_heads: int = 4) -> list[Tensor]:
    """The result and the gradients of one process."""
    leaves = [t.requires_grad_() for t in operands(key_heads)]
    result = functional.scaled_dot_product_attention(
        *leaves, is_causal=causal, enable_gqa=key_heads != 4
    )
    result.pow(2).sum().backward()
    return [result.detach(), *(t.grad for t in leaves)]


def along_the_sequence(causal: bool) -> Pair:
    """PyTorch's context_parallel, with load balance where it is causal."""
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    parts = [t.to("tpu") for t in operands()]
    _cp_options.enable_load_balance = causal
    with context_parallel(
        mesh, buffers=parts, buffer_seq_dims=[2] * 3, no_restore_buffers=set(parts)
    ):
        leaves = [part.requires_grad_() for part in parts]
        result = functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        result.pow(2).sum().backward()
        found = context_parallel_unshard(
            mesh, [result.detach(), *(t.grad for t in leaves)], [2] * 4
        )
    return [t.cpu() for t in found], alone(causal)


def by_placement(dim: int | None, key_heads: int = 4) -> Pair:
    """DTensors that are sharded by batch or head, or replicated; heads may share keys."""
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    placement = Replicate() if dim is None else Shard(dim)
    leaves = [
        distribute_tensor(t.to("tpu"), mesh, [placement]).requires_grad_()
        for t in operands(key_heads)
    ]
    result = functional.scaled_dot_product_attention(
        *leaves, is_causal=True, enable_gqa=key_heads != 4
    )
    result.pow(2).sum().backward()
    found = [result.full_tensor().detach(), *(t.grad.full_tensor() for t in leaves)]
    return [t.cpu() for t in found], alone(True, key_heads)
