# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process: FSDP2, DTensor and tensor parallel at sizes no machine has.

Sixty-four processes need 25 GB and minutes to start; sixty-four threads share one runtime.
PyTorch's own threaded process group, which its tests use, exchanges the tensors; here it
is set up, its threads are run, and their results or first mistake handed back. It says
nothing about simulated network time, and no rank can be lost.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed as dist
from torchtpu_core.tpu.eager import set_eager_mode

from torchtpu_distributed.errors import ProcessGroupError


def run_as_threads(function: Callable[..., Any], ranks: int, *args: Any) -> list[Any]:
    """Run a function as every rank of a process group whose ranks are threads.

    Each thread finds itself in a default process group and works on the current device,
    op by op (Strict Eager: one device records the ops of all threads, so longer programs
    would differ from run to run). ``torch.manual_seed`` and all generators are shared.

    Args:
        function: called as ``function(*args)`` by each rank.
        ranks: number of ranks.
        args: arguments, the same for every rank.

    Returns:
        What the function returned, by rank.

    Raises:
        ProcessGroupError: this process is in a process group already.

    >>> def total():  # doctest: +SKIP
    ...     x = torch.ones(2, device="tpu") * dist.get_rank()
    ...     dist.all_reduce(x)
    ...     return x.cpu()
    >>> run_as_threads(total, 64)[0]  # doctest: +SKIP
    tensor([2016., 2016.])
    """
    if dist.is_initialized():
        raise ProcessGroupError(
            "this process is in a process group already: call destroy_process_group() before "
            "run_as_threads()."
        )
    torch.tpu.init()  # else DeviceMesh would give every rank another device
    device = torch.tpu.current_device()
    results: list[Any] = [None] * ranks
    mistakes: dict[int, BaseException] = {}
    with _threaded_groups() as fail, set_eager_mode("strict"):
        store = dist.HashStore()

        def run(rank: int) -> None:
            torch.tpu.set_device(device)
            try:
                # One thread of autograd's per device would run the backward pass of all ranks.
                with torch.autograd.set_multithreading_enabled(False):
                    dist.init_process_group("threaded", rank=rank, world_size=ranks, store=store)
                    try:
                        results[rank] = function(*args)
                    finally:
                        dist.destroy_process_group()
            except SystemExit:  # how a rank leaves a collective after another's mistake
                return
            except BaseException as error:
                mistakes[rank] = error
                fail(error)

        threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for rank, error in mistakes.items():
        error.add_note(f"It was raised by rank {rank} of {ranks}, a thread of run_as_threads().")
        raise error
    return results


@contextmanager
def _threaded_groups() -> Iterator[Callable[[BaseException], None]]:
    """Make process groups a thread's own; gives what ends the collectives of all threads."""
    from torch.distributed.tensor._sharding_prop import ShardingPropagator
    from torch.testing._internal.distributed import multi_threaded_pg as threaded

    before = ShardingPropagator._fake_mode_lock
    torch._C._distributed_c10d._set_thread_isolation_mode(True)
    threaded._install_threaded_pg()
    threaded.ProcessLocalGroup.reset()
    ShardingPropagator._fake_mode_lock = threading.Lock()
    try:
        yield threaded.ProcessLocalGroup.exception_handle
    finally:
        ShardingPropagator._fake_mode_lock = before
        threaded._uninstall_threaded_pg()
        torch._C._distributed_c10d._set_thread_isolation_mode(False)
