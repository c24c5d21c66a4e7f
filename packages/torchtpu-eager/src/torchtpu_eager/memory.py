# SPDX-License-Identifier: Apache-2.0
"""What fills the device when it is out of memory."""

from __future__ import annotations

from typing import NoReturn

import torch
from torchtpu_core.tpu.memory import live_values
from torchtpu_core.units import GIB

from torchtpu_eager.operands import Call, tensors_in

_LISTED = 10


def report(device: int) -> str:
    """The largest live tensors of a device and the lines that made them."""
    values = live_values(device)
    rows = [f"The largest of {len(values)} live tensors on tpu:{device}:"]
    for value in values[:_LISTED]:
        dtype = str(value.dtype).removeprefix("torch.")
        rows.append(
            f"  {value.nbytes / GIB:.3f} GiB  {dtype} {list(value.shape)}  made at "
            f"{value.line or 'an unknown line'}"
        )
    return "\n".join(rows)


def failed(call: Call, error: torch.OutOfMemoryError) -> NoReturn:
    """Raise the error again with the list."""
    devices = [t.device for arg in call.args for t in tensors_in(arg) if t.device.type == "tpu"]
    device = devices[0].index if devices else torch.accelerator.current_device_index()
    raise torch.OutOfMemoryError(f"{error}\n{call.where} failed. {report(device)}") from error
