# SPDX-License-Identifier: Apache-2.0
"""Jobs that run one collective each on CPU tensors sent by the test, moved to the device."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

Tensor = torch.Tensor


def all_reduce(op: str, mine: Tensor) -> Tensor:
    x = mine.to("tpu")
    dist.all_reduce(x, getattr(dist.ReduceOp, op))
    return x.cpu()


def refused(kind: str, op: str, dtype: str) -> tuple[str, Tensor]:
    """What a reduction says that no dtype like this has, and a sum after it."""
    x = torch.ones(4, 2, device="tpu").to(getattr(torch, dtype.removeprefix("torch.")))
    half, reduction = x[:2].clone(), getattr(dist.ReduceOp, op)
    message = ""
    try:
        if kind == "reduce_scatter":
            dist.reduce_scatter_tensor(half, x, reduction)
        elif kind == "reduce_scatter_list":
            dist.reduce_scatter(half, [half.clone(), half.clone()], reduction)
        else:
            options = dist.AllreduceCoalescedOptions()
            options.reduceOp = reduction
            dist.group.WORLD.allreduce_coalesced([x], options)
    except RuntimeError as error:
        message = str(error)
    after = torch.ones(2, device="tpu")
    dist.all_reduce(after)
    return message, after.cpu()


def refusal(call: Callable[[], Any]) -> tuple[str, Tensor]:
    """What is said of a call that cannot be made, and a sum after it."""
    message = ""
    try:
        call()
    except ValueError as error:
        message = str(error)
    after = torch.ones(2, device="tpu")
    dist.all_reduce(after)
    return message, after.cpu()


def misfit(kind: str) -> tuple[str, Tensor]:
    """What is said of a list whose entries are longer than this rank's tensor, and a sum after."""
    rank, own = dist.get_rank(), torch.ones(4, device="tpu")
    longer = [torch.ones(7, device="tpu") for _ in range(dist.get_world_size())]
    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: dist.all_gather(longer, own),
        "gather": lambda: dist.gather(own, longer, dst=rank),
        "scatter": lambda: dist.scatter(own, longer, src=rank),
        "reduce_scatter": lambda: dist.reduce_scatter(own, longer),
    }
    return refusal(calls[kind])


def all_reduce_view(mine: Tensor) -> Tensor:
    """Reduces the middle columns of a matrix; returns all of it."""
    x = mine.to("tpu")
    dist.all_reduce(x[:, 1:-1])
    return x.cpu()


def all_reduce_premultiplied(factor: float, mine: Tensor) -> Tensor:
    x = mine.to("tpu")
    dist.all_reduce(x, dist._make_nccl_premul_sum(factor))
    return x.cpu()


def all_reduce_later(mine: Tensor) -> list[Any]:
    x = mine.to("tpu")
    work = dist.all_reduce(x, async_op=True)
    future = work.get_future().wait()
    waited = work.wait()
    value = x.cpu()
    return [waited, future[0].cpu(), value, work.is_completed(), work.is_success()]


def all_reduce_coalesced(mine: list[Tensor]) -> list[Tensor]:
    tensors = [t.to("tpu") for t in mine]
    with dist._coalescing_manager(device=torch.device("tpu", torch.tpu.current_device())):
        for tensor in tensors:
            dist.all_reduce(tensor)
    return [t.cpu() for t in tensors]


def reduce(destination: int, mine: Tensor) -> Tensor:
    x = mine.to("tpu")
    dist.reduce(x, destination)
    return x.cpu()


def broadcast(source: int, mine: Tensor) -> Tensor:
    x = mine.to("tpu")
    dist.broadcast(x, source)
    return x.cpu()


def all_gather(mine: Tensor) -> list[Tensor]:
    x = mine.to("tpu")
    gathered = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, x)
    return [t.cpu() for t in gathered]


def all_gather_single(mine: Tensor) -> Tensor:
    x = mine.to("tpu")
    gathered = x.new_empty((dist.get_world_size() * x.shape[0], *x.shape[1:]))
    dist.all_gather_single(gathered, x)
    return gathered.cpu()


def gather(destination: int, mine: Tensor) -> list[Tensor]:
    x = mine.to("tpu")
    at_destination = dist.get_rank() == destination
    gathered = (
        [torch.empty_like(x) for _ in range(dist.get_world_size())] if at_destination else None
    )
    dist.gather(x, gathered, destination)
    return [t.cpu() for t in gathered or []]


def scatter(source: int, mine: list[Tensor]) -> Tensor:
    pieces = [t.to("tpu") for t in mine]
    received = torch.empty_like(pieces[0])
    dist.scatter(received, pieces if dist.get_rank() == source else None, source)
    return received.cpu()


def reduce_scatter(op: str, mine: list[Tensor]) -> Tensor:
    pieces = [t.to("tpu") for t in mine]
    received = torch.empty_like(pieces[0])
    dist.reduce_scatter(received, pieces, getattr(dist.ReduceOp, op))
    return received.cpu()


def reduce_scatter_single(op: str, mine: Tensor) -> Tensor:
    x = mine.to("tpu")
    received = x.new_empty((x.shape[0] // dist.get_world_size(), *x.shape[1:]))
    dist.reduce_scatter_single(received, x, getattr(dist.ReduceOp, op))
    return received.cpu()


def all_to_all_single(mine: Tensor) -> Tensor:
    x = mine.to("tpu")
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x)
    return received.cpu()


def all_to_all_uneven(output_splits: list[list[int]], mine: tuple[Tensor, list[int]]) -> Tensor:
    x, input_splits = mine
    mine_out = output_splits[dist.get_rank()]
    received = x.new_empty((sum(mine_out), *x.shape[1:])).to("tpu")
    dist.all_to_all_single(received, x.to("tpu"), mine_out, input_splits)
    return received.cpu()


def all_to_all_with_splits_of_one_side(mine: tuple[Tensor, list[int]]) -> Tensor:
    x, input_splits = mine
    received = x.new_empty((2 * input_splits[dist.get_rank()], *x.shape[1:])).to("tpu")
    dist.all_to_all_single(received, x.to("tpu"), None, input_splits)
    return received.cpu()


def all_to_all(mine: list[Tensor]) -> list[Tensor]:
    pieces = [t.to("tpu") for t in mine]
    received = [torch.empty_like(t) for t in pieces]
    dist.all_to_all(received, pieces)
    return [t.cpu() for t in received]


def exchange_with_neighbour(mine: Tensor) -> Tensor:
    """Every rank sends to the next and receives from the one before, at once."""
    rank, size = dist.get_rank(), dist.get_world_size()
    x = mine.to("tpu")
    received = torch.empty_like(x)
    operations = [
        dist.P2POp(dist.isend, x, (rank + 1) % size),
        dist.P2POp(dist.irecv, received, (rank - 1) % size),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received.cpu()


def send_then_receive_by_tag() -> list[float]:
    """Rank 0 sends two messages; rank 1 takes the second first."""
    first, second = torch.ones(2).to("tpu"), torch.full((2,), 2.0).to("tpu")
    if dist.get_rank() == 0:
        for work in (dist.isend(first, 1, tag=1), dist.isend(second, 1, tag=2)):
            work.wait()
        return []
    received = torch.zeros(2).to("tpu")
    dist.recv(received, 0, tag=2)
    values = received.tolist()
    dist.recv(received, 0, tag=1)
    return values + received.tolist()


def objects(mine: Any) -> tuple[list[Any], Any]:
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine)
    sent = [mine]
    dist.broadcast_object_list(sent, 0)
    return gathered, sent[0]


def cpu_tensor(mine: Tensor) -> Tensor:
    dist.all_reduce(mine)
    return mine


def barrier() -> bool:
    dist.barrier()
    return True


def halves(mine: Tensor) -> Tensor:
    """Reduces within the first and the second half of four ranks."""
    groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    x = mine.to("tpu")
    dist.all_reduce(x, group=groups[dist.get_rank() // 2])
    return x.cpu()


def groups_others_do_not_know(mine: Tensor) -> list[Tensor]:
    """Sums over groups that only their ranks make; rank 0 is in more of them than the others."""
    limit = timedelta(seconds=20)
    if dist.get_rank() == 0:
        dist.new_group([0], timeout=limit, use_local_synchronization=True)
    sums = []
    for _ in range(2):  # the second comes after PyTorch has forgotten the first
        group = dist.new_group([0, 1], timeout=limit, use_local_synchronization=True)
        sums.append(mine.to("tpu"))
        dist.all_reduce(sums[-1], group=group)
        dist.destroy_process_group(group)
    return [x.cpu() for x in sums]


def threads_of_groups() -> tuple[int, int]:
    """Threads that wait for messages of gloo, with one group and with four more."""

    def count() -> int:
        return sum(each.read_text() == "gloo_tcp_loop\n" for each in tasks.glob("*/comm"))

    tasks = Path("/proc/self/task")
    before = count()
    groups = [dist.new_group() for _ in range(4)]
    for group in groups:
        dist.all_reduce(torch.ones(3), group=group)
        dist.all_reduce(torch.ones(3, device="tpu"), group=group)
    return before, count()


def mesh_of_a_bound_group(mine: Tensor) -> Tensor:
    """A sum along a device mesh, whose groups PyTorch splits off one that is bound to a device."""
    whole = dist.group.WORLD
    assert whole is not None
    if dist.get_rank() == 0:
        dist.new_group([0], use_local_synchronization=True)
    whole.bound_device_id = torch.device("tpu", torch.tpu.current_device())
    try:
        mesh = dist.init_device_mesh("tpu", (1, 2), mesh_dim_names=("row", "column"))
    finally:
        whole.bound_device_id = None
    x = mine.to("tpu")
    dist.all_reduce(x, group=mesh.get_group("column"))
    return x.cpu()


def rows_and_columns(mine: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the rows, then over the columns, of a 2 by 2 device mesh."""
    mesh = dist.init_device_mesh("tpu", (2, 2), mesh_dim_names=("row", "column"))
    by_row, by_column = mine.to("tpu"), mine.to("tpu")
    dist.all_reduce(by_row, group=mesh.get_group("column"))
    dist.all_reduce(by_column, group=mesh.get_group("row"))
    return by_row.cpu(), by_column.cpu()


def simulated_time_ps(elements: int) -> int:
    """Device time that one all_reduce of float32 adds."""
    x = torch.ones(elements).to("tpu")
    device = torch.tpu.current_device()
    from torchtpu_core import _C

    before = _C.device_time_ps(device)
    dist.all_reduce(x)
    return int(_C.device_time_ps(device) - before)


def overlapped_times_ms(elements: int, width: int) -> list[float]:
    """Simulated time of an all_reduce, of a product, and of both on two streams."""
    x, y = torch.ones(elements, device="tpu"), torch.ones(width, width, device="tpu")
    side = torch.tpu.Stream()

    def compute() -> None:
        y @ y

    def communicate() -> None:
        side.wait_stream(torch.tpu.current_stream())
        with torch.tpu.stream(side):
            dist.all_reduce(x)

    def both() -> None:
        communicate()
        compute()

    times = []
    for work in (communicate, compute, both, communicate, compute, both):
        torch.tpu.synchronize()
        begin, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        torch.tpu.current_stream().wait_stream(side)
        end.record()
        torch.tpu.synchronize()
        times.append(begin.elapsed_time(end))
    return times[3:]


def wrong_device(mine: Tensor) -> str:
    """The error for a tensor that is not on the rank's device."""
    other = (torch.tpu.current_device() + 1) % torch.tpu.device_count()
    dist.all_reduce(mine.to("tpu"))
    try:
        dist.all_reduce(mine.to(f"tpu:{other}"))
    except ValueError as error:
        return str(error)
    return ""


def versions(mine: Tensor) -> list[Tensor]:
    """A tensor after its reduction, and what was made of it before."""
    x = mine.to("tpu")
    host, copy, doubled = x.cpu(), x.clone(), x * 2
    dist.all_reduce(x)
    return [x.cpu(), host, copy.cpu(), doubled.cpu()]


def reduced_twice_later(mine: Tensor) -> Tensor:
    """Two reductions of one tensor, neither of which is waited for before the next."""
    x = mine.to("tpu")
    works = [dist.all_reduce(x, async_op=True) for _ in range(2)]
    for work in works:
        work.wait()
    return x.cpu()


def bursts_waited_for_backwards(mine: Tensor) -> tuple[list[Tensor], int]:
    """Three times forty reductions, the last of which is waited for first; and new threads."""
    found, before = [], _threads()
    for _ in range(3):
        each = [mine.to("tpu") * i for i in range(40)]
        works = [dist.all_reduce(x, async_op=True) for x in each]
        works[-1].wait()
        last = each[-1].clone()
        dist.all_reduce(last)  # in its turn, behind those that nobody has waited for
        for work in works[::-1]:
            work.wait()
        found += [last.cpu(), *(x.cpu() for x in each)]
    return found, _threads() - before


def _threads() -> int:
    return sum(thread.name == "tpu_dist" for thread in threading.enumerate())


def operand_given_up_later(mine: Tensor) -> tuple[Tensor, Tensor]:
    """The operand is used and dropped while it is being gathered."""
    x = mine.to("tpu") + 0
    gathered = x.new_empty((dist.get_world_size() * x.shape[0], *x.shape[1:]))
    work = dist.all_gather_single(gathered, x, async_op=True)
    y = x + 1
    del x
    found = y.cpu()
    work.wait()
    return gathered.cpu(), found


def chained_future(mine: Tensor) -> Tensor:
    """What a callback of the future makes of the result."""
    x = mine.to("tpu")
    future = dist.all_reduce(x, async_op=True).get_future()
    return future.then(lambda done: done.value()[0] * 3).wait().cpu()


def all_kinds(mine: Tensor) -> list[Tensor]:
    """One collective of each kind on a `(4, 3)` operand, in a list of CPU tensors."""
    size, rank = dist.get_world_size(), dist.get_rank()
    x = mine.to("tpu")
    reduced, sent = x.clone(), x.clone()
    dist.all_reduce(reduced)
    dist.broadcast(sent, 1)
    gathered = [torch.empty_like(x) for _ in range(size)]
    dist.all_gather(gathered, x)
    piece = x.new_empty((4 // size, 3))
    dist.reduce_scatter_tensor(piece, x)
    swapped = torch.empty_like(x)
    dist.all_to_all_single(swapped, x)
    rooted = [torch.empty_like(x) for _ in range(size)] if rank == 0 else None
    dist.gather(x, rooted, 0)
    scattered = torch.empty_like(x)
    dist.scatter(scattered, [x, x + 1] if rank == 0 else None, 0)
    results = [reduced, sent, *gathered, piece, swapped, *(rooted or []), scattered]
    return [t.cpu() for t in results]
