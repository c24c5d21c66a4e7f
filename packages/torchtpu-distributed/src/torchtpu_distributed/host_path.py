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
from torchtpu_core.tpu import devices

from torchtpu_distributed import pricing
from torchtpu_distributed.errors import CollectiveError, ProcessGroupError
from torchtpu_distributed.group import Group
from torchtpu_distributed.host_collectives import Begun, Gloo
from torchtpu_distributed.host_running import HostRunner
from torchtpu_distributed.pending import Operand, Pending
from torchtpu_distributed.work import DeviceWork, HostWork

#: How long the watch may need to say which rank is behind an error of gloo.
_VERDICT_S = 15.0


class HostPath:
    """The exchanges of one group that go through gloo.

    Args:
        group: the group.
        gloo: a gloo backend of the same ranks, for messages.
        runner: keeps the order of what all ranks call.
    """

    def __init__(self, group: Group, gloo: dist.ProcessGroupGloo, runner: HostRunner) -> None:
        self._group = group
        self._gloo = gloo
        self._runner = runner

    def send(self, tensor: torch.Tensor, destination: int, tag: int) -> HostWork:
        """Send a tensor to a rank of the group."""
        pending = self._message("send", "->", destination, inputs=[_operand(tensor)])
        host = tensor.detach().cpu().contiguous()
        work = self._gloo.send([_as_bytes(host)], destination, tag)
        self._charge(tensor, "send", ((self._group.rank, destination),))
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
            self._charge(tensor, "send", ((source, self._group.rank),))
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
    ) -> DeviceWork:
        """Exchange pieces of different sizes; sizes along dim 0."""
        received = torch.empty(output.shape, dtype=output.dtype)
        sent = operand.detach().cpu().contiguous()

        def begin(gloo: Gloo) -> Begun:
            work = gloo.backend.alltoall_base(
                _rows_as_bytes(received),
                _rows_as_bytes(sent),
                list(output_splits),
                list(input_splits),
                dist.AllToAllOptions(),
            )
            return [work], lambda: None

        work = self._together(
            f"all_to_all of uneven pieces of {operand.dtype}",
            "all_to_all",
            begin,
            inputs=[_operand(operand)],
            outputs=[_operand(output)],
        )
        self._charge(operand, "all_to_all", ())
        _fill(output, received)
        return work.of([output])

    def barrier(self) -> DeviceWork:
        """Wait for every rank, and before that for all work of this rank's device."""
        if devices.is_initialized():
            devices.synchronize()

        def begin(gloo: Gloo) -> Begun:
            return [gloo.backend.barrier(dist.BarrierOptions())], lambda: None

        return self._together("barrier", "barrier", begin)

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

    def _together(
        self,
        what: str,
        kind: str,
        begin: Callable[[Gloo], Begun],
        **operands: Sequence[Operand],
    ) -> DeviceWork:
        """A collective of the group's order, done when this returns."""
        self._runner.wait_idle()
        pending = self._group.pending(what, user_line(), kind=kind, **operands)
        self._runner.perform(pending, begin)
        return DeviceWork(pending, self._group.world.ledger, [])

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

    def _charge(self, tensor: torch.Tensor, kind: str, pairs: tuple[tuple[int, int], ...]) -> None:
        spent_ps = pricing.device_time_ps(kind, tensor.nbytes, self._group, pairs)
        add_device_time(tensor.get_device(), spent_ps)


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
