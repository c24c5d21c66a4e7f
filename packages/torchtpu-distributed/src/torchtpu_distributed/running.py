# SPDX-License-Identifier: Apache-2.0
"""Running a collective as an XLA program over the devices of the group."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import torch
from torchtpu_core import calls as core_calls
from torchtpu_core.lowering import dtypes
from torchtpu_core.runtime import transfers

from torchtpu_distributed import _C
from torchtpu_distributed.calls import Collective
from torchtpu_distributed.group import Group
from torchtpu_distributed.programs import Programs
from torchtpu_distributed.work import DeviceWork


class Runner:
    """Runs the collectives of one group."""

    def __init__(self, group: Group) -> None:
        self.group = group
        self._programs = Programs(group)

    def run(
        self,
        call: Collective,
        operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
        *,
        keep: bool = True,
        later: bool = False,
        timeout_s: float | None = None,
    ) -> DeviceWork:
        """Launch a collective and give its results to tensors.

        Args:
            call: the collective; its shapes are those of `results`.
            operands: what this rank puts in, on one device.
            results: tensors that get the results.
            keep: whether this rank is one that gets them.
            later: nothing; results are values that are being computed.
            timeout_s: seconds it may take; None for the group's.

        Raises:
            CollectiveError: it cannot run, or an earlier one has failed.
        """
        group, ledger = self.group, self.group.world.ledger
        ledger.check()
        if all(tensor.numel() == 0 for tensor in operands):
            return DeviceWork(None, ledger, list(results))
        device = operands[0].get_device()
        group.use_device(device)
        inputs = [_at_least_1d(tensor) for tensor in operands]
        avals = tuple(
            jax.ShapeDtypeStruct(tuple(t.shape), dtypes.to_numpy(t.dtype)) for t in inputs
        )
        what = _C.Call(
            call.describe([(a.dtype, a.shape) for a in avals]),
            call.kind,
            [(t.dtype, tuple(t.shape)) for t in operands],
            [(t.dtype, tuple(t.shape)) for t in results],
            0,
        )
        pending = group.pending(what, core_calls.user_line(), timeout_s)
        try:
            group.agree(pending)
            program = self._programs.find(call, avals)
            arrays = [self._to_collective(core_calls.array_of(t), device) for t in inputs]
            *values, _token = ledger.run(pending, lambda: program.run(arrays))
        except BaseException:
            ledger.give_up(pending)
            raise
        for tensor, value in zip(results if keep else (), values, strict=keep):
            core_calls.assign(_at_least_1d(tensor), self._to_device(value, device))
        core_calls.add_device_time(device, program.device_time_ps)
        return DeviceWork(pending, ledger, list(results))

    def _to_collective(self, array: jax.Array, device: int) -> jax.Array:
        """The array on the client of the collectives."""
        joined = self.group.world.joined
        if joined.is_core:
            return array
        there = jax.sharding.SingleDeviceSharding(joined.client.local_devices()[device])
        return transfers.put_on(_host_copy(array), there)

    def _to_device(self, array: jax.Array, device: int) -> jax.Array:
        """The array on the device's client."""
        if self.group.world.joined.is_core:
            return array
        self.group.world.ledger.wait_for(array)
        return transfers.put(_host_copy(array), device)


def _at_least_1d(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach()
    return tensor.view(1) if tensor.dim() == 0 else tensor


def _host_copy(array: jax.Array) -> np.ndarray[Any, Any]:
    """The array's elements, in memory of their own."""
    address, _owner = transfers.host_buffer(array)
    raw = ctypes.string_at(address, array.nbytes)
    return np.frombuffer(raw, array.dtype).reshape(array.shape)
