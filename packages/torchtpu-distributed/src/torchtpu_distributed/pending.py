# SPDX-License-Identifier: Apache-2.0
"""The record of one collective, from its call to its completion.

The ledger drives it, the watch looks after it, the flight recorder shows it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

#: Dtype, as torch or numpy know it, and shape of a tensor.
Operand = tuple[Any, tuple[int, ...]]


@dataclass(slots=True, eq=False, kw_only=True)
class Pending:
    """One collective from its call to its completion.

    Attributes:
        group: name of the process group.
        ranks: global ranks of the group.
        seq: its number in the group, from 1; 0 for one that is not numbered.
        what: the operation with operands, as `calls.Collective.describe` words it.
        line: the user's line.
        timeout_s: seconds it may take.
        kind: the operation alone, with its two ends if it is a message.
        message: number of a message among those of its group, from 1; 0 for a collective.
        inputs: what this rank puts in.
        outputs: what it gets.
        began_s: monotonic time of the call.
        launched_s: monotonic time at which the launching call had returned.
        done_s: monotonic time at which its results were computed.
        results: arrays, from the launch until the caller takes them.
        token: the last of them, which is kept to wait for.
        trouble: what the transport said when it failed.
        trouble_s: monotonic time of that.
        record_id: its number in the flight recorder.
    """

    group: str
    ranks: tuple[int, ...]
    seq: int
    what: str
    line: str
    timeout_s: float
    kind: str = ""
    message: int = 0
    inputs: Sequence[Operand] = ()
    outputs: Sequence[Operand] = ()
    began_s: float = field(default_factory=time.monotonic)
    launched_s: float | None = None
    done_s: float | None = None
    results: Sequence[Any] = ()
    token: Any = None
    trouble: str = ""
    trouble_s: float = 0.0
    record_id: int = -1

    @property
    def launched(self) -> bool:
        """Whether the launching call has returned."""
        return self.launched_s is not None

    @property
    def done(self) -> bool:
        """Whether its results are computed."""
        return self.done_s is not None

    @property
    def name(self) -> str:
        """How messages name it: the operation, its number, the group and the user's line."""
        where = f" (called at {self.line})" if self.line else ""
        number = f"number {self.seq} of " if self.seq else ""
        return f"{self.what}, {number}group {self.group!r}{where}"
