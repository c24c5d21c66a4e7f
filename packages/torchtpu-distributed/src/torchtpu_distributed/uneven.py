# SPDX-License-Identifier: Apache-2.0
"""all_gather and reduce_scatter of lists whose tensors differ in size.

Every rank knows all sizes, so pieces are padded to the largest and exchanged evenly. What lists of
tensors must be is said here, too.
(The sizes of an all-to-all are known in pairs only: `host_path`.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchtpu_distributed.calls import Collective
from torchtpu_distributed.errors import ProcessGroupError
from torchtpu_distributed.group import Group
from torchtpu_distributed.host_running import HostRunner
from torchtpu_distributed.running import Runner
from torchtpu_distributed.work import DeviceWork


class Uneven:
    """The uneven collectives of one group.

    Args:
        group: the group.
        runner: what runs its collectives.
    """

    def __init__(self, group: Group, runner: Runner | HostRunner) -> None:
        self._group = group
        self._runner = runner

    def all_gather(self, targets: Sequence[torch.Tensor], tensor: torch.Tensor) -> DeviceWork:
        """Give every rank the tensors of all; target i has the shape of rank i's tensor."""
        longest = max(t.numel() for t in targets)
        self._check(targets[self._group.rank], tensor)
        mine = _padded(tensor, longest)
        gathered = tensor.new_empty((self._group.size, longest))
        call = Collective(kind="all_gather", shapes=((self._group.size, longest),))
        work = self._runner.run(call, [mine], [gathered])
        with torch.no_grad():
            for row, target in zip(gathered, targets, strict=True):
                target.copy_(row[: target.numel()].view(target.shape))
        return work.of(targets)

    def reduce_scatter(
        self, output: torch.Tensor, pieces: Sequence[torch.Tensor], op: str
    ) -> DeviceWork:
        """Reduce the i-th pieces of all ranks onto rank i."""
        longest = max(t.numel() for t in pieces)
        self._check(pieces[self._group.rank], output)
        stacked = torch.stack([_padded(piece, longest) for piece in pieces])
        reduced = output.new_empty((1, longest))
        call = Collective(kind="reduce_scatter", op=op, shapes=((1, longest),))
        work = self._runner.run(call, [stacked], [reduced])
        with torch.no_grad():
            output.copy_(reduced[0, : output.numel()].view(output.shape))
        return work.of([output])

    def _check(self, listed: torch.Tensor, own: torch.Tensor) -> None:
        if listed.shape != own.shape or listed.dtype != own.dtype:
            raise ProcessGroupError(
                f"entry {self._group.rank} of the list is {listed.dtype} of shape "
                f"{list(listed.shape)}, but this rank's own tensor is {own.dtype} of shape "
                f"{list(own.shape)}: make them equal; entries of other ranks may differ."
            )


def check_alone(tensors: Sequence[torch.Tensor]) -> None:
    """Refuse several tensors where a process group takes one; gloo would combine them into one.

    Raises:
        ProcessGroupError: there is not one tensor.
    """
    if len(tensors) != 1:
        raise ProcessGroupError(
            f"{len(tensors)} tensors of one rank in one call: a rank has one device. Call it for "
            "each tensor, or use the coalesced variant."
        )


def check_sizes(listed: Sequence[torch.Tensor], own: torch.Tensor) -> None:
    """Refuse a list, one tensor per rank, that does not fit this rank's own tensor.

    Raises:
        ProcessGroupError: an entry has another number of elements.
    """
    for i, tensor in enumerate(listed):
        if tensor.numel() != own.numel():
            raise ProcessGroupError(
                f"entry {i} of the list has shape {list(tensor.shape)}, but this rank's own tensor "
                f"has {list(own.shape)}: give entries of {own.numel()} elements."
            )


def _padded(tensor: torch.Tensor, numel: int) -> torch.Tensor:
    """The elements of a tensor in one row, followed by zeros."""
    row = tensor.new_zeros(numel)
    row[: tensor.numel()] = tensor.detach().reshape(-1)
    return row
