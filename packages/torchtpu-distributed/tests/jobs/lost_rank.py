# SPDX-License-Identifier: Apache-2.0
"""All ranks reduce once; then rank 1 misbehaves and the others reduce again.

    python lost_rank.py <what rank 1 does> <number of elements> [<timeout in seconds>]

Rank 1 is lost by SIGKILL, or by SIGSTOP if what it does ends with ``+stop``. With ``+later`` the
second reduction is asynchronous, with ``+future`` its future is waited for. With ``+host`` its
tensor is on the CPU, and with ``+host_message`` rank 1 should send it instead.
A rank that gets an error prints ``ERROR <class>: <message>`` and ends with code 3.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch
from torch import distributed as dist
from torch import nn
from torchtpu_distributed import active, differences, joining

TIMEOUT_S = 10  # ranks also wait this long for each other at the start


def kill_me() -> None:
    """As the kernel does when memory is short."""
    os.kill(os.getpid(), signal.SIGKILL)


def lose_me() -> None:
    """By the signal that the command line names."""
    (stop_me if sys.argv[1].endswith("+stop") else kill_me)()


def interrupt_me() -> None:
    """Ctrl-C; a process that a shell started in the background would ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.kill(os.getpid(), signal.SIGINT)


def stop_me() -> None:
    """Until somebody continues or kills the process."""
    os.kill(os.getpid(), signal.SIGSTOP)


def raise_error() -> None:
    """An error of the user's."""
    raise ValueError("the loss is not finite")


def raise_error_and_clean_up() -> None:
    """As scripts do."""
    try:
        raise_error()
    finally:
        dist.destroy_process_group()


def sleep_long() -> None:
    """Much longer than the timeout."""
    threading.Event().wait(timeout=2 * TIMEOUT_S)
    sys.exit(0)


def print_alone() -> None:
    """What rank 1 waits for nobody else calls."""
    dist.all_reduce(torch.ones(1, device="tpu"), group=OTHER[0])


#: What rank 1 does before the second reduction.
DEEDS: dict[str, Callable[[], None]] = {
    "killed": kill_me,
    "stopped": stop_me,
    "raises": raise_error,
    "raises_and_cleans_up": raise_error_and_clean_up,
    "exits": lambda: sys.exit(0),
    "late": sleep_long,
    "interrupted": interrupt_me,
    "group": print_alone,
}
OTHER: list[dist.ProcessGroup] = []
STORES: list[dist.Store] = []
LATER = [""]


class LoseInBackward(torch.autograd.Function):
    """Loses rank 1 when its gradient is asked for."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        if dist.get_rank() == 1:
            lose_me()
        return gradient


def train_once() -> None:
    """One step of data parallel training, whose backward pass rank 1 does not survive."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).to("tpu")
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-5)
    x = LoseInBackward.apply(model[0](torch.ones(2, 4, device="tpu")))
    (wrapped(torch.ones(2, 4, device="tpu")).sum() + x.sum()).backward()
    for parameter in model.parameters():
        parameter.grad.cpu()


def save_checkpoint() -> None:
    """A distributed checkpoint that rank 1 does not survive."""
    from torch.distributed import checkpoint

    folder = Path(tempfile.gettempdir(), f"lost_rank_{os.environ['MASTER_PORT']}")
    state = {"x": torch.ones(4, device="tpu")}
    if dist.get_rank() == 1:
        lose_me()
    checkpoint.save(state, checkpoint_id=folder)


def reduce_in_turns(x: torch.Tensor, leaves_out: bool) -> None:
    """Equal reductions from two lines, of which a rank may leave out the fourth."""
    for turn in range(3):
        dist.all_reduce(x)
        if not (leaves_out and turn == 1):
            dist.all_reduce(x)


def reduce_later(x: torch.Tensor, leaves_out: bool) -> None:
    """Two reductions at once, of which a rank, which comes first, may leave out the first."""
    store, works = dist.distributed_c10d._get_default_store(), []
    if not leaves_out:
        store.wait(["called"])
        works.append(dist.all_reduce(x.clone(), dist.ReduceOp.MIN, async_op=True))
    works.append(dist.all_reduce(x, async_op=True))
    store.set("called", "")
    works[-1].wait()
    print("reduced", flush=True)


def exchange(x: torch.Tensor, sends_less: bool) -> None:
    """All-to-all of two rows for each rank; a rank may send only one to rank 0."""
    sizes = [1, 2] if sends_less else [2, 2]
    dist.all_to_all_single(x.new_empty(4), x[: sum(sizes)], [2, 2], sizes)


def take_one_message(x: torch.Tensor, sends: bool) -> None:
    """Two messages, of which the receiver takes one."""
    if sends:
        dist.send(x, 1)
        dist.send(x, 1)
    dist.recv(x, 0)
    dist.destroy_process_group()
    sys.exit(0)


def wait_for_timeout() -> None:
    """Until the other rank's error is there."""
    dist.distributed_c10d._get_default_store().wait(["timed out"])


def leave_early(x: torch.Tensor, calls: bool, *, late: bool = False) -> None:
    """A rank leaves an asynchronous reduction to itself, which the other one does not call.

    Args:
        x: what is reduced.
        calls: whether this rank does.
        late: leave when the reduction has failed.
    """
    store = dist.distributed_c10d._get_default_store()
    if calls:
        dist.all_reduce(x, async_op=True)
        store.set("called", "")
    store.wait(["called"])
    ledger = active.world.ledger
    while late and calls and (ledger.failure is None or ledger.pending()):
        time.sleep(0.01)
    dist.destroy_process_group()


def destroy_after_failure(calls: bool) -> None:
    """A rank whose broadcasts in a group have failed destroys it, while the other one lives."""
    store = dist.distributed_c10d._get_default_store()
    group = dist.new_group(timeout=timedelta(seconds=5))
    xs = [torch.ones(9, device="tpu") for _ in range(3)]
    dist.all_reduce(xs[0], group=group)  # which connects its ranks
    if not calls:
        store.wait(["destroyed"])
        sys.exit(0)
    try:
        works = [dist.broadcast(x, 0, group=group, async_op=True) for x in xs]
        works[0].wait()
    except dist.DistBackendError:
        del works, group
        dist.destroy_process_group()
        store.set("destroyed", "")
        raise


def go_on_in_other_group(x: torch.Tensor) -> None:
    """Leave the second reduction out, begin one of another group, and be lost."""
    dist.all_reduce(x.clone(), dist.ReduceOp.MIN, group=OTHER[0], async_op=True)
    kill_me()


def end_other(process: int) -> None:
    """What a launcher does to the other rank, once that waits for this one, which stops."""
    (group,) = (g for g in active.world.ledger.groups.values() if g.seq == 1)
    while differences.reached(group, 0, 2)[0] < 2:
        pass
    os.kill(process, signal.SIGTERM)
    stop_me()


def second_call(how: str, rank: int, x: torch.Tensor) -> None:
    """What all ranks do then, with the difference rank 1 makes."""
    other = rank == 1
    if how == "barrier":
        if other:
            lose_me()
        dist.barrier()
    if how.startswith("new_group"):
        if other and how == "new_group":
            lose_me()
        if not other:
            dist.new_group(timeout=timedelta(seconds=float(sys.argv[3])))
    if LATER[0] == "host_message" and not other:
        dist.recv(x, 1)
    if how == "apart":
        for group in active.world.ledger.groups.values():
            group.timeout_s = 2.0
        dist.barrier() if other else dist.recv(x, 1)
    if how == "message":
        if other:
            lose_me()
        dist.recv(x, 1)
    if how == "messages":
        take_one_message(x, not other)
    if how == "backward":
        train_once()
    if how == "checkpoint":
        save_checkpoint()
    if how in ("short_message", "other_message"):
        sent = x[:-1] if how == "short_message" else x.to(torch.int32)
        dist.send(sent, 0) if other else dist.recv(x, 1)
    if how == "late_barrier":
        if other:
            wait_for_timeout()
        try:
            dist.barrier(timeout=timedelta(seconds=1))
        finally:
            dist.distributed_c10d._get_default_store().set("timed out", "")
    if how in ("unwaited", "unwaited_late"):
        leave_early(x, not other, late=how == "unwaited_late")
    if how == "destroys":
        destroy_after_failure(not other)
    if how == f"group_of_{rank}":
        go_on_in_other_group(x)
    if how == "terminated":
        store = dist.distributed_c10d._get_default_store()
        if other:
            end_other(int(store.get("process")))
        store.set("process", str(os.getpid()))
    if how == "leaves_out":
        reduce_in_turns(x, other)
    if how == "leaves_out_later":
        reduce_later(x, other)
    if how == "pieces":
        exchange(x, other)
    if how == "skips" and not other:
        dist.all_reduce(x, dist.ReduceOp.MIN)
    operand = x[:-1] if how == "shape" and other else x
    operand = x.to(torch.int32) if how == "dtype" and other else operand
    work = dist.all_reduce(
        operand, MAX if how == "operation" and other else SUM, async_op=LATER[0] in ASYNCHRONOUS
    )
    if work is not None:
        (work.get_future() if LATER[0] == "future" else work).wait()
    operand.cpu()


ASYNCHRONOUS = ("later", "future")
SUM, MAX = dist.ReduceOp.SUM, dist.ReduceOp.MAX


def main(how: str, elements: str, timeout_s: str = "60") -> None:
    """Run one rank."""
    how, _, way = how.partition("+")
    LATER[0] = way
    if how == "before_init" and os.environ["RANK"] == "1":
        lose_me()
    if how == "in_init" and os.environ["RANK"] == "1":
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        STORES.append(dist.TCPStore(address, port, int(os.environ["WORLD_SIZE"]), False))
        lose_me()
    if how == "in_join" and os.environ["RANK"] == "1":
        joining.join = lambda *args: lose_me()
    seconds = TIMEOUT_S if how == "late" else float(timeout_s)
    if how == "raises" and os.environ["RANK"] == "1":  # there is much to free
        atexit.register(time.sleep, 1)  # after the process has told the others
    try:
        dist.init_process_group(timeout=timedelta(seconds=seconds))
    except RuntimeError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    rank = dist.get_rank()
    torch.tpu.set_device(rank)
    if how.startswith("group"):
        OTHER.append(dist.new_group(timeout=timedelta(minutes=10)))  # waits longer than the world
    x = torch.ones(int(elements)).to("tpu")
    if how.startswith("group_of"):
        dist.all_reduce(x.clone(), group=OTHER[0])  # which connects its ranks
    dist.all_reduce(x)
    assert x.cpu()[0] == dist.get_world_size()
    print("began", flush=True)
    x = x.cpu() if way.startswith("host") else x
    if rank == 1 and how in DEEDS:
        DEEDS[how]()
    try:
        if how == "store" and rank == 0:
            kill_me()
        second_call(how, rank, x)
    except dist.DistBackendError as error:
        print(f"ERROR {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print("no error", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
