# SPDX-License-Identifier: Apache-2.0
"""Llama 3.1 with FSDP2, tensor parallelism and activation checkpointing, in plain PyTorch.

What `torchtpu plan` is measured on:

    torchtpu plan benchmarks/llama_fsdp_tp.py --target v5p:8x16x32 -- --model 405b --tp 8

Random tokens, no data set; weights stay as they were allocated.

Shapes: B sequences, T tokens, D model width, H heads of width W.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

# Layers, width, heads, key heads, hidden width.
SIZES = {
    "tiny": (2, 512, 8, 4, 1408),
    "8b": (32, 4096, 32, 8, 14336),
    "70b": (80, 8192, 64, 8, 28672),
    "405b": (126, 16384, 128, 8, 53248),
}
VOCABULARY = 128256


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``[B, T, H, W]``: rotary position embedding."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Attention(nn.Module):
    """``[B, T, D] -> [B, T, D]``: causal attention with grouped keys and values."""

    def __init__(self, width: int, heads: int, key_heads: int) -> None:
        super().__init__()
        self.head = width // heads
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_heads * self.head, bias=False)
        self.value = nn.Linear(width, key_heads * self.head, bias=False)
        self.output = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Attend to this and earlier positions."""
        b, t, _ = x.shape
        q, k, v = (f(x).view(b, t, -1, self.head) for f in (self.query, self.key, self.value))
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        groups = q.shape[2] // k.shape[2]
        k, v = k.repeat_interleave(groups, 2), v.repeat_interleave(groups, 2)
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True
        )
        return self.output(y.transpose(1, 2).reshape(b, t, -1))


class Network(nn.Module):
    """``[B, T, D] -> [B, T, D]``: a gated feed-forward network."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the network."""
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """``[B, T, D] -> [B, T, D]``: attention and network, normalised before each."""

    def __init__(self, width: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.attention_norm, self.network_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, heads, key_heads)
        self.network = Network(width, hidden)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Apply the block."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.network(self.network_norm(x))


class Llama(nn.Module):
    """``[B, T]`` tokens ``-> [B, T, V]`` logits."""

    def __init__(self, layers: int, width: int, heads: int, key_heads: int, hidden: int) -> None:
        super().__init__()
        self.head = width // heads
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.layers = nn.ModuleList(Block(width, heads, key_heads, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.output = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token."""
        x = self.tokens(tokens)
        places = torch.arange(tokens.shape[1], device=tokens.device)
        rates = 500000 ** -(torch.arange(0, self.head, 2, device=tokens.device) / self.head)
        angles = torch.outer(places, rates).repeat(1, 2)[None, :, None]
        cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
        for layer in self.layers:
            x = checkpoint(layer, x, cos, sin, use_reentrant=False)
        return self.output(self.norm(x))


def split(model: Llama, mesh: object) -> None:
    """Tensor parallelism, with the sequence split between the matrices."""
    ends = {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "output": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }
    parallelize_module(model, mesh, ends)
    for layer in model.layers:
        gather = {"input_layouts": (Shard(1),), "desired_input_layouts": (Replicate(),)}
        three = {key: (value[0], None, None) for key, value in gather.items()}
        plan = {
            "attention_norm": SequenceParallel(),
            "network_norm": SequenceParallel(),
            "attention": PrepareModuleInput(**three),
            "attention.output": RowwiseParallel(output_layouts=Shard(1)),
            "network": PrepareModuleInput(**gather),
            "network.down": RowwiseParallel(output_layouts=Shard(1)),
        }
        for name in ("attention.query", "attention.key", "attention.value"):
            plan[name] = ColwiseParallel()
        for name in ("network.gate", "network.up"):
            plan[name] = ColwiseParallel()
        parallelize_module(layer, mesh, plan)


def main() -> None:
    """Train on random tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=SIZES, default="tiny")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--sequence", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=10)
    args = parser.parse_args()
    dist.init_process_group()
    shape = (dist.get_world_size() // args.tp, args.tp)
    mesh = init_device_mesh("tpu", shape, mesh_dim_names=("fsdp", "tp"))
    with torch.device("meta"):
        model = Llama(*SIZES[args.model])
    if args.tp > 1:
        split(model, mesh["tp"])
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.layers:
        fully_shard(layer, mesh=mesh["fsdp"], mp_policy=policy)
    fully_shard(model, mesh=mesh["fsdp"], mp_policy=policy)
    model.to_empty(device="tpu")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(args.steps):
        tokens = torch.randint(0, VOCABULARY, (args.batch, args.sequence + 1), device="tpu")
        logits = model(tokens[:, :-1]).flatten(0, 1).float()
        loss = F.cross_entropy(logits, tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(step, loss.item())


if __name__ == "__main__":
    main()
