# SPDX-License-Identifier: Apache-2.0
"""Scripts whose trace differs at every step, Fused and Strict.

    python benchmarks/varying_traces.py [operators sizes layers terms rounds] [--rounds 3] [--save]

``operators``: 300 random chains of 20 to 60 of ten operators on a 64x64 tensor, which are all
compiled before. ``sizes``: 25 such chains, each on a tensor of a size that was not met before.
``layers``: 100 steps of AdamW on a transformer of six layers, each of which a step leaves out with
a chance of one in five. ``terms``: 100 steps of Adam on a small convolutional network with five
heads, of which a step takes some. ``rounds``: 100 steps of AdamW on a transformer of two layers,
with gradients of one to four micro-batches. Each figure is a process with an empty cache; the modes
take turns. Seconds of wall time and of CPU time.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from _measure import arguments, compare_modes, print_seconds, save

STEPS = {"operators": 300, "sizes": 25, "layers": 100, "terms": 100, "rounds": 100}
WARM_UP = 5


def _chains(kind: str) -> Callable[[int], None]:
    """A step of a random chain of operators; five are made before."""
    import torch

    chosen = random.Random(0)
    functions = (
        *(torch.sin, torch.cos, torch.exp, torch.tanh, torch.relu, torch.sigmoid),
        lambda x: x * 0.5,
        lambda x: x + 1,
        lambda x: x - x.mean(),
        lambda x: x.abs().sqrt(),
    )

    def step(size: int) -> None:
        x = torch.ones(size, 64, device="tpu")
        for _ in range(chosen.randint(20, 60)):
            x = chosen.choice(functions)(x)
        x.sum().item()

    for _ in range(WARM_UP):
        step(64)
    return lambda index: step(65 + index if kind == "sizes" else 64)


class _Transformer:
    """A language model and its optimizer.

    Args:
        layers: how many.
    """

    def __init__(self, layers: int) -> None:
        import torch
        from torch import nn

        torch.manual_seed(0)
        layer = {"nhead": 4, "dim_feedforward": 128, "batch_first": True, "norm_first": True}
        self.embedding, self.head = nn.Embedding(100, 64).to("tpu"), nn.Linear(64, 100).to("tpu")
        made = (nn.TransformerEncoderLayer(64, **layer) for _ in range(layers))
        self.layers = nn.ModuleList(made).to("tpu")
        self.model = nn.ModuleList((self.embedding, self.layers, self.head))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.tokens = torch.randint(0, 100, (512, 33))

    def loss(self, index: int, chosen: Callable[[], bool]) -> Any:
        """Of a batch, with those of the layers that are chosen."""
        from torch.nn import functional

        batch = self.tokens[index * 16 % 512 :][:16].to("tpu")
        x = self.embedding(batch[:, :-1])
        for each in self.layers:
            x = each(x) if chosen() else x
        return functional.cross_entropy(self.head(x).flatten(0, 1), batch[:, 1:].flatten())

    def update(self) -> None:
        """From the gradients, which are forgotten."""
        from torch import nn

        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()


def _layers() -> Callable[[int], None]:
    """A training step of a transformer that leaves layers out."""
    transformer, chosen = _Transformer(6), random.Random(0)

    def step(index: int) -> None:
        loss = transformer.loss(index, lambda: chosen.random() < 0.8)
        loss.backward()
        transformer.update()
        loss.item()

    return step


def _rounds() -> Callable[[int], None]:
    """A training step with a number of micro-batches."""
    transformer, chosen = _Transformer(2), random.Random(0)

    def step(index: int) -> None:
        count = chosen.randint(1, 4)
        for part in range(count):
            loss = transformer.loss(4 * index + part, lambda: True) / count
            loss.backward()
        transformer.update()
        loss.item()

    return step


def _terms() -> Callable[[int], None]:
    """A training step whose loss has some of five terms."""
    import torch
    from torch import nn

    torch.manual_seed(0)
    chosen = random.Random(0)
    body = nn.Sequential(
        *(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()),
        *(nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 64)),
    ).to("tpu")
    heads = nn.ModuleList(nn.Linear(64, 10) for _ in range(5)).to("tpu")
    optimizer = torch.optim.Adam([*body.parameters(), *heads.parameters()], lr=1e-3)
    images, labels = torch.randn(512, 3, 16, 16), torch.randint(0, 10, (512, 5))

    def step(index: int) -> None:
        first = index * 16 % 512
        x = body(images[first : first + 16].to("tpu"))
        y = labels[first : first + 16].to("tpu")
        loss = x.square().mean() * 1e-3
        for place, head in enumerate(heads):
            if place == 0 or chosen.random() < 0.5:
                loss = loss + nn.functional.cross_entropy(head(x), y[:, place])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def child(kind: str) -> None:
    """The steps of a kind in the mode that the environment names; prints the figures."""
    step = {"layers": _layers, "terms": _terms, "rounds": _rounds}.get(
        kind, lambda: _chains(kind)
    )()

    def steps() -> None:
        for index in range(STEPS[kind]):
            step(index)

    print_seconds(steps)


def main() -> None:
    """Measure, print, and save with ``--save``."""
    args = arguments(__doc__, list(STEPS), child)
    if args is None:
        return
    figures = compare_modes(__file__, args)
    if args.save:
        print(save("varying_traces", figures))


if __name__ == "__main__":
    main()
