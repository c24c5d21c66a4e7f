# SPDX-License-Identifier: Apache-2.0
"""A rank of a job on two machines: it trains, and then adds up until the network is cut.

Prints the gradient of all ranks, ``ready``, and at the end its error; ends with code 3.
"""

from __future__ import annotations

import sys
import time
from datetime import timedelta

import torch
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

TIMEOUT = timedelta(seconds=8)


def main() -> None:
    """Run the rank."""
    dist.init_process_group(timeout=TIMEOUT)
    model = torch.nn.Linear(2, 1, bias=False, device="tpu")
    torch.nn.init.ones_(model.weight)
    wrapped = DistributedDataParallel(model)
    wrapped(torch.full((1, 2), 1.0 + dist.get_rank(), device="tpu")).sum().backward()
    print(model.weight.grad.tolist(), flush=True)
    total = torch.ones(8, device="tpu")
    print("ready", flush=True)
    try:
        while True:
            dist.all_reduce(total)
            total /= 2
            time.sleep(0.02)
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        sys.exit(3)


if __name__ == "__main__":
    main()
