# SPDX-License-Identifier: Apache-2.0
"""Importing an optional distribution, or saying how to install it."""

from __future__ import annotations

import importlib
from types import ModuleType

from torchtpu_core.errors import MissingExtraError


def require(module: str, extra: str, what: str) -> ModuleType:
    """The module of an extra.

    Args:
        module: such as ``torchtpu_kernels.pallas``.
        extra: the extra of torchtpu-core that brings it.
        what: what the user asked for, for the message.

    Raises:
        MissingExtraError: its distribution is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name == module.partition(".")[0]:
            raise MissingExtraError.for_extra(extra, what) from error
        raise
