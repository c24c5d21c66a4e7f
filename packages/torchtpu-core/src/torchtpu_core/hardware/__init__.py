# SPDX-License-Identifier: Apache-2.0
"""Frozen records of the TPU generations, each figure with its source."""

from torchtpu_core.hardware.chip import Chip as Chip
from torchtpu_core.hardware.chip import Wrap as Wrap
from torchtpu_core.hardware.registry import ChipRegistry as ChipRegistry
from torchtpu_core.hardware.registry import chips as chips
from torchtpu_core.hardware.sourced import Sourced as Sourced
from torchtpu_core.hardware.sourced import Status as Status
