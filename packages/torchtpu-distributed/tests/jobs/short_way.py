# SPDX-License-Identifier: Apache-2.0
"""Jobs about synchronous collectives that compiled code runs, and when it must not."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import distributed as dist
from torchtpu_core import calls
from torchtpu_distributed import active, host_running

Tensor = torch.Tensor


class LongWays:
    """Counts the collectives that Python runs while it is entered."""

    def __enter__(self) -> LongWays:
        self.count, self._run = 0, host_running.HostRunner.run
        self._run_host = host_running.HostRunner.run_host

        def run(*args: Any, **options: Any) -> Any:
            self.count += 1
            return self._run(*args, **options)

        def run_host(*args: Any, **options: Any) -> Any:
            self.count += 1
            return self._run_host(*args, **options)

        host_running.HostRunner.run = run
        host_running.HostRunner.run_host = run_host
        return self

    def __exit__(self, *error: object) -> None:
        host_running.HostRunner.run = self._run
        host_running.HostRunner.run_host = self._run_host


def every_kind(mine: Tensor) -> tuple[list[Tensor], int, list[dict[str, Any]]]:
    """Each kind that has a short way once: results, long ways taken, and what was recorded."""
    x, size = mine.to("tpu"), dist.get_world_size()
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    reduced, average = x.clone(), x.clone()
    parts = x.new_empty((x.shape[0] // size, *x.shape[1:]))
    gathered, swapped = x.new_empty((size * x.shape[0], *x.shape[1:])), torch.empty_like(x)
    shared, added, averaged = x.clone(), x.clone(), x.clone()
    with LongWays() as long:
        dist.all_reduce(reduced, dist.ReduceOp.MAX)
        dist.all_reduce(average, dist.ReduceOp.AVG)
        dist.broadcast(shared, 1)
        dist.all_gather_into_tensor(gathered, x)  # deprecated: wrapped
        dist.reduce_scatter_single(parts, x)
        dist.all_to_all_single(swapped, x)
        dist.reduce(added, 0)
        dist.reduce(averaged, 1, dist.ReduceOp.AVG, async_op=True).wait()
        dist.barrier()
    recorded = active.flight_recorder()["entries"][-9:]
    all_results = (reduced, average, shared, gathered, parts, swapped, added, averaged)
    results = [t.cpu() for t in all_results]
    return results, long.count, recorded


def every_list(later: bool, mine: Tensor) -> tuple[list[list[Tensor]], int, list[Any]]:
    """Each kind that takes a list of tensors, one per rank: results, long ways, and the records."""
    x, size = mine.to("tpu"), dist.get_world_size()
    rank = dist.get_rank()
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    gathered, at_root = ([torch.empty_like(x) for _ in range(size)] for _ in range(2))
    rows = list(x.new_zeros((size, *x.shape)).unbind())  # of one storage
    pieces = [x + i for i in range(size)]
    scattered, reduced = torch.empty_like(x), torch.empty_like(x)
    swapped = [torch.empty_like(x) for _ in range(size)]
    with LongWays() as long:
        works = [
            dist.all_gather(gathered, x, async_op=later),
            dist.all_gather(rows, x, async_op=later),
            dist.gather(x, at_root if rank == 1 else None, 1, async_op=later),
            dist.scatter(scattered, pieces if rank == 1 else None, 1, async_op=later),
            dist.reduce_scatter(reduced, pieces, async_op=later),
            dist.all_to_all(swapped, pieces, async_op=later),
        ]
        futures = [work.get_future() for work in works if later]
        for work in works if later else []:
            work.wait()
    recorded = active.flight_recorder()["entries"][-len(works) :]
    values = [[t.cpu() for t in future.value()] for future in futures]
    found = [gathered, rows, at_root if rank == 1 else [], [scattered], [reduced], swapped]
    return [[t.cpu() for t in each] for each in found], long.count, [recorded, values]


def reduced_beside_a_program(mine: Tensor) -> tuple[Tensor, Tensor]:
    """A product of the tensor is still being computed when the tensor is reduced in place."""
    x = mine.to("tpu")
    torch.tpu.synchronize()
    product = x
    for _ in range(20):
        product = product @ x / 64
    dist.all_reduce(x)
    return product.cpu(), x.cpu()


def reduced_while_lent(mine: Tensor) -> tuple[Tensor, Tensor]:
    """Code outside still reads the tensor's memory."""
    x = mine.to("tpu")
    outside = np.asarray(calls.array_of(x))
    dist.all_reduce(x)
    return torch.from_numpy(outside.copy()), x.cpu()


def rows_reduced(dtype: torch.dtype, op: str, mine: Tensor) -> tuple[Tensor, int]:
    """The middle rows of a matrix; all of it, and long ways taken."""
    x = mine.to("tpu", dtype)
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    with LongWays() as long:
        dist.all_reduce(x[1:-1], getattr(dist.ReduceOp, op))
    return x.float().cpu(), long.count


def gathered_as_in_training(repeat: int, mine: Tensor) -> tuple[Tensor, int]:
    """Rows of a table into a part of what is gathered; the host has not read the rows' checks."""
    table, rank, size = mine.to("tpu"), dist.get_rank(), dist.get_world_size()
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    rows = torch.arange(repeat).flip(0).to("tpu") % len(mine)
    with LongWays() as long:
        whole = table.new_empty((size * repeat, mine.shape[1]))
        part = whole[rank * repeat : (rank + 1) * repeat]
        part.copy_(torch.nn.functional.embedding(rows, table))
        dist.all_gather_single(whole, part)
    return whole.cpu(), long.count


def reduced_by_different_ways(mine: Tensor) -> tuple[Tensor, int]:
    """Rank 0 brings columns of a matrix, the other the same numbers in a row."""
    x = mine.to("tpu")[:, :2]
    if dist.get_rank() != 0:
        x = x.contiguous()
    with LongWays() as long:
        dist.all_reduce(x)
    return x.cpu(), long.count


def lists_by_different_ways(mine: Tensor) -> tuple[list[Tensor], Tensor, int]:
    """Rank 0, the root, brings columns of a matrix, the other the same numbers in a row."""
    x, rank = mine.to("tpu")[:, :2], dist.get_rank()
    if rank != 0:
        x = x.contiguous()
    size = dist.get_world_size()
    at_root = [torch.empty_like(x) for _ in range(size)] if rank == 0 else []
    scattered = torch.empty_like(x) if rank else x.new_zeros((*x.shape, 2))[..., 0]
    pieces = [x + i for i in range(size)] if rank == 0 else []
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    with LongWays() as long:
        dist.gather(x, at_root, 0)
        dist.scatter(scattered, pieces, 0)
    return [t.cpu() for t in at_root], scattered.cpu(), long.count


def pieces_by_different_ways(mine: Tensor) -> tuple[Tensor, Tensor, int]:
    """Rows for rank 0 are one more; its own operand is columns of a matrix."""
    x, rank = mine.to("tpu"), dist.get_rank()
    x = torch.stack([x, x], -1)[..., 0] if rank == 0 else x
    rows = [len(x) // 2 + 1, len(x) // 2 - 1]
    received = x.new_zeros((2 * rows[rank], *x.shape[1:]))
    later = torch.zeros_like(received)
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    with LongWays() as long:
        dist.all_to_all_single(received, x, [rows[rank]] * 2, rows)
        dist.all_to_all_single(later, x, [rows[rank]] * 2, rows, async_op=True).wait()
    return received.cpu(), later.cpu(), long.count


def reduced_on_a_root(
    dtype: torch.dtype, op: str, root: int, mine: Tensor
) -> tuple[Tensor, Tensor, int]:
    """The last rank brings columns of a matrix; what it was, and what it is then."""
    x = mine.to("tpu", dtype)
    if dist.get_rank() == dist.get_world_size() - 1:
        x = torch.stack([x, x], -1)[..., 0]
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    with LongWays() as long:
        dist.reduce(x, root, getattr(dist.ReduceOp, op))
    return mine.to(dtype), x.cpu(), long.count


def reduced_in_every_way(mine: Tensor) -> tuple[list[Tensor], int]:
    """What each op of gloo's makes of the rows; every second rank brings them not in a row."""
    columns, results = torch.empty(*mine.shape, 2, device="tpu"), []
    dist.all_reduce(torch.zeros(1, device="tpu"))  # connects the ranks
    with LongWays() as long:
        for op in ("SUM", "AVG", "PRODUCT", "MIN", "MAX"):
            x = columns[..., 0] if dist.get_rank() % 2 else mine.to("tpu")
            x.copy_(mine)
            dist.all_reduce(x, getattr(dist.ReduceOp, op))
            results.append(x.cpu())
    return results, long.count


def messages(mine: Tensor) -> list[Tensor]:
    """Between two ranks: in turn, at once, from whoever sends, into a part, in a batch."""
    x, rank, other = mine.to("tpu"), dist.get_rank(), dist.get_rank() ^ 1
    results = [torch.empty_like(x) for _ in range(4)]
    for turn in (dist.send, dist.recv)[:: 1 if rank == 0 else -1]:
        turn(x if turn is dist.send else results[0], other)
    sent = dist.isend(x, other, tag=7)
    received = dist.irecv(results[1], other, tag=7)
    while not received.is_completed():
        pass
    received.wait()
    sent.wait()
    del x
    y = results[1] * 2
    sent = dist.isend(y, other)
    assert dist.recv(results[2]) == other
    sent.wait()
    whole = torch.zeros(3, *mine.shape, device="tpu")
    operations = [
        dist.P2POp(dist.isend, y, other),
        dist.P2POp(dist.irecv, whole[1], other),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [t.cpu() for t in (*results[:3], whole)]
