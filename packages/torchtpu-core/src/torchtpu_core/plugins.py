# SPDX-License-Identifier: Apache-2.0
"""Finding and loading plugins, each in its own `try`.

A broken plugin is one warning that names it and says how to disable it. pluggy's own
entry-point loader stops at the first broken one, so it is not used.
"""

from __future__ import annotations

import importlib.metadata
import threading
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pluggy

from torchtpu_core import env_vars, hookspecs
from torchtpu_core.errors import PluginError, did_you_mean
from torchtpu_core.hardware.registry import chips

GROUP = "torchtpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class PluginRecord:
    """One plugin that was found.

    Attributes:
        name: its entry point's name.
        distribution: the distribution and version that brought it.
        status: ``loaded``, ``disabled`` or ``failed``.
        error: why it failed, else empty.
        hooks: names of the hooks it implements.
    """

    name: str
    distribution: str
    status: str
    error: str = ""
    hooks: tuple[str, ...] = ()


class PluginWarning(UserWarning):
    """A plugin could not be loaded, or one of its hooks raised."""


_lock = threading.RLock()
_manager: pluggy.PluginManager | None = None
_records: list[PluginRecord] = []


def manager() -> pluggy.PluginManager:
    """The plugin manager, with every plugin that could be loaded."""
    global _manager
    with _lock:
        if _manager is None:
            made = pluggy.PluginManager(hookspecs.PROJECT)
            made.add_hookspecs(hookspecs)
            for entry_point in _entry_points():
                _records.append(_load(made, entry_point))
            _manager = made
            _warn_of_unknown_names()
            _add_chips()
        return _manager


def records() -> tuple[PluginRecord, ...]:
    """What happened to each plugin that was found."""
    manager()
    return tuple(_records)


def collect_if_loaded(hook: str, **arguments: Any) -> list[tuple[str, Any]]:
    """The same as `collect`, but nothing where no plugin has been loaded yet.

    The simulator works without a device; it neither loads plugins nor misses them.
    """
    return collect(hook, **arguments) if _manager is not None else []


def collect(hook: str, **arguments: Any) -> list[tuple[str, Any]]:
    """(plugin, result) of a hook, each implementation in its own `try`.

    Args:
        hook: its name.
        arguments: what it is called with; an implementation gets those it lists.
    """
    found: list[tuple[str, Any]] = []
    for implementation in getattr(manager().hook, hook).get_hookimpls():
        try:
            wanted = {name: arguments[name] for name in implementation.argnames}
            found.append((implementation.plugin_name, implementation.function(**wanted)))
        except Exception as error:
            warn(implementation.plugin_name, f"its hook {hook} raised", error)
    return found


def warn(plugin: str, what: str, error: BaseException) -> None:
    """One warning that names the plugin, the error and how to disable it."""
    warnings.warn(
        f"<TorchTpu/plugins> plugin {plugin!r}: {what} ({type(error).__name__}: {error}). "
        f"It is left out; TORCH_TPU_DISABLE_PLUGINS={plugin} silences this.",
        PluginWarning,
        stacklevel=3,
    )


def _warn_of_unknown_names() -> None:
    """A misspelt name would leave its plugin on, silently."""
    known = [record.name for record in _records]
    for name in sorted(env_vars.read("TORCH_TPU_DISABLE_PLUGINS") - set(known)):
        warnings.warn(
            f"<TorchTpu/plugins> TORCH_TPU_DISABLE_PLUGINS names {name!r}, and no such plugin is "
            f"installed.{did_you_mean(name, known)} Installed: {', '.join(known)}.",
            PluginWarning,
            stacklevel=3,
        )


def _add_chips() -> None:
    for plugin, added in collect("torchtpu_register_chips"):
        for chip in added:
            try:
                chips().extend((chip,))
            except PluginError as error:
                warn(plugin, f"its chip {chip.name!r} was refused", error)


def _entry_points() -> Iterable[importlib.metadata.EntryPoint]:
    return sorted(importlib.metadata.entry_points(group=GROUP), key=lambda e: e.name)


def _load(made: pluggy.PluginManager, entry_point: importlib.metadata.EntryPoint) -> PluginRecord:
    name = entry_point.name
    brought = entry_point.dist
    distribution = f"{brought.name} {brought.version}" if brought is not None else "unknown"
    if name in env_vars.read("TORCH_TPU_DISABLE_PLUGINS"):
        return PluginRecord(name=name, distribution=distribution, status="disabled")
    try:
        module = entry_point.load()
        made.register(module, name=name)
        made.check_pending()
    except Exception as error:
        made.unregister(name=name) if made.has_plugin(name) else None
        warn(name, "it could not be loaded", error)
        text = f"{type(error).__name__}: {error}"
        return PluginRecord(name=name, distribution=distribution, status="failed", error=text)
    callers = made.get_hookcallers(module) or []
    hooks = tuple(sorted(caller.name for caller in callers))
    return PluginRecord(name=name, distribution=distribution, status="loaded", hooks=hooks)
