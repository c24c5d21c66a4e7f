# SPDX-License-Identifier: Apache-2.0
"""Jobs about asynchronous collectives: who begins them, their order, and who uses their memory.

Those of float32 are run by compiled code, those of int16 by Python: gloo does not reduce them.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any
from unittest import mock

import torch
from short_way import LongWays
from torch import distributed as dist
from torch.distributed import _functional_collectives as traced
from torchtpu_distributed import active, host_running, job_queue

Tensor = torch.Tensor
#: Longer than a test may take: a collective that is run meanwhile was not left to a thread.
FOR_EVER_S = 600.0


@contextmanager
def patient_threads() -> Iterator[Any]:
    """No thread takes collectives from those that wait; gives the compiled way of the group."""
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    runners = [o for o in gc.get_objects() if type(o) is host_running.HostRunner]
    direct = next(r.direct for r in runners if r._group.is_world)
    before_s, direct.grace_s = direct.grace_s, FOR_EVER_S
    with mock.patch.object(job_queue, "_GRACE_S", FOR_EVER_S):
        yield direct
    direct.grace_s = before_s


def run_by_who_waits(mine: Tensor) -> tuple[Tensor, int]:
    """Ten calls and waits in turn by Python: the last result, and how many other threads ran."""
    x, others = mine.to("tpu", torch.int16), 0
    perform = host_running.HostRunner.perform

    def counted(self: host_running.HostRunner, *args: Any) -> None:
        nonlocal others
        others += threading.current_thread() is not threading.main_thread()
        perform(self, *args)

    with patient_threads(), mock.patch.object(host_running.HostRunner, "perform", counted):
        for _ in range(10):
            dist.all_reduce(x, async_op=True).wait()
        dist.all_reduce(x.new_zeros(1), async_op=True).get_future().wait()  # lets a thread end
    return x.float().cpu(), others


def begun_by_who_waits(mine: Tensor) -> tuple[Tensor, int]:
    """The same by compiled code."""
    x = mine.to("tpu")
    with patient_threads() as direct:
        others = direct.begun_behind
        for _ in range(10):
            dist.all_reduce(x, async_op=True).wait()
        dist.all_reduce(x.new_zeros(1), async_op=True).get_future().wait()
    return x.cpu(), direct.begun_behind - others


def run_though_nobody_waits(dtype: torch.dtype, mine: Tensor) -> list[Tensor]:
    """Results that a future, a synchronous collective, and asking bring about."""
    first, second, third = (mine.to("tpu", dtype) * i for i in (1, 2, 3))
    with patient_threads():
        future = dist.all_reduce(first, async_op=True).get_future()
        while not future.done():
            pass
        dist.all_reduce(second, async_op=True)
        dist.all_reduce(torch.zeros(1, device="tpu"))
    work = dist.all_reduce(third, async_op=True)
    while not work.is_completed():
        pass
    return [x.float().cpu() for x in (first, second, third)]


def every_kind(mine: Tensor) -> tuple[list[Tensor], int, list[dict[str, Any]]]:
    """Each kind of compiled code once: results, what Python ran, and what was recorded."""
    x, size = mine.to("tpu"), dist.get_world_size()
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    average, shared = x.clone(), x.clone()
    parts = x.new_empty((x.shape[0] // size, *x.shape[1:]))
    gathered, swapped = x.new_empty((size * x.shape[0], *x.shape[1:])), torch.empty_like(x)
    with LongWays() as long:
        works = [
            dist.all_reduce(average, dist.ReduceOp.AVG, async_op=True),
            dist.broadcast(shared, 1, async_op=True),
            dist.all_gather_single(gathered, x, async_op=True),
            dist.reduce_scatter_single(parts, x, async_op=True),
            dist.all_to_all_single(swapped, x, async_op=True),
            dist.barrier(async_op=True),
        ]
        assert all(work.wait() and work.is_completed() and work.is_success() for work in works)
    recorded = active.flight_recorder()["entries"][-6:]
    assert works[0].result()[0] is average or torch.equal(works[0].result()[0], average)
    results = [t.cpu() for t in (average, shared, gathered, parts, swapped)]
    return results, long.count, recorded


def ways_in_turn(mine: Tensor) -> list[Tensor]:
    """Both ways and synchronous ones in turn, none waited for before the end."""
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    dtypes = [torch.float32, torch.int16, torch.float32, torch.int16, torch.int16, torch.float32]
    tensors = [(mine * i).to("tpu", dtypes[i % 6]) for i in range(1, 31)]
    works = [dist.all_reduce(t, async_op=i % 5 > 0) for i, t in enumerate(tensors)]
    for work in reversed(works):
        assert work is None or work.wait()
    return [t.float().cpu() for t in tensors]


def over_before_the_last(last: str) -> tuple[list[bool], list[Tensor]]:
    """Large collectives and a small one that alone is waited for: who is over then, and results."""
    tensors = [torch.full((n,), float(n), device="tpu") for n in (1 << 22, 1 << 18, 1 << 14)]
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    small = torch.ones(1, device="tpu", dtype=torch.int16 if "python" in last else torch.float32)
    if "synchronous" in last:
        dist.all_reduce(small)
    elif "future" in last:
        dist.all_reduce(small, async_op=True).get_future().wait()
    else:
        dist.all_reduce(small, async_op=True).wait()
    over = [work.is_completed() for work in works]
    return over, [x[-1].cpu() for x in tensors]


def same_tensor_many_times(mine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Collectives of one tensor that nobody waits for between; it is read before any wait."""
    x = mine.to("tpu")
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    works = [dist.all_reduce(x, async_op=True) for _ in range(4)]
    early = x.cpu()
    gathered = x.new_empty((2 * x.shape[0], *x.shape[1:]))
    works.append(dist.all_gather_single(gathered, x, async_op=True))
    dist.all_reduce(x)
    for work in works:
        work.wait()
    return early, gathered.cpu(), x.cpu()


def parts_at_once(mine: Tensor) -> tuple[Tensor, int]:
    """Both halves of one tensor are reduced before rank 1 comes: it, and what Python ran."""
    whole = torch.cat([mine, 2 * mine]).to("tpu")
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["both called"])
    with LongWays() as long:
        works = [dist.all_reduce(half, async_op=True) for half in whole.chunk(2)]
        store.set("both called", "")
        for work in works:
            work.wait()
    return whole.cpu(), long.count


def parts_of_which_one_changes(mine: Tensor) -> Tensor:
    """One half of a tensor is changed while the other is reduced."""
    whole = torch.cat([mine, mine]).to("tpu")
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["called for one half"])
    work = dist.all_reduce(whole[: len(mine)], async_op=True)
    store.set("called for one half", "")
    whole[len(mine) :].mul_(3)
    torch.tpu.synchronize()
    work.wait()
    return whole.cpu()


def callbacks_that_wait(mine: Tensor) -> list[Tensor]:
    """More callbacks at once than gloo has threads, each of which waits for another collective."""
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    groups = [dist.new_group() for _ in range(6)]  # an order of its own for each callback

    def again(group: dist.ProcessGroup) -> Any:
        def reduce(done: torch.futures.Future[list[Tensor]]) -> Tensor:
            (x,) = done.value()
            dist.all_reduce(x, group=group, async_op=True).get_future().wait()
            return x

        return reduce

    tensors = [mine.to("tpu") * i for i in range(6)]
    futures = [
        dist.all_reduce(x, async_op=True).get_future().then(again(group))
        for x, group in zip(tensors, groups, strict=True)
    ]
    return [future.wait().cpu() for future in futures]


def callbacks_in_their_turn(dtype: torch.dtype, mine: Tensor) -> tuple[list[str], list[Tensor]]:
    """A callback and its caller call collectives of one shape: who comes first, and results."""
    first, second = mine.to("tpu", dtype), 10 * mine.to("tpu", dtype)
    order = []

    def again(done: torch.futures.Future[list[Tensor]]) -> None:
        order.append("callback")
        dist.all_reduce(first)

    large = torch.ones(1 << 22, device="tpu", dtype=dtype)
    future = dist.all_reduce(large, async_op=True).get_future().then(again)
    order.append("caller")
    dist.all_reduce(second)
    future.wait()
    return order, [first.cpu(), second.cpu()]


def functional(mine: Tensor) -> tuple[list[Tensor], int]:
    """Functional collectives outside of compiled graphs: results, and what Python ran."""
    from torch.distributed import _functional_collectives as functional_collectives

    x, group = mine.to("tpu"), dist.group.WORLD
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    with LongWays() as long:
        results = [
            functional_collectives.all_reduce(x, "sum", group),
            functional_collectives.all_gather_tensor(x, 0, group),
            functional_collectives.reduce_scatter_tensor(x, "avg", 0, group),
        ]
        results = [r.wait() if hasattr(r, "wait") else r for r in results]
    return [r.cpu() for r in results], long.count


def waited_for_in_turns(way: str, mine: Tensor) -> tuple[str, Tensor]:
    """Rank 0 waits a moment for what rank 1 does after that, and again: what it says at first.

    Args:
        way: ``float32`` or ``int16``, the dtype of a reduction; or ``message``.
        mine: this rank's tensor.
    """
    x = mine.to("tpu", torch.float32 if way == "message" else getattr(torch, way))
    store, said = dist.distributed_c10d._get_default_store(), ""
    begin = (
        partial(dist.irecv, src=1) if way == "message" else partial(dist.all_reduce, async_op=True)
    )
    if dist.get_rank() == 0:
        work = begin(x)
        try:
            work.wait(timeout=timedelta(milliseconds=100))
        except dist.DistBackendError as error:
            said = str(error)
        store.set(f"waited/{way}", "")
        work.wait()
    else:
        store.wait([f"waited/{way}"])
        (dist.send(x, 0) if way == "message" else dist.all_reduce(x))
    return said, x.cpu()


def recorded_in_a_graph(mine: Tensor) -> tuple[Tensor, list[int]]:
    """What a compiled graph's two collectives make, and the lines of their records within it."""

    def graph(x: Tensor) -> Tensor:
        y = traced.all_reduce(x * 2, "sum", dist.group.WORLD)
        return traced.all_gather_tensor(y + 1, 0, dist.group.WORLD)

    found = torch.compile(graph, backend="tpu", fullgraph=True)(mine.to("tpu")).cpu()
    frames = [entry["frames"][0] for entry in active.flight_recorder()["entries"][-2:]]
    return found, [frame["line"] - graph.__code__.co_firstlineno for frame in frames]


def results_of_works() -> list[tuple[list[Tensor], list[Tensor]]]:
    """What a gather to rank 0 and an all-to-all say of their results, and what they should."""
    rank, x = dist.get_rank(), torch.arange(2.0, device="tpu")
    gathered = [torch.empty_like(x) for _ in range(2)] if rank == 0 else None
    sent, received = [x + rank, x + rank + 1], [torch.empty_like(x) for _ in range(2)]
    works = [
        dist.gather(x, gathered, dst=0, async_op=True),
        dist.all_to_all(received, sent, async_op=True),
    ]
    said = [work.get_future().wait() for work in works]
    return [
        ([t.cpu() for t in some], [t.cpu() for t in wanted or []])
        for some, wanted in zip(said, (gathered, received), strict=True)
    ]


def future_of_a_gathered_list(later: bool) -> list[tuple[Tensor, Tensor]]:
    """What futures of gathered lists hold, or callbacks see, and the rows that it should be."""
    x = torch.arange(6.0, device="tpu").view(2, 3) + dist.get_rank()
    wanted = torch.stack([torch.arange(6.0).view(2, 3) + rank for rank in range(2)])
    into = [torch.empty_like(x) for _ in range(2)]
    future = dist.all_gather(into, x, async_op=True).get_future()
    held = future.then(lambda done: done.value()[0] * 2).wait() if later else future.wait()[0]
    return [
        (held.cpu(), wanted * 2 if later else wanted),
        (torch.stack(into).cpu(), wanted),
    ]
