# SPDX-License-Identifier: Apache-2.0
"""The functions that C++ calls, by name.

Light ones are here; the others are found in their modules when the runtime has
started, so that asking for the number of devices does not import JAX.
"""

from __future__ import annotations

import functools
import importlib
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

from torchtpu_core.runtime.collector import keep_interrupts, uncollected
from torchtpu_core.runtime.untraced import untraced

_HEAVY = {
    "build_at_first_sight": "first_sight",
    "build_group": "groups",
    "build_program": "programs",
    "build_side_by_side": "background",
    "compile_program": "programs",
    "groups_in": "groups",
    "lookup_program": "programs",
    "request_program": "background",
    "log_flush": "explanations",
    "add_line": "deferred",
    "add_line_of_run": "deferred",
    "raise_of_run": "memory",
    "infer_by_lowering": "inference",
    "cpu_takes": "cpu_errors",
    "raise_cpus_error": "cpu_errors",
    "refuse": "cpu_errors",
    "refuse_numbers": "cpu_errors",
    "resized": "transfers",
    "to_device": "transfers",
    "put": "transfers",
    "to_other_device": "transfers",
    "host_buffer": "transfers",
    "time_of_moving_ps": "host_search",
    "zeros": "transfers",
    "wait": "transfers",
    "is_ready": "transfers",
    "failed_check": "deferred",
    "raise_check": "deferred",
    "raise_failed_operand": "deferred",
    "memory_info": "memory",
    "raise_out_of_memory": "memory",
    "on_fallback": "fallbacks",
}


def __getattr__(name: str) -> Any:
    if name not in _HEAVY:
        raise AttributeError(name)
    return untraced(getattr(importlib.import_module(f"torchtpu_core.runtime.{_HEAVY[name]}"), name))


def device_count() -> int:
    """Number of devices of the current target on this host; starts nothing.

    C++ takes an error for none, as a script that asks whether there is a device wants it, and would
    then run on the CPU: a warning tells why.
    """
    from torchtpu_core.runtime.current import target

    try:
        return target().device_count
    except Exception as error:
        _warn_of_none(str(error))
        raise


@functools.cache
def _warn_of_none(reason: str) -> None:
    """Warn, once for each reason, at the line that asks; none does at the end of the process."""
    from torchtpu_core import _C
    from torchtpu_core.runtime import script_warnings

    if line := _C.user_line():
        script_warnings.warn_at(line, f"there is no tpu device: {reason}", UserWarning)


def models_time() -> bool:
    """Whether events read simulated device time."""
    from torchtpu_core.runtime.current import target

    return target().simulated


def start() -> None:
    """Start the runtime: client, plugins, tables, mode.

    JAX adds a callback to the collector, in which Ctrl-C is lost; and imports make many objects.
    """
    keep_interrupts()
    with uncollected():
        from torchtpu_core.runtime import startup

        untraced(startup.start)()


def raise_no_such_device(device: int) -> NoReturn:
    """Refuse a device index."""
    from torchtpu_core.errors import DeviceIndexError
    from torchtpu_core.runtime.current import target

    raise DeviceIndexError.for_index(device, target().device_count, target().name)


def is_host_only(error: BaseException) -> bool:
    """Whether an error says that the call runs on the host."""
    from torchtpu_core.errors import HostOnlyError

    return isinstance(error, HostOnlyError)


def raise_no_mode(op: str) -> NoReturn:
    """Refuse an op because no execution mode is installed."""
    from torchtpu_core.env_vars import settings
    from torchtpu_core.errors import ModeMissingError

    raise ModeMissingError.for_op(op, settings().disable_plugins)


_STDLIB = str(Path(sysconfig.get_paths()["stdlib"]))
_LIBRARY_PARTS = (
    *("/torch/", "/torchtpu_", "/torch_tpu/", "/jax/", "/jaxlib/", "<frozen"),
    "/typing_extensions.py",  # wraps what torch declares deprecated
)


def is_user_file(filename: str) -> bool:
    """Whether a frame of this file is the user's: not torch, not JAX, not ours, not the stdlib."""
    if any(part in filename for part in _LIBRARY_PARTS):
        return "/tests/" in filename
    return not (filename.startswith(_STDLIB) and "site-packages" not in filename)
