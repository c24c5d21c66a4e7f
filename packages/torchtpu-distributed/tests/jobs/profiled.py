# SPDX-License-Identifier: Apache-2.0
"""What `torch.profiler` shows of collectives."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile

READ = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size", "Rank")


def events() -> list[tuple[str, dict[str, Any]]]:
    """Names of ranges, and what analysers read of ``record_param_comms``, in order."""
    rank = dist.get_rank()
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2).to("tpu"))
    x, gathered = torch.ones(3, device="tpu"), torch.empty(6, device="tpu")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        dist.all_reduce(x)
        dist.all_gather_single(gathered, x)
        dist.reduce_scatter_single(x, gathered)
        model(x).sum().backward()
        (dist.send if rank == 0 else dist.recv)(x, 1 - rank)
        dist.barrier()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiled.export_chrome_trace(str(path))
        trace = json.loads(path.read_text())["traceEvents"]
    ranges = sorted((e for e in trace if e.get("ph") == "X"), key=lambda e: e["ts"])
    return [
        (e["name"], {key: e["args"].get(key) for key in READ})
        for e in ranges
        if e["name"] == "record_param_comms" or e["name"].startswith(("tpu_dist:", "tpu:"))
    ]


def ranges() -> list[tuple[str, bool, list[list[int]]]]:
    """Of collectives, as PyTorch sums them up: the name, whether asynchronous, inputs' shapes."""
    x, gathered = torch.ones(2, 3, device="tpu"), torch.empty(4, 3, device="tpu")
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
        dist.all_reduce(x)
        dist.all_gather_single(gathered, x)
        dist.all_to_all_single(gathered, torch.ones_like(gathered))
    found = (event for event in profiled.events() if event.name.startswith("tpu_dist:"))
    return [(event.name, event.is_async, event.input_shapes) for event in found]
