# SPDX-License-Identifier: Apache-2.0
"""Warnings that Python shows with the script's line, not with that of a library that it called."""

from __future__ import annotations

import warnings


def warn_at(line: str, message: str, category: type[Warning]) -> None:
    """Warn at a line of the script.

    Args:
        line: as ``train.py:12 in step``; unknown, it is that of the caller's caller.
        message: the text.
        category: the class.
    """
    file, _, number = line.rpartition(" in ")[0].rpartition(":")
    if file:
        warnings.warn_explicit(message, category, file, int(number))
    else:
        warnings.warn(message, category, stacklevel=3)
