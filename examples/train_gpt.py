# SPDX-License-Identifier: Apache-2.0
"""Train a small GPT on the source of Python's standard library, then let it write some.

    python examples/train_gpt.py --device tpu
    torchrun --nproc-per-node 2 examples/train_gpt.py --device tpu

Plain PyTorch: the device string is the only thing that changes between cpu, cuda and tpu.
Initial weights and batches come from seeded CPU generators, so two devices train on the same
numbers. Under torchrun each rank takes its share of the same global batch, so the loss is that
of one process with the whole batch.

Shapes: B sequences, T tokens of context, D model width, V vocabulary (the 256 bytes).
"""

from __future__ import annotations

import argparse
import math
import os
import sysconfig
import time
from pathlib import Path

import torch
from _common import Run
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

VOCABULARY = 256
WARM_UP_STEPS = 20


class Attention(nn.Module):
    """``[B, T, D] -> [B, T, D]``: causal self-attention with several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.query_key_value = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Attend to this and earlier positions."""
        b, t, d = x.shape
        q, k, v = (
            part.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for part in self.query_key_value(x).split(d, dim=2)
        )
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=dropout)
        return F.dropout(self.output(y.transpose(1, 2).reshape(b, t, d)), dropout)


class Block(nn.Module):
    """``[B, T, D] -> [B, T, D]``: attention and a GELU network, normalised before each."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.network_norm = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.network(self.network_norm(x))


class GPT(nn.Module):
    """``[B, T]`` int64 tokens ``-> [B, T, V]`` logits; the embedding is also the output layer."""

    def __init__(self, layers: int, width: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(context, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.apply(self._initialize)
        self.head.weight = self.token.weight

    @staticmethod
    def _initialize(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the next token at every position."""
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.dropout(self.token(tokens) + self.position(positions))
        return self.head(self.norm(self.blocks(x)))


def standard_library() -> Tensor:
    """The top-level modules of Python's standard library, one after another, as bytes."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return torch.frombuffer(bytearray(b"\n".join(f.read_bytes() for f in files)), dtype=torch.uint8)


def parameter_groups(model: nn.Module, decay: float) -> list[dict[str, object]]:
    """Weight decay for matrices and embeddings, none for biases and norms."""
    parameters = list(model.parameters())
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def learning_rate_factor(step: int, steps: int) -> float:
    """Linear warm-up, then a cosine from 1 down to 0.1."""
    if step < WARM_UP_STEPS:
        return (step + 1) / WARM_UP_STEPS
    progress = (step - WARM_UP_STEPS) / max(1, steps - WARM_UP_STEPS)
    return 0.1 + 0.45 * (1 + math.cos(math.pi * progress))


def rank_and_world(device: torch.device) -> tuple[int, int]:
    """This process and how many there are: from torchrun if it started us, else one of one."""
    if "WORLD_SIZE" not in os.environ:
        return 0, 1
    distributed.init_process_group()
    if device.type != "cpu":
        local = int(os.environ.get("LOCAL_RANK", "0"))
        torch.accelerator.set_device_index(local % torch.accelerator.device_count())
    return distributed.get_rank(), distributed.get_world_size()


class Batches:
    """Random windows of the corpus; every rank draws all of a batch and keeps its share."""

    def __init__(self, args: argparse.Namespace, rank: int, world: int) -> None:
        if args.batch % world:
            raise SystemExit(f"--batch {args.batch} does not divide among {world} processes.")
        self.corpus = standard_library()
        self.generator = torch.Generator().manual_seed(args.seed)
        self.batch, self.context = args.batch, args.context
        self.share = slice(rank * args.batch // world, (rank + 1) * args.batch // world)

    def next(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Tokens ``[B, T]`` and, one position on, what should follow them."""
        starts = torch.randint(
            len(self.corpus) - self.context - 1, (self.batch, 1), generator=self.generator
        )
        windows = starts[self.share] + torch.arange(self.context + 1)
        tokens = self.corpus[windows].long().to(device)
        return tokens[:, :-1], tokens[:, 1:]


def train(args: argparse.Namespace, model: nn.Module, rank: int, world: int) -> Run:
    """Train the model in place; the record holds the loss over the global batch."""
    device = torch.device(args.device)
    batches = Batches(args, rank, world)
    optimizer = torch.optim.AdamW(
        parameter_groups(model, decay=0.1), lr=args.learning_rate, betas=(0.9, 0.95)
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: learning_rate_factor(step, args.steps)
    )
    wrapped = DistributedDataParallel(model) if world > 1 else model
    run = Run(name="gpt", device=args.device)
    losses: list[Tensor] = []
    start = time.perf_counter()
    progress = tqdm(range(args.steps), f"gpt on {args.device}", unit="step", disable=rank > 0)
    for step in progress:
        tokens, targets = batches.next(device)
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=args.bf16):
            logits = wrapped(tokens)
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % 20 == 0:
            progress.set_postfix(loss=f"{loss.item():.4f}")
    curve = torch.stack(losses)
    if world > 1:
        distributed.all_reduce(curve)
    run.losses = (curve / world).tolist()
    run.seconds = time.perf_counter() - start
    return run


@torch.no_grad()
def sample(model: nn.Module, prompt: bytes, args: argparse.Namespace) -> str:
    """Continue the prompt by ``args.sample`` bytes.

    The window has one shape at every position (what lies behind the cursor is masked by
    causality), and the choice is drawn on the CPU, so devices can be compared.
    """
    model.eval()
    generator = torch.Generator().manual_seed(args.seed)
    end = len(prompt) + args.sample
    tokens = torch.zeros(1, max(end, args.context), dtype=torch.long, device=args.device)
    tokens[0, : len(prompt)] = torch.tensor(list(prompt))
    for cursor in range(len(prompt), end):
        first = max(0, cursor - args.context)
        logits = model(tokens[:, first : first + args.context])[0, cursor - 1 - first]
        choice = torch.multinomial((logits.float() / 0.8).softmax(0).cpu(), 1, generator=generator)
        tokens[0, cursor] = choice.item()
    text = bytes(tokens[0, :end].tolist()).decode("ascii", errors="replace")
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, tpu, cuda, ... (default: cpu)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=16, help="sequences over all processes")
    parser.add_argument("--context", type=int, default=32, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--bf16", action="store_true", help="autocast matmuls to bfloat16")
    parser.add_argument("--sample", type=int, default=200, help="bytes to write at the end")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the results")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Train, save the record and the curve, print the outcome and a sample."""
    args = arguments(argv)
    rank, world = rank_and_world(torch.device(args.device))
    torch.manual_seed(args.seed)
    model = GPT(args.layers, args.width, args.heads, args.context, args.dropout).to(args.device)
    run = train(args, model, rank, world)
    if rank == 0:
        picture = run.save(args.out)
        print(f"final loss {run.losses[-1]:.4f}, {run.seconds:.1f} s, curve in {picture}")
        if args.sample:
            print(sample(model, b"def __init__(self", args))
    if world > 1:
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
