# SPDX-License-Identifier: Apache-2.0
"""Exchanges through host memory: uneven all-to-all and barrier, where compiled code declines them.

The simulated time charged is that of the exchange over ICI, which is what a TPU would use.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import distributed as dist
from torchtpu_core.calls import add_device_time
from torchtpu_core.tpu import devices

from torchtpu_distributed import _C
from torchtpu_distributed.errors import ProcessGroupError
from torchtpu_distributed.first_calls import Pieces
from torchtpu_distributed.group import Group
from torchtpu_distributed.host_collectives import Begun, Gloo
from torchtpu_distributed.host_running import PIECES, HostRunner
from torchtpu_distributed.work import DeviceWork

#: How much longer gloo waits than a collective may take: the watch must be the first to see that
#: the time is up.
PATIENCE_S = 60.0


class HostPath:
    """The exchanges of one group that go through gloo.

    Args:
        group: the group.
        runner: keeps the order of what all ranks call.
        gloo: the backend of CPU tensors.
    """

    def __init__(self, group: Group, runner: HostRunner, gloo: dist.ProcessGroupGloo) -> None:
        self._group = group
        self._runner = runner
        self._gloo = gloo

    def all_to_all(
        self,
        output: torch.Tensor,
        operand: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
    ) -> DeviceWork:
        """Exchange pieces of different sizes; sizes along dim 0.

        Raises:
            ProcessGroupError: this rank's piece for itself has another size than it expects.
        """
        pieces = Pieces(sent=_sizes(operand, input_splits), received=_sizes(output, output_splits))
        _check_own(pieces, self._group.rank)
        received = torch.empty(output.shape, dtype=output.dtype, device="cpu")
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

        call = self._runner.describe(PIECES, "", -1, [operand], [output])
        work = self._runner.run_host(call, begin, pieces)
        add_device_time(operand.get_device(), call.device_time_ps)
        _fill(output, received)
        return work.of([output])

    def barrier(self, timeout_s: float | None) -> DeviceWork:
        """Wait for every rank, and before that for all work of this rank's device.

        Args:
            timeout_s: seconds it may take; None for the group's.
        """
        devices.synchronize()

        def begin(gloo: Gloo) -> Begun:
            patient = dist.BarrierOptions()
            if timeout_s is not None:
                patient.timeout = timedelta(seconds=timeout_s + PATIENCE_S)
            return [gloo.backend.barrier(patient)], lambda: None

        call = _C.Call("barrier", "barrier", (), (), 0)
        return self._runner.run_host(call, begin, timeout_s=timeout_s)

    def left(self) -> None:
        """A wait for a collective of CPU tensors has ended before gloo has."""
        self._group.world.ledger.leave_stuck(self._gloo)


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


def _check_own(pieces: Pieces, rank: int) -> None:
    if pieces.sent[rank] != pieces.received[rank]:
        raise ProcessGroupError(
            f"group rank {rank} sends {pieces.sent[rank]} bytes to itself and expects "
            f"{pieces.received[rank]} from itself: make its own pieces equal."
        )


def _fill(tensor: torch.Tensor, host: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(host)


def _sizes(tensor: torch.Tensor, splits: Sequence[int]) -> tuple[int, ...]:
    """Bytes of the pieces along dim 0."""
    row_bytes = tensor.shape[1:].numel() * tensor.itemsize
    return tuple(rows * row_bytes for rows in splits)


def _rows_as_bytes(host: torch.Tensor) -> torch.Tensor:
    """The same memory as rows of bytes, so that splits along dim 0 still count rows."""
    rows, elements = host.shape[0], host.shape[1:].numel()
    return host.reshape(rows, elements).view(torch.uint8)
