# SPDX-License-Identifier: Apache-2.0
"""A default group with gloo that is split: prints sums over the part."""

from __future__ import annotations

import os
import sys

import torch
from torch import distributed as dist


def main(name: str) -> None:
    """Run the process with the backends of a name."""
    device = torch.device("tpu", int(os.environ["RANK"]))
    dist.init_process_group(name, device_id=device)
    part = dist.split_group(split_ranks=[list(range(dist.get_world_size()))])
    for x in (torch.ones(2), torch.ones(2, device=device)):
        dist.all_reduce(x, group=part)
        print(x.tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1])
