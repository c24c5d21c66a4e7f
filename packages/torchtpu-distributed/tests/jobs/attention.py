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


def wanting(parts: list[Tensor], names: str) -> list[Tensor]:
    """Query, key and value as leaves, of which those with a letter in `names` want a gradient."""
    return [t.requires_grad_(name in names) for t, name in zip(parts, "qkv", strict=True)]


def gradients(leaves: list[Tensor]) -> list[Tensor]:
    """Those there are; what wants none has none."""
    assert all((t.grad is not None) == t.requires_grad for t in leaves)
    return [t.grad for t in leaves if t.grad is not None]


def alone(causal: bool, key_heads: int = 4, names: str = "qkv") -> list[Tensor]:
    """The result and the gradients of one process."""
    leaves = wanting(operands(key_heads), names)
    result = functional.scaled_dot_product_attention(
        *leaves, is_causal=causal, enable_gqa=key_heads != 4
    )
    result.pow(2).sum().backward()
    return [result.detach(), *gradients(leaves)]


def along_the_sequence(causal: bool, names: str = "qkv") -> Pair:
    """PyTorch's context_parallel, with load balance where it is causal."""
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    parts = [t.to("tpu") for t in operands()]
    _cp_options.enable_load_balance = causal
    with context_parallel(
        mesh, buffers=parts, buffer_seq_dims=[2] * 3, no_restore_buffers=set(parts)
    ):
        leaves = wanting(parts, names)
        result = functional.scaled_dot_product_attention(*leaves, is_causal=causal)
        result.pow(2).sum().backward()
        local = [result.detach(), *gradients(leaves)]
        found = context_parallel_unshard(mesh, local, [2] * len(local))
    return [t.cpu() for t in found], alone(causal, names=names)


def by_placement(dim: int | None, key_heads: int = 4, names: str = "qkv") -> Pair:
    """DTensors that are sharded by batch or head, or replicated; heads may share keys."""
    mesh = dist.init_device_mesh("tpu", (dist.get_world_size(),))
    placement = Replicate() if dim is None else Shard(dim)
    whole = [t.to("tpu") for t in operands(key_heads)]
    leaves = wanting([distribute_tensor(t, mesh, [placement]) for t in whole], names)
    result = functional.scaled_dot_product_attention(
        *leaves, is_causal=True, enable_gqa=key_heads != 4
    )
    result.pow(2).sum().backward()
    found = [result.detach(), *gradients(leaves)]
    return [t.full_tensor().cpu() for t in found], alone(True, key_heads, names)
