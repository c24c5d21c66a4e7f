# SPDX-License-Identifier: Apache-2.0
"""Which results of an operator nothing reads, for rows whose kernels can leave them out.

XLA drops what nobody reads, but a kernel writes all of its results: flash attention the statistics
of its softmax, which inference does not need, with 512 bytes for each query and head.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Container, Iterator

_local = threading.local()


@contextlib.contextmanager
def results(numbers: Container[int]) -> Iterator[None]:
    """Nothing reads the results of these numbers, of the row that is lowered inside the block."""
    outer = getattr(_local, "numbers", ())
    _local.numbers = numbers
    try:
        yield
    finally:
        _local.numbers = outer


def is_unread(number: int) -> bool:
    """Whether it is known that nothing reads a result of the row that is being lowered."""
    return number in getattr(_local, "numbers", ())
