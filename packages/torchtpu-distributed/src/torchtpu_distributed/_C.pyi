# SPDX-License-Identifier: Apache-2.0
"""Types of the compiled part; documented in csrc/."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

class Call:
    what: str
    digest: str
    said: str
    device_time_ps: int
    def __init__(
        self,
        what: str,
        kind: str,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        device_time_ps: int,
    ) -> None: ...

class GroupState:
    timeout_s: float
    device: int
    def __init__(self, name: str, ranks: Sequence[int], timeout_s: float) -> None: ...
    @property
    def seq(self) -> int: ...
    def next(self) -> int: ...
    def next_message(self) -> int: ...
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...

class Pending:
    group: str
    ranks: tuple[int, ...]
    seq: int
    what: str
    line: str
    timeout_s: float
    kind: str
    message: int
    inputs: Sequence[Any]
    outputs: Sequence[Any]
    call: Call
    name: str
    record_id: int
    launched: bool
    done: bool
    began_s: float
    launched_s: float | None
    done_s: float | None
    trouble: str
    trouble_s: float
    def __init__(
        self,
        *,
        group: str,
        ranks: Sequence[int],
        seq: int,
        what: str,
        line: str,
        timeout_s: float,
        kind: str = "",
        message: int = 0,
        inputs: Sequence[Any] = (),
        outputs: Sequence[Any] = (),
    ) -> None: ...
    @staticmethod
    def of(group: GroupState, call: Call, seq: int, line: str, timeout_s: float) -> Pending: ...

class Records:
    def __init__(self, entries: int) -> None: ...
    def add(self, record: Pending) -> None: ...
    def begin(self, record: Pending) -> None: ...
    def end(self, record: Pending) -> None: ...
    def idle(self) -> bool: ...
    def last(self) -> list[Pending]: ...
    def under_way(self) -> list[Pending]: ...
    def positions(self) -> dict[str, Pending]: ...

class Count:
    value: int

class Operations:
    def __init__(self) -> None: ...
    def idle(self) -> bool: ...
    def wait_for_storages(self, storages: Sequence[int], abort: Abort) -> None: ...
    def wait_for_memory(self, first: int, nbytes: int, abort: Abort) -> None: ...
    def abandon(self, error: Callable[[], Exception]) -> bool: ...

class Direct:
    grace_s: float
    begun_behind: int
    is_broken: bool
    def __init__(
        self,
        group: GroupState,
        records: Records,
        abort: Abort,
        in_flight: Count,
        operations: Operations,
        owner: Any,
        rank: int,
        in_place: bool,
    ) -> None: ...
    def connect(self, gloo: Any, mailbox: Mailbox | None) -> None: ...
    def settle(self) -> None: ...
    def drain(self) -> bool: ...

class LaterWork:
    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]: ...
    def wait_for_future(self, future: torch.futures.Future[Any]) -> None: ...

class PythonWork:
    def get_future(self) -> torch.futures.Future[list[torch.Tensor]]: ...

class Abort:
    def set(self) -> None: ...

class Mailbox:
    ENTRIES: int
    def __init__(self, path: str, rank: int, size: int) -> None: ...
    def compare(self, number: int, call: Call, line: str, abort: Abort) -> str | None: ...
    def said(self, rank: int, number: int) -> str | None: ...

def finish_future(future: torch.futures.Future[Any], tensors: Sequence[torch.Tensor]) -> None: ...
def fail_future(future: torch.futures.Future[Any], error: Exception) -> None: ...
def make_backend(
    rank: int,
    size: int,
    timeout_s: float,
    target: Any,
    host: Any,
    direct: Direct,
) -> Any: ...
def view_of(address: int, elements: int, dtype: torch.dtype, owner: Any) -> torch.Tensor: ...
def wait_for(works: Sequence[Any], abort: Abort) -> bool: ...
