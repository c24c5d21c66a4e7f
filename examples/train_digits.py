# SPDX-License-Identifier: Apache-2.0
"""Train a small residual network on scikit-learn's handwritten digits.

    python examples/train_digits.py --device tpu

Plain PyTorch: the device string is the only thing that changes between cpu, cuda and tpu.
Initial weights and batch order come from seeded CPU generators, so two devices train on the
same numbers and their loss curves can be compared. The activation is SiLU, not ReLU: at ReLU's kink
a rounding error flips a gradient from 0 to 1, which drives two float32 runs apart within a
hundred steps; a smooth activation keeps them together.

Shapes: N batch, C channels, H and W the 8x8 image.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from _common import Run, shuffled_batches
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm


class ResidualBlock(nn.Module):
    """``[N, C_in, H, W] -> [N, C_out, H/stride, W/stride]``: two 3x3 convolutions and a skip."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.SiLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.skip: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.skip = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Apply the block."""
        return F.silu(self.body(x) + self.skip(x))


def residual_network(width: int) -> nn.Sequential:
    """``[N, 1, 8, 8] -> [N, 10]`` logits: a stem, three residual blocks, mean pool, linear."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.SiLU(),
        ResidualBlock(width, width),
        ResidualBlock(width, 2 * width, stride=2),
        ResidualBlock(2 * width, 4 * width, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Train images ``[1437, 1, 8, 8]`` in [0, 1] and labels, then 360 test images and labels."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    train, test = train_test_split(range(len(labels)), test_size=0.2, random_state=0)
    targets = torch.tensor(labels)
    return pixels[train], targets[train], pixels[test], targets[test]


def train(args: argparse.Namespace) -> Run:
    """Train and test as the arguments say."""
    torch.manual_seed(args.seed)
    device = torch.device(args.device)
    images, labels, test_images, test_labels = digits()
    model = residual_network(args.width).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.learning_rate, momentum=0.9, nesterov=True, weight_decay=5e-4
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.learning_rate, total_steps=args.steps
    )
    batches = shuffled_batches(len(labels), args.batch, torch.Generator().manual_seed(args.seed))

    run = Run(name="digits", device=args.device)
    losses: list[Tensor] = []
    start = time.perf_counter()
    progress = tqdm(range(args.steps), desc=f"digits on {args.device}", unit="step")
    for step in progress:
        rows = next(batches)
        x, y = images[rows].to(device), labels[rows].to(device)
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % 20 == 0:
            progress.set_postfix(loss=f"{loss.item():.4f}")
    run.losses = torch.stack(losses).tolist()
    run.seconds = time.perf_counter() - start

    model.eval()
    with torch.no_grad():
        predicted = model(test_images.to(device)).argmax(dim=1).cpu()
    run.metrics["test accuracy"] = (predicted == test_labels).double().mean().item()
    return run


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cpu", help="cpu, tpu, cuda, ... (default: cpu)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--width", type=int, default=16, help="channels of the first block")
    parser.add_argument("--learning-rate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder of the results")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> None:
    """Train, save the record and the curve, print the outcome."""
    args = arguments(argv)
    run = train(args)
    picture = run.save(args.out)
    print(
        f"final loss {run.losses[-1]:.4f}, test accuracy {run.metrics['test accuracy']:.2%}, "
        f"{run.seconds:.1f} s, curve in {picture}"
    )


if __name__ == "__main__":
    main()
