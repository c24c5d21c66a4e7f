# SPDX-License-Identifier: Apache-2.0
"""Training that resumes from its last checkpoint; one rank is killed once.

    torchtpu run --chips 2 --max-restarts 1 elastic.py <folder> <step, or -1> <rank> <phase>

The rank dies at the beginning of the step, or while it writes the checkpoint of that step.

Prints ``step loss`` on rank 0; a step that is repeated after the restart is printed again.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

STEPS = 5


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """This rank's rows of a step."""
    generator = torch.Generator().manual_seed(100 * step + dist.get_rank())
    return tuple(torch.randn(4, 6, generator=generator).to("tpu") for _ in range(2))


def die(*args: object, **options: object) -> None:
    """As the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: Path, fatal: int, victim: int, phase: str) -> None:
    """Train from the last checkpoint on."""
    dist.init_process_group()
    torch.tpu.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6)).to("tpu")
    fully_shard(model, mesh=dist.init_device_mesh("tpu", (dist.get_world_size(),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done = sorted(int(path.parent.name) for path in folder.glob("*/.metadata"))
    begin = done[-1] + 1 if done else 0
    weights, state = get_state_dict(model, optimizer)
    if done:
        saved = {"model": weights, "optimizer": state}
        checkpoint.load(saved, checkpoint_id=folder / str(done[-1]))
        set_state_dict(
            model, optimizer, model_state_dict=weights, optim_state_dict=saved["optimizer"]
        )
    first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    for step in range(begin, STEPS):
        if step == fatal and dist.get_rank() == victim and first:
            if phase == "checkpoint":
                checkpoint.FileSystemWriter.write_data = die
            else:
                die()
        x, y = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss.detach_(), dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"step {step} {loss.item():.6f}", flush=True)
        weights, state = get_state_dict(model, optimizer)
        checkpoint.save({"model": weights, "optimizer": state}, checkpoint_id=folder / str(step))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
