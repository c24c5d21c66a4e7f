# SPDX-License-Identifier: Apache-2.0
"""Objects with tensors between a test and its ranks, by value.

`Connection.send` of a tensor shares its memory through file descriptors, and plain
pickle does not know every dtype.
"""

from __future__ import annotations

import io
from multiprocessing.connection import Connection
from typing import Any

import torch


def send(connection: Connection, value: Any) -> None:
    """Send an object."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    connection.send_bytes(buffer.getvalue())


def receive(connection: Connection) -> Any:
    """Receive an object; EOFError if the other side has closed."""
    return torch.load(io.BytesIO(connection.recv_bytes()), weights_only=False)
