# SPDX-License-Identifier: Apache-2.0
"""The execution modes of this process and which one is in force."""

from __future__ import annotations

from torchtpu_core import _C, plugins
from torchtpu_core.env_vars import settings
from torchtpu_core.errors import MissingExtraError
from torchtpu_core.execution import ExecutionMode

_modes: dict[str, ExecutionMode] = {}
_current: str | None = None


def load() -> None:
    """Ask the plugins for modes and enter the one the environment names."""
    for _, modes in plugins.collect("torchtpu_execution_modes"):
        for mode in modes:
            _modes[mode.name] = mode
    if _modes:
        enter(settings().eager_mode.value if _current is None else _current)


def current() -> str:
    """Name of the mode in force, or that will be when the device starts."""
    return _current or settings().eager_mode.value


def enter(name: str) -> None:
    """Put a mode in force; takes effect at once if the device has started.

    Raises:
        MissingExtraError: no plugin has a mode of that name.
    """
    global _current
    if not _modes:
        _current = name
        return
    if name not in _modes:
        raise MissingExtraError.for_extra("eager", f"The execution mode {name!r}")
    mode = _modes[name]
    _current = name
    _C.set_mode(present=True, flush_each=mode.flush_each, synchronous=mode.synchronous)
    _C.set_observer(mode.observer() if mode.observer is not None else None)
    if mode.entered is not None:
        mode.entered()
