# SPDX-License-Identifier: Apache-2.0
"""Property: training scripts whose sizes and operators vary from step to step train as in Strict.

A script is a list of random operations on a handful of matrices of `(rows, 8)`; each step draws new
sizes, leaves some operations out, and ends with a step of an optimizer. So calls run at padded
sizes, streams in pieces, and programs take over while others run. Compared are all matrices,
parameters, and what the script reads, hooks included.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchtpu_core.runtime import varying

WIDTH, MATRICES, STEPS = 8, 5, 20


class Script:
    """The state of one run: matrices, parameters, and what was read.

    Args:
        seed: of everything that is drawn.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        shapes = [(WIDTH, WIDTH), (WIDTH, WIDTH), (WIDTH,), (WIDTH, WIDTH, 3)]
        self.weights = [
            (torch.randn(shape, generator=generator) / 3).to("tpu").requires_grad_()
            for shape in shapes
        ]
        kinds = [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW]
        self.optimizer = kinds[seed % 3](self.weights, lr=0.01)
        self.matrices: list[Tensor] = []
        self.read: list[float] = []

    def begin(self, step: int, rows: int) -> None:
        """Draw for a step, which all runs do alike."""
        self.random = random.Random(1000 * self.seed + step)
        generator = torch.Generator().manual_seed(1000 * self.seed + step)
        self.matrices.append(torch.randn(rows, WIDTH, generator=generator).to("tpu"))

    def any(self) -> Tensor:
        return self.random.choice(self.matrices)

    def some_rows(self, x: Tensor) -> Tensor:
        count = self.random.choice([1, 3, 7, 20])
        return torch.tensor([self.random.randrange(len(x)) for _ in range(count)]).to("tpu")

    def up_to(self, last: int) -> int:
        return self.random.randint(0, last)

    def put(self, x: Tensor) -> None:
        if len(x):
            self.matrices = [*self.matrices, torch.tanh(x[:64])][-MATRICES:]

    def end(self) -> None:
        """Learn from all matrices that depend on parameters."""
        losses = [x.square().mean() for x in self.matrices if x.requires_grad]
        if losses:
            self.optimizer.zero_grad(set_to_none=self.up_to(1) == 0)
            loss = torch.stack(losses).sum()
            loss.backward()
            self.optimizer.step()
            if self.up_to(1):
                self.read.append(float(loss.detach()))
        self.matrices = [x.detach() for x in self.matrices[-2:]]

    def state(self) -> list[Tensor]:
        return [t.detach().cpu() for t in (*self.matrices, *self.weights)]


def _written(s: Script, x: Tensor) -> Tensor:
    y, first = x.clone(), s.up_to(len(x) - 1)
    y[first : first + s.up_to(9)] = 0.5
    y[:, s.up_to(WIDTH - 1)] += 0.25
    return y


def _written_through_views(s: Script, x: Tensor) -> Tensor:
    y = x.detach().clone()
    rest = y[1:]
    rest.mul_(0.5)
    y.add_(rest.sum() / 50)
    rest[..., 2:4].zero_()
    return y


def _chosen(s: Script, x: Tensor) -> Tensor:
    (rows,) = torch.where(x.detach()[:, 0] > 0.1)
    return torch.zeros_like(x).index_add(0, rows, x[rows] * 2)


def _added(s: Script, x: Tensor) -> Tensor:
    rows = s.some_rows(x)
    return x.index_add(0, rows, torch.ones(len(rows), WIDTH).to("tpu") / 3)


def _attended(s: Script, x: Tensor) -> Tensor:
    heads = x.view(1, len(x), 2, WIDTH // 2).transpose(1, 2)
    causal = s.up_to(1) == 0
    attended = F.scaled_dot_product_attention(heads, heads, heads, is_causal=causal)
    return attended.transpose(1, 2).reshape(-1, WIDTH)


def _over_length(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return f(x.t().unsqueeze(0))[0].t()


def _noted(s: Script, x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda g: s.read.append(float(g.abs().sum())))
    return x


def _read(s: Script, x: Tensor) -> Tensor:
    s.read.append(float(x.detach().sum()))
    return x


OPERATIONS: dict[str, Callable[[Script, Tensor], Tensor]] = {
    "linear": lambda s, x: F.linear(x, s.weights[s.up_to(1)], s.weights[2]),
    "convolution": lambda s, x: _over_length(lambda t: F.conv1d(t, s.weights[3], padding=1), x),
    "grown": lambda s, x: torch.cat([x, s.any()]),
    "head": lambda s, x: x[: 1 + s.up_to(len(x) - 1)],
    "tail": lambda s, x: x[s.up_to(len(x) - 1) :],
    "every other": lambda s, x: x[::2],
    "last half": lambda s, x: x.chunk(2, 0)[-1],
    "rows": lambda s, x: x[s.some_rows(x)],
    "embedded": lambda s, x: F.embedding(s.some_rows(s.weights[0]), s.weights[0]),
    "padded": lambda s, x: F.pad(x, (0, 0, s.up_to(2), s.up_to(3)), value=0.25),
    "rolled": lambda s, x: x.roll(s.up_to(6) - 3, 0),
    "softmax": lambda s, x: 3 * x.softmax(s.up_to(1)),
    "attention": lambda s, x: (x @ s.any().t()).softmax(-1).sum(1, keepdim=True) * x,
    "fused attention": _attended,
    "lower": lambda s, x: torch.tril(x @ x.t()) @ x / 10,
    "layer norm": lambda s, x: F.layer_norm(x, (WIDTH,)),
    "centred": lambda s, x: x - x.mean(0),
    "scaled": lambda s, x: x / (x.var(1, keepdim=True) + 0.1),
    "sums": lambda s, x: x.cumsum(0) / 10,
    "sorted": lambda s, x: x.sort(0)[0],
    "greatest": lambda s, x: x - x.amax(0),
    "exponents": lambda s, x: x - x.logsumexp(0),
    "gated": lambda s, x: torch.cat([x[:, :4] * x[:, 4:].sigmoid(), x[:, 4:]], 1),
    "stacked": lambda s, x: torch.stack([x, x / 2], 1).flatten(0, 1),
    "masked": lambda s, x: x.masked_fill(x > 0.5, -1.0),
    "numbered": lambda s, x: x + torch.arange(len(x), device="tpu")[:, None] / 10,
    "written": _written,
    "written through views": _written_through_views,
    "chosen": _chosen,
    "added": _added,
    "noted": _noted,
    "read": _read,
}


def _run(seed: int) -> list[tuple[list[Tensor], list[float]]]:
    draw = random.Random(seed)
    names = draw.choices(list(OPERATIONS), k=draw.randint(6, 20))
    left_out = [draw.choice([0, 0, 0, 2, 3, 7]) for _ in names]
    rows = [draw.randint(1, 40) for _ in range(draw.choice([1, 2, 5, 13]))]
    script, states = Script(seed), []
    for step in range(STEPS):
        script.begin(step, rows[step % len(rows)])
        for name, every in zip(names, left_out, strict=True):
            x = script.any()
            if not every or step % every:
                script.put(OPERATIONS[name](script, x))
        script.end()
        states.append((script.state() if step % 5 == 4 else [], list(script.read)))
    return states


def _assert_trains_as_in_strict(seed: int) -> None:
    varying.forget()
    with torch.tpu.set_eager_mode("strict"):
        expected = _run(seed)
    with torch.tpu.set_eager_mode("fused"):
        found = _run(seed)
    for ours, theirs in zip(found, expected, strict=True):
        # optimizers turn the rounding of gradients near zero into steps of their own
        torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)


@pytest.mark.parametrize(
    "seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 60))]
)
def test_script_of_varying_steps_trains_as_in_strict(seed):
    _assert_trains_as_in_strict(seed)
