# SPDX-License-Identifier: Apache-2.0
"""Exchanges through host memory: point-to-point, uneven all-to-all, barrier.

XLA has no program for a message whose two ends run at different times, and pairs of
ranks that exchange in both directions would mix up their programs. gloo matches
messages by sender and tag, so they go through it. The simulated time charged is that
of the exchange over ICI, which is what a TPU would use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torchtpu_core import _C
from torchtpu_core.runtime.current import target
from torchtpu_core.simulator.collective_pricing import collective_s
from torchtpu_core.simulator.cost import Collective, CollectiveKind
from torchtpu_core.units import seconds_to_ps

from torchtpu_distributed.errors import ProcessGroupError
from torchtpu_distributed.group import Group
from torchtpu_distributed.ledger import Pending
from torchtpu_distributed.work import HostWork

_POLL_S = 0.0005


class HostPath:
    """The exchanges of one group that go through gloo.

    Args:
        group: the group.
        gloo: a gloo backend of the same ranks.
    """

    def __init__(self, group: Group, gloo: dist.ProcessGroupGloo) -> None:
        self._group = group
        self._gloo = gloo

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> HostWork:
        """Send a tensor to a rank of the group."""
        self._group.world.ledger.check()
        host = tensor.detach().cpu().contiguous()
        work = self._gloo.send([_as_bytes(host)], destination, tag)
        self._charge(tensor, CollectiveKind.PERMUTE, ((self._group.rank, destination),))
        return self._work(work, [tensor], lambda: None, f"send to {destination}", keep=host)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> HostWork:
        """Receive a tensor from a rank of the group, any rank if `source` is negative."""
        self._group.world.ledger.check()
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        if source < 0:
            work = self._gloo.recv_anysource([_as_bytes(host)], tag)
        else:
            work = self._gloo.recv([_as_bytes(host)], source, tag)
            self._charge(tensor, CollectiveKind.PERMUTE, ((source, self._group.rank),))
        what = f"recv from {source}" if source >= 0 else "recv from any rank"
        return self._work(work, [tensor], lambda: _fill(tensor, host), what, keep=host)

    def all_to_all(
        self,
        output: torch.Tensor,
        operand: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> HostWork:
        """Exchange pieces of different sizes; sizes along dim 0."""
        self._group.world.ledger.check()
        received = torch.empty(output.shape, dtype=output.dtype)
        sent = operand.detach().cpu().contiguous()
        work = self._gloo.alltoall_base(
            _rows_as_bytes(received),
            _rows_as_bytes(sent),
            list(output_splits),
            list(input_splits),
            dist.AllToAllOptions(),
        )
        self._charge(operand, CollectiveKind.ALL_TO_ALL, ())
        done = self._work(work, [output], lambda: _fill(output, received), "all_to_all", keep=sent)
        done.wait()
        return done

    def barrier(self) -> HostWork:
        """Wait for every rank, and before that for all work of this rank's device."""
        ledger = self._group.world.ledger
        if _C.is_started():
            _C.synchronize(_C.current_device())
        ledger.check()
        done = self._work(self._gloo.barrier(dist.BarrierOptions()), [], lambda: None, "barrier")
        done.wait()
        return done

    def _work(
        self,
        work: Any,
        tensors: Sequence[torch.Tensor],
        fill: Callable[[], None],
        what: str,
        keep: Any = None,
    ) -> HostWork:
        group, ledger = self._group, self._group.world.ledger
        pending = Pending(
            group=f"{group.name} (host)",
            ranks=group.ranks,
            seq=1,
            what=what,
            line=_C.user_line(),
            timeout_s=group.timeout_s,
        )

        def finish(_kept: Any = keep) -> None:
            ledger.begin(pending)
            try:
                _wait(work, pending, ledger)
            finally:
                ledger.finish(pending)
            fill()

        return HostWork(ledger, tensors, finish, work.is_completed)

    def _charge(
        self, tensor: torch.Tensor, kind: CollectiveKind, groups: tuple[tuple[int, ...], ...]
    ) -> None:
        slice_ = target().target.slice_
        ranks = self._group.ranks
        if slice_ is None or self._group.world.size > slice_.devices:
            return
        nbytes = tensor.numel() * tensor.element_size()
        moved = Collective(
            kind=kind,
            operand_bytes=nbytes,
            result_bytes=nbytes,
            groups=tuple(tuple(ranks[i] for i in g) for g in groups) or (ranks,),
        )
        seconds = collective_s(moved, slice_, slice_.devices)
        _C.add_device_time(tensor.get_device(), seconds_to_ps(seconds))


def check_splits(splits: Sequence[int], tensor: torch.Tensor, size: int) -> None:
    """Refuse split sizes that do not cover a tensor.

    Raises:
        ProcessGroupError: wrong number or sum.
    """
    rows = tensor.shape[0] if tensor.dim() else 1
    if splits and (len(splits) != size or sum(splits) != rows):
        raise ProcessGroupError(
            f"split sizes {list(splits)} do not fit {size} ranks and a tensor of {rows} rows: give "
            "one size per rank, with the number of rows as their sum."
        )
    if not splits and rows % size:
        raise ProcessGroupError(
            f"a tensor of {rows} rows cannot be split evenly among {size} ranks: give split sizes."
        )


def _fill(tensor: torch.Tensor, host: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(host)


def _as_bytes(host: torch.Tensor) -> torch.Tensor:
    """The same memory as bytes: gloo moves some dtypes only."""
    return host.reshape(-1).view(torch.uint8)


def _rows_as_bytes(host: torch.Tensor) -> torch.Tensor:
    """The same memory as rows of bytes, so that splits along dim 0 still count rows."""
    rows = host.shape[0]
    return host.reshape(rows, -1).view(torch.uint8) if host.numel() else host.new_empty(rows, 0)


def _wait(work: Any, pending: Pending, ledger: Any) -> None:
    """Wait for gloo, but not longer than for the verdict of the watch."""
    try:
        while not work.is_completed():
            ledger.wait_until(lambda: bool(ledger.failure), timeout_s=_POLL_S)
        work.wait()
    except RuntimeError as error:
        ledger.check()
        pending.trouble = str(error)
        ledger.wait_until(lambda: False)
