# SPDX-License-Identifier: Apache-2.0
"""Exchanges through host memory: point-to-point, uneven all-to-all, barrier.

XLA has no program for a message whose two ends run at different times, and pairs of
ranks that exchange in both directions would mix up their programs. gloo matches
messages by sender and tag, so they go through it. The simulated time charged is that
of the exchange over ICI, which is what a TPU would use.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import distributed as dist
from torchtpu_core.calls import add_device_time, user_line
from torchtpu_core.runtime.current import target
from torchtpu_core.simulator.collective_pricing import collective_s
from torchtpu_core.simulator.cost import Collective, CollectiveKind
from torchtpu_core.tpu import devices
from torchtpu_core.units import seconds_to_ps

from torchtpu_distributed.errors import CollectiveError, ProcessGroupError
from torchtpu_distributed.group import Group
from torchtpu_distributed.pending import Operand, Pending
from torchtpu_distributed.work import HostWork

#: How long the watch may need to say which rank is behind an error of gloo.
_VERDICT_S = 15.0


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
        pending = self._message("send", "->", destination, inputs=[_operand(tensor)])
        host = tensor.detach().cpu().contiguous()
        work = self._gloo.send([_as_bytes(host)], destination, tag)
        self._charge(tensor, CollectiveKind.PERMUTE, ((self._group.rank, destination),))
        return self._work(pending, work, [tensor], keep=host)

    def receive(self, tensor: torch.Tensor, source: int, tag: int) -> HostWork:
        """Receive a tensor from a rank of the group, any rank if `source` is negative."""
        host = torch.empty(tensor.shape, dtype=tensor.dtype)
        if source < 0:
            pending = self._message("recv", "<-", None, outputs=[_operand(tensor)])
            work = self._gloo.recv_anysource([_as_bytes(host)], tag)
        else:
            pending = self._message("recv", "<-", source, outputs=[_operand(tensor)])
            work = self._gloo.recv([_as_bytes(host)], source, tag)
            self._charge(tensor, CollectiveKind.PERMUTE, ((source, self._group.rank),))
        return HostWork(
            self._group.world.ledger,
            pending,
            [tensor],
            _arrival(work, host),
            lambda: _fill(tensor, host),
            work._source_rank,
        )

    def all_to_all(
        self,
        output: torch.Tensor,
        operand: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> HostWork:
        """Exchange pieces of different sizes; sizes along dim 0."""
        pending = self._agreed(
            f"all_to_all of uneven pieces of {operand.dtype}",
            "all_to_all",
            inputs=[_operand(operand)],
            outputs=[_operand(output)],
        )
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
        done = self._work(pending, work, [output], lambda: _fill(output, received), keep=sent)
        done.wait()
        return done

    def barrier(self) -> HostWork:
        """Wait for every rank, and before that for all work of this rank's device."""
        if devices.is_initialized():
            devices.synchronize()
        pending = self._agreed("barrier", "barrier")
        done = self._work(pending, self._gloo.barrier(dist.BarrierOptions()), [])
        done.wait()
        return done

    def diagnose(self, message: str) -> None:
        """Let the watch find out why gloo failed with CPU tensors, and raise it."""
        group, ledger = self._group, self._group.world.ledger
        pending = Pending(
            group=group.name,
            ranks=group.ranks,
            seq=0,
            what="a collective of CPU tensors",
            line=user_line(),
            timeout_s=group.timeout_s,
            kind="all_reduce",
            trouble=message,
            trouble_s=time.monotonic(),
        )
        ledger.begin(pending)
        ledger.on_trouble()
        try:
            ledger.wait_until(lambda: False, _VERDICT_S)
        finally:
            ledger.give_up(pending)
        raise CollectiveError(f"{pending.name}, failed: {message}")

    def _agreed(self, what: str, kind: str, **operands: Sequence[Operand]) -> Pending:
        """A collective of the group's order."""
        pending = self._group.pending(what, user_line(), kind=kind, **operands)
        try:
            self._group.agree(pending)
        except BaseException:
            self._group.world.ledger.give_up(pending)
            raise
        return pending

    def _message(
        self,
        kind: str,
        arrow: str,
        peer: int | None,
        *,
        inputs: Sequence[Operand] = (),
        outputs: Sequence[Operand] = (),
    ) -> Pending:
        """A message, which has no place in the group's order."""
        group = self._group
        group.world.ledger.check()
        group.messages += 1
        direction = "to" if kind == "send" else "from"
        pending = Pending(
            group=group.name,
            ranks=group.ranks if peer is None else (group.world.rank, group.ranks[peer]),
            seq=0,
            what=f"{kind} {direction} {'any rank' if peer is None else f'group rank {peer}'}",
            line=user_line(),
            timeout_s=group.timeout_s,
            kind=f"{kind} {group.rank}{arrow}{group.rank if peer is None else peer}",
            message=group.messages,
            inputs=inputs,
            outputs=outputs,
        )
        group.world.ledger.recorder.add(pending)
        return pending

    def _work(
        self,
        pending: Pending,
        work: Any,
        tensors: Sequence[torch.Tensor],
        fill: Callable[[], None] = lambda: None,
        keep: Any = None,
    ) -> HostWork:
        return HostWork(self._group.world.ledger, pending, tensors, _arrival(work, keep), fill)

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
        add_device_time(tensor.get_device(), seconds_to_ps(seconds))


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


def _operand(tensor: torch.Tensor) -> Operand:
    return tensor.dtype, tuple(tensor.shape)


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


def _arrival(work: Any, keep: Any) -> Callable[[], None]:
    """Waits for gloo's work; a closure, so that the memory it uses outlives it."""

    def arrive(_kept: Any = keep) -> None:
        work.wait()

    return arrive
