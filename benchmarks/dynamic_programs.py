# SPDX-License-Identifier: Apache-2.0
"""How many programs changing sizes compile, with the GPT example.

    python benchmarks/dynamic_programs.py [CASE...] [--save]

`lengths`: the logits of 128 lengths times 16 batch sizes, in random order; `training`: the loss
and its gradients of every eighth of these. The rest writes 1024 tokens one by one, greedily:
`growing` joins each token's keys and values to those before, `static` writes them into memory for
all, `none` computes everything again for each token. One step is one compiled function, or in the
cases `growing-fused` and `none-fused` operators of Fused Eager. The model is small, because the
number of programs does not depend on its width.

Each figure is a process of its own without a program cache, and counts every program that XLA
compiled, those of eager operators too, but for the zeros that decoding begins with. Every 97th
result, and every token written, is compared with eager PyTorch on the CPU.
"""

from __future__ import annotations

import argparse
import copy
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _measure import in_child, save
from torch import Tensor
from torch.nn import functional as F

#: The wishes of the project, for compiled steps.
BARS = {"lengths": 10, "training": 20, "growing": 8, "static": 2, "none": 10}
LENGTHS, BATCHES, TOKENS = 128, 16, 1024
CHECKED_EVERY = 97


_before = 0


def count_from_here() -> None:
    """Leave out what was compiled before."""
    global _before
    torch.tpu.synchronize()
    _before = torch.tpu.counters()["compiles"]


def example(context: int) -> Any:
    """The example's model, without dropout, in inference mode."""
    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    from train_gpt import GPT

    torch.manual_seed(0)
    return GPT(layers=2, width=64, heads=4, context=context, dropout=0.0).eval()


def sizes() -> list[tuple[int, int]]:
    """All batch sizes and lengths, shuffled."""
    found = [(b, n) for b in range(1, BATCHES + 1) for n in range(1, LENGTHS + 1)]
    random.Random(0).shuffle(found)
    return found


def lengths() -> None:
    """Logits of all sizes."""
    model = example(LENGTHS)
    on_device = copy.deepcopy(model).to("tpu")
    function = compiled(on_device)
    with torch.no_grad():
        for i, (batch, length) in enumerate(sizes()):
            tokens = torch.randint(0, 256, (batch, length))
            logits = function(tokens.to("tpu"))
            if i % CHECKED_EVERY == 0:
                torch.testing.assert_close(logits.cpu(), model(tokens), rtol=1e-4, atol=1e-4)


def training() -> None:
    """Loss and gradients of all sizes."""
    model = example(LENGTHS)
    on_device = copy.deepcopy(model).to("tpu")

    def loss_of(model: Any, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())

    function = compiled(loss_of)
    for i, (batch, length) in enumerate(sizes()[::8]):
        tokens, targets = torch.randint(0, 256, (2, batch, length))
        on_device.zero_grad()
        function(on_device, tokens.to("tpu"), targets.to("tpu")).backward()
        if i % CHECKED_EVERY == 0:
            model.zero_grad()
            loss_of(model, tokens, targets).backward()
            for p, q in zip(on_device.parameters(), model.parameters(), strict=True):
                torch.testing.assert_close(p.grad.cpu(), q.grad, rtol=1e-3, atol=1e-4)


Keep = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def one_token(model: Any, token: Tensor, at: Tensor, kept: list[Tensor], keep: Keep) -> Any:
    """The next token, and each layer's keys and values; `kept` are those so far, by layer."""
    x = model.token(token) + model.position(at)
    everything = []
    for block, pair in zip(model.blocks, kept, strict=True):
        attention = block.attention
        parts = attention.query_key_value(block.attention_norm(x))
        q, k, v = parts.view(1, 1, 3, attention.heads, -1).permute(2, 0, 3, 1, 4)
        pair, mask = keep(pair, torch.stack((k, v)), at)
        y = F.scaled_dot_product_attention(q, pair[0], pair[1], attn_mask=mask)
        x = x + attention.output(y.transpose(1, 2).flatten(2))
        x = x + block.network(block.network_norm(x))
        everything.append(pair)
    return model.head(model.norm(x)).argmax(-1), everything


def joined(pair: Tensor, new: Tensor, at: Tensor) -> tuple[Tensor, Tensor | None]:
    """Keys and values with new ones behind."""
    return torch.cat((pair, new), -2), None


def written(pair: Tensor, new: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values with new ones in their place, and which count."""
    pair.index_copy_(-2, at, new)
    return pair, torch.arange(pair.shape[-2], device=pair.device)[None] <= at


def write(function: Any, model: Any, device: str, length: int) -> list[int]:
    """Tokens one by one; `length` tokens of keys and values to begin with."""
    token = torch.zeros((1, 1), dtype=torch.long, device=device)
    kept = [torch.zeros(2, 1, 4, length, 16, device=device) for _ in model.blocks]
    places = [torch.tensor([i]).to(device) for i in range(TOKENS)]
    count_from_here()
    tokens = []
    with torch.no_grad():
        for at in places:
            token, kept = function(model, token, at, kept)
            tokens.append(token)
    return [int(t.cpu()) for t in tokens]


def compiled(function: Any) -> Any:
    """A step as one function."""
    return torch.compile(function, backend="tpu")


def as_it_is(function: Any) -> Any:
    """A step as Fused Eager runs it."""
    return function


def decoding(keep: Any, length: int, prepared: Callable[[Any], Any] = compiled) -> None:
    """Write with keys and values kept."""
    model = example(TOKENS)

    def step(model: Any, token: Tensor, at: Tensor, kept: list[Tensor]) -> Any:
        return one_token(model, token, at, kept, keep)

    expected = write(step, model, "cpu", length)
    assert write(prepared(step), model.to("tpu"), "tpu", length) == expected


def none(prepared: Callable[[Any], Any] = compiled) -> None:
    """Write with nothing kept."""
    model = example(TOKENS)

    def longer(model: Any, tokens: Tensor) -> Tensor:
        return torch.cat((tokens, model(tokens)[:, -1:].argmax(-1)), 1)

    found = []
    for device in ("cpu", "tpu"):
        model.to(device)
        function = prepared(longer) if device == "tpu" else longer
        tokens = torch.zeros((1, 1), dtype=torch.long).to(device)
        with torch.no_grad():
            while tokens.shape[1] < TOKENS:
                tokens = function(model, tokens)
        found.append(tokens.cpu())
    assert torch.equal(*found)


CASES: dict[str, Callable[[], None]] = {
    "lengths": lengths,
    "training": training,
    "growing": lambda: decoding(joined, 0),
    "static": lambda: decoding(written, TOKENS),
    "none": none,
    "growing-fused": lambda: decoding(joined, 0, as_it_is),
    "none-fused": lambda: none(as_it_is),
}


def child(name: str) -> dict[str, float]:
    """Run one case."""
    count_from_here()
    began = time.process_time()
    CASES[name]()
    torch.tpu.synchronize()
    compiled = torch.tpu.counters()["compiles"] - _before
    return {"programs": compiled, "cpu s": round(time.process_time() - began, 1)}


def main() -> None:
    """Count, print, and save with ``--save``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cases", nargs="*", default=list(CASES))
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--child", default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        print(json.dumps(child(args.child)))
        return
    figures = {}
    for name in args.cases:
        found = in_child(__file__, name, TORCH_TPU_CACHE_DIR="")
        wanted = {"wanted at most": BARS[name]} if name in BARS else {}
        figures[name] = found | wanted
        print(name, figures[name], flush=True)
    if args.save:
        print(save("dynamic_programs", figures).name)


if __name__ == "__main__":
    main()
