# SPDX-License-Identifier: Apache-2.0
"""A chip that does not exist: a v5e with twice the memory bandwidth, for what-if questions."""

from __future__ import annotations

from dataclasses import replace

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.hardware.registry import chips
from torchtpu_core.hardware.sourced import Sourced, Status


def v5e_with_double_bandwidth() -> Chip:
    """The record of v5e, with one figure changed and labelled as assumed."""
    v5e = chips().get("v5e")
    return replace(
        v5e,
        name="v5e-2xhbm",
        aliases=(),
        device_kind="TPU v5e with 2x HBM bandwidth",
        pjrt_device_kinds=(),
        hbm_bytes_per_s=Sourced(
            2 * v5e.figure("hbm_bytes_per_s"), "what-if: twice v5e's", Status.ASSUMED
        ),
    )
