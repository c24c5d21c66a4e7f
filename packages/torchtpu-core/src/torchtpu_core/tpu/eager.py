# SPDX-License-Identifier: Apache-2.0
"""Choosing the execution mode: `torch.tpu.set_eager_mode` and `torch.tpu.debug`."""

from __future__ import annotations

import enum
from types import TracebackType
from typing import Any


class EagerMode(enum.Enum):
    """When recorded ops run.

    ``DEFER_*`` are the names Google's torch_tpu uses for the same modes.
    """

    DEBUG = "debug"
    STRICT = "strict"
    FUSED = "fused"
    DEFER_NEVER_AND_LAUNCH_BLOCKING = "debug"  # noqa: PIE796 - an alias
    DEFER_NEVER = "strict"  # noqa: PIE796 - an alias
    DEFER_AND_FUSE = "fused"  # noqa: PIE796 - an alias


def current_mode() -> EagerMode:
    """The mode in force."""
    from torchtpu_core.runtime import modes

    return EagerMode(modes.current())


class set_eager_mode:
    """Set the mode, for good or for a ``with`` block.

    Args:
        mode: an `EagerMode` or its name, in any case.

    Raises:
        ValueError: there is no such mode.

    >>> with torch.tpu.set_eager_mode("debug"):  # doctest: +SKIP
    ...     loss.backward()
    """

    def __init__(self, mode: EagerMode | str) -> None:
        from torchtpu_core.runtime import modes

        self.previous = modes.current()
        modes.enter(_named(mode).value)

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from torchtpu_core.runtime import modes

        modes.enter(self.previous)


def _named(mode: EagerMode | str) -> EagerMode:
    if isinstance(mode, EagerMode):
        return mode
    try:
        return EagerMode[str(mode).upper()]
    except KeyError:
        names = ", ".join(EagerMode.__members__)
        raise ValueError(f"{mode!r} is not an eager mode. Use one of {names}.") from None


def debug(**options: Any) -> Any:
    """Debug mode with options, as a context manager; see `torchtpu_eager.debug`.

    Raises:
        MissingExtraError: `torchtpu-eager` is not installed.
    """
    import importlib

    from torchtpu_core.errors import MissingExtraError

    try:
        module = importlib.import_module("torchtpu_eager.debug")
    except ModuleNotFoundError as error:
        raise MissingExtraError.for_extra("eager", "torch.tpu.debug") from error
    return module.debug(**options)


__all__ = ["EagerMode", "current_mode", "debug", "set_eager_mode"]
