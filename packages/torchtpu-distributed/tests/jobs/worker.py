# SPDX-License-Identifier: Apache-2.0
"""One rank of a test: joins a process group and runs the jobs that the test asks for.

    worker.main(listener_address, authentication_key_in_hex)

A job is a function of a module in this folder; it gets the arguments the test gave.
"""

from __future__ import annotations

import faulthandler
import importlib
import os
import signal
import sys
import traceback
from multiprocessing.connection import Client

import torch
from messages import receive, send
from torch import distributed as dist


def main(address: tuple[str, int], key: str) -> None:
    """Serve until the test closes the connection."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    rank = int(os.environ["RANK"])
    if os.environ.get("START_FIRST"):
        torch.ones(2).to("tpu")
    dist.init_process_group(os.environ.get("BACKEND") or None)
    torch.tpu.set_device(rank % torch.tpu.device_count())
    with Client(address, authkey=bytes.fromhex(key)) as connection:
        send(connection, rank)
        while True:
            try:
                job, args = receive(connection)
            except EOFError:
                break
            module, _, function = job.partition(".")
            try:
                result = getattr(importlib.import_module(module), function)(*args)
                leave_groups()
                answer = (True, result)
            except Exception:
                answer = (False, traceback.format_exc())
            send(connection, answer)
    dist.destroy_process_group()


def leave_groups() -> None:
    """Destroy what groups the job has made: each costs an idle rank threads and time.

    DTensor remembers its operators' results with their meshes, and would find the groups of this
    job's mesh where the next job makes an equal one.
    """
    if "torch.distributed.tensor" in sys.modules:
        from torch.distributed.tensor import debug

        debug._clear_sharding_prop_cache()
    default = dist.group.WORLD
    for group in list(dist.distributed_c10d._world.pg_map):
        if group is not default:
            dist.destroy_process_group(group)
