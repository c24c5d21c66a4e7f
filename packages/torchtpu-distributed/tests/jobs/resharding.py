# SPDX-License-Identifier: Apache-2.0
"""FSDP2 training that saves a distributed checkpoint, or goes on from one of another layout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from feature_parts import Net, batch, loss_of, share, whole
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.stateful import Stateful

Tensor = torch.Tensor


class Training(Stateful):
    """A network that counts its calls, two groups of parameters, a schedule, and the step."""

    def __init__(self, mesh_shape: tuple[int, ...] | None = None) -> None:
        """On the CPU, or sharded over the last axis of a mesh and replicated over the first."""
        torch.manual_seed(3)
        self.model = Net()
        self.model.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.sharded = mesh_shape is not None
        if mesh_shape is not None:
            names = ("replicate", "shard")[-len(mesh_shape) :]
            self._shard(dist.init_device_mesh("tpu", mesh_shape, mesh_dim_names=names))
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        vectors = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=0.05)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        self.done = 0

    def _shard(self, mesh: dist.DeviceMesh) -> None:
        from torch.distributed.fsdp import fully_shard

        self.model.to("tpu")
        for layer in (self.model.first, self.model.second):
            fully_shard(layer, mesh=mesh)
        fully_shard(self.model, mesh=mesh)

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        model, optimizer = get_state_dict(self.model, self.optimizer)
        rest = {"schedule": self.schedule.state_dict(), "done": self.done}
        return {"model": model, "optimizer": optimizer, **rest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        set_state_dict(
            self.model,
            self.optimizer,
            model_state_dict=state["model"],
            optim_state_dict=state["optimizer"],
        )
        self.schedule.load_state_dict(state["schedule"])
        self.done = state["done"]

    def step(self) -> tuple[Tensor, Tensor]:
        """One step; the loss and the norm of the gradients, of the whole batch."""
        rows = batch(self.done)
        self.model.calls += 1
        self.optimizer.zero_grad()
        loss = loss_of(self.model, *(map(share, rows) if self.sharded else rows))
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        self.schedule.step()
        self.done += 1
        loss = loss.detach()
        if self.sharded:
            dist.all_reduce(loss, dist.ReduceOp.AVG)
        return loss.cpu(), whole(norm)


def results(training: Training, steps: int) -> list[Tensor]:
    """Losses and norms of the next steps, then the calls counted and the parameters."""
    found = [value for _ in range(steps) for value in training.step()]
    return [*found, training.model.calls.cpu(), *map(whole, training.model.parameters())]


def leg(source: str, target: str, mesh_shape: tuple[int, ...], steps: int) -> list[Tensor]:
    """Go on from the checkpoint `source`, if there is one, and write the checkpoint `target`.

    A target whose name ends with ``async`` is written beside one more step, which it must not hold.
    """
    training = Training(mesh_shape)
    state = {"training": training}
    if source:
        checkpoint.load(state, checkpoint_id=Path(source))
    found = results(training, steps)
    if target.endswith("async"):
        writing = checkpoint.async_save(state, checkpoint_id=Path(target))
        training.step()
        writing.result()
    else:
        checkpoint.save(state, checkpoint_id=Path(target))
    return found
