# SPDX-License-Identifier: Apache-2.0
"""The record of one collective, from its call to its completion (`csrc/pending.h`).

The ledger drives it, the watch looks after it, the flight recorder shows it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from torchtpu_distributed import _C

#: Dtype, as torch or numpy know it, and shape of a tensor.
Operand: TypeAlias = tuple[Any, tuple[int, ...]]

Pending = _C.Pending
