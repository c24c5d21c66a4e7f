# SPDX-License-Identifier: Apache-2.0
"""What both examples share: the record of a run, its curve as a picture, and batch order.

Nothing here knows which device a run used; the device is only a string in the record.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

import matplotlib
import torch

matplotlib.use("Agg")
from matplotlib import pyplot as plt


@dataclass(kw_only=True)
class Run:
    """One training run.

    Attributes:
        name: what was trained, such as ``digits``.
        device: the device string the run was given.
        losses: training loss of every step, in order.
        metrics: final figures by name, such as ``test accuracy``.
        seconds: wall time of the training loop, compilation included.
    """

    name: str
    device: str
    losses: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0

    def save(self, folder: Path) -> Path:
        """Write ``<name>-<device>.json`` and the loss curve beside it; return the PNG's path."""
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / f"{self.name}-{self.device.replace(':', '')}"
        stem.with_suffix(".json").write_text(json.dumps(asdict(self)))
        return plot_curves([self], stem.with_suffix(".png"))


def load(path: Path) -> Run:
    """Read a record that `Run.save` wrote."""
    return Run(**json.loads(path.read_text()))


def plot_curves(runs: list[Run], path: Path) -> Path:
    """Draw the loss curves of some runs into one PNG; return its path."""
    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for run, style in zip(runs, ("-", "--", "-.", ":"), strict=False):
        axes.plot(range(1, len(run.losses) + 1), run.losses, style, label=run.device)
    axes.set(title=f"{runs[0].name}: training loss", xlabel="step", ylabel="cross entropy (nats)")
    axes.grid(alpha=0.3)
    axes.legend(title="device")
    figure.savefig(path, dpi=130)
    plt.close(figure)
    return path


def shuffled_batches(size: int, batch: int, generator: torch.Generator) -> Iterator[torch.Tensor]:
    """Index batches without end: ``[batch]`` int64 each, a new order every epoch.

    The last incomplete batch of an epoch is left out, so that every step has one shape.
    """
    while True:
        yield from torch.randperm(size, generator=generator).split(batch)[: size // batch]
