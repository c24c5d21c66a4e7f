# SPDX-License-Identifier: Apache-2.0
"""The device groups of a collective, from its printed attributes.

Reads ``replica_groups`` and ``source_target_pairs``: a list of rows, one number for
all, or the bytes of a long list in hexadecimal. Devices are numbers of the program.
"""

from __future__ import annotations

import re
import struct

_GROUPS = re.compile(
    r"(?:replica_groups|source_target_pairs) = dense<(?P<values>[^>]*)> : "
    r"tensor<(?P<rows>\d+)x(?P<columns>\d+)xi64>"
)
_NUMBER = re.compile(r"-?\d+")

# A group that is shorter than the longest is filled up with this.
_PADDING = -1


def read_groups(text: str) -> tuple[tuple[int, ...], ...]:
    """The groups, or (source, target) pairs; empty where the text names none.

    >>> read_groups("replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>")
    ((0, 2), (1, 3))
    """
    match = _GROUPS.search(text)
    if match is None:
        return ()
    rows, columns = int(match["rows"]), int(match["columns"])
    numbers = _numbers(match["values"], rows * columns)
    lists = (numbers[row * columns : (row + 1) * columns] for row in range(rows))
    return tuple(tuple(number for number in row if number != _PADDING) for row in lists)


def _numbers(text: str, count: int) -> list[int]:
    """All numbers of a dense attribute, row by row."""
    if text.startswith('"0x'):
        raw = bytes.fromhex(text.strip('"')[2:])
        values = [number for (number,) in struct.iter_unpack("<q", raw)]
    else:
        values = [int(number) for number in _NUMBER.findall(text)]
    return values * count if len(values) == 1 else values
