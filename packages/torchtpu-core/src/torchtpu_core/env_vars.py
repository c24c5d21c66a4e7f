# SPDX-License-Identifier: Apache-2.0
"""The ``TORCH_TPU_*`` environment variables: one table, read once.

`settings()` checks and returns all of the core's settings; `read(name)` returns one
setting without looking at the others, for code that runs before plugins are loaded.
Importing this module reads nothing and never raises. A plugin adds its own rows with
`declare` when it is loaded.

This module deliberately knows nothing of `torch.tpu`'s setters: a value set from
Python lives where it is used and wins over the environment.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu_core import env_values
from torchtpu_core.env_values import (
    EAGER_MODE_ALIASES,
    Collectives,
    EagerMode,
    Fallback,
    LogTopic,
    Numerics,
)
from torchtpu_core.errors import EnvironmentVariableError, did_you_mean
from torchtpu_core.units import GIB

PREFIX = "TORCH_TPU_"


@dataclass(frozen=True, slots=True)
class EnvVar:
    """One row of the table.

    Attributes:
        name: full name, starting with ``TORCH_TPU_``.
        parse: turns the text into a value; raises ValueError for a bad one.
        default: the value when unset; a function is called to make it.
        allowed: the allowed values, worded for people.
        meaning: one sentence for the documentation.
        secret: the value is never shown.
    """

    name: str
    parse: Callable[[str], Any]
    default: Any
    allowed: str
    meaning: str
    secret: bool = False


@dataclass(frozen=True, slots=True)
class Settings:
    """The core's settings, checked.

    Attributes:
        target: the target's name, or None to detect one.
        eager_mode: the execution mode a process starts in.
        fused_background: Fused Eager compiles on a thread of its own.
        fallback: what a host fallback does.
        numerics: how a simulated target computes.
        disable_plugins: names of plugins that are not loaded.
        log: topics that are reported.
        cache_dir: directory of compiled programs, or None for no cache on disk.
        cache_url: root of compiled programs that many hosts share, or None.
        cache_max_bytes: bound of the directory.
        cache_wait_s: how long to wait for another process that compiles the same program.
        cache_key: what entries are signed with; empty: they are not.
        collectives: what carries collectives; auto is XLA on TPUs and gloo on simulated ones.
        collective_timeout_s: seconds until a waiting collective gives up.
        disable_autoload: ``import torch`` does not set up the device.
    """

    target: str | None
    eager_mode: EagerMode
    fused_background: bool
    fallback: Fallback
    numerics: Numerics
    disable_plugins: frozenset[str]
    log: frozenset[LogTopic]
    cache_dir: Path | None
    cache_url: str | None
    cache_max_bytes: int
    cache_wait_s: float
    cache_key: bytes
    collectives: Collectives
    collective_timeout_s: float
    disable_autoload: bool


_CORE_ROWS = (
    EnvVar(
        "TORCH_TPU_TARGET",
        lambda text: text.strip() or None,
        None,
        "cpu, tpu, or a simulated slice such as v5e:2x2",
        "Where programs run; by default the real TPU if there is one, else a simulated host.",
    ),
    EnvVar(
        "TORCH_TPU_EAGER_MODE",
        lambda text: env_values.choice(text, EagerMode, EAGER_MODE_ALIASES),
        EagerMode.FUSED,
        f"{env_values.one_of(EagerMode)} (also {', '.join(map(str.upper, EAGER_MODE_ALIASES))})",
        "The eager mode a process starts in.",
    ),
    EnvVar(
        "TORCH_TPU_FUSED_BACKGROUND",
        env_values.parse_bool,
        True,
        "1, true, yes, on, 0, false, no, off",
        "Whether Fused Eager compiles on a thread of its own; if not, the script waits.",
    ),
    EnvVar(
        "TORCH_TPU_FALLBACK",
        lambda text: env_values.choice(text, Fallback),
        Fallback.WARN,
        env_values.one_of(Fallback),
        "What happens when an operator runs on the host.",
    ),
    EnvVar(
        "TORCH_TPU_NUMERICS",
        lambda text: env_values.choice(text, Numerics),
        Numerics.EXACT,
        env_values.one_of(Numerics),
        "Whether a simulated target computes exactly or rounds as a TPU does.",
    ),
    EnvVar(
        "TORCH_TPU_DISABLE_PLUGINS",
        lambda text: frozenset(env_values.words(text)),
        frozenset(),
        "a comma-separated list of plugin names",
        "Plugins that are not loaded.",
    ),
    EnvVar(
        "TORCH_TPU_LOG",
        env_values.parse_log,
        frozenset(),
        f"a comma-separated list of {env_values.one_of(LogTopic)}",
        "What the backend reports on its logger.",
    ),
    EnvVar(
        "TORCH_TPU_CACHE_DIR",
        env_values.parse_cache_dir,
        env_values.default_cache_dir,
        "a directory, or nothing for no cache on disk",
        "Where compiled programs are kept; by default torchtpu in the user's cache directory.",
    ),
    EnvVar(
        "TORCH_TPU_CACHE_URL",
        lambda text: text.strip() or None,
        None,
        "a URL that fsspec can open, such as gs://bucket/torchtpu or file:///net/torchtpu",
        "A root of compiled programs that many hosts share; only for hosts that trust each other.",
    ),
    EnvVar(
        "TORCH_TPU_CACHE_MAX_BYTES",
        env_values.parse_bytes,
        4 * GIB,
        "a positive number of bytes, or of MiB, GiB or TiB: 500MiB",
        "Bound of the directory of compiled programs; the ones used longest ago are removed.",
    ),
    EnvVar(
        "TORCH_TPU_CACHE_WAIT_S",
        env_values.parse_timeout,
        120.0,
        "a positive number of seconds",
        "How long to wait for another process that compiles the same program.",
    ),
    EnvVar(
        "TORCH_TPU_CACHE_KEY",
        env_values.parse_key,
        b"",
        "a text of at most 64 bytes",
        "A secret that signs compiled programs; those signed otherwise are not loaded.",
        secret=True,
    ),
    EnvVar(
        "TORCH_TPU_COLLECTIVES",
        lambda text: env_values.choice(text, Collectives),
        Collectives.AUTO,
        env_values.one_of(Collectives),
        "What carries collectives: XLA's programs, or gloo on a simulated device's memory.",
    ),
    EnvVar(
        "TORCH_TPU_COLLECTIVE_TIMEOUT_S",
        env_values.parse_timeout,
        600.0,
        "a positive number of seconds",
        "How long a collective waits for the other ranks.",
    ),
    EnvVar(
        "TORCH_TPU_DISABLE_AUTOLOAD",
        env_values.parse_bool,
        False,
        "1, true, yes, on, 0, false, no, off",
        "Whether 'import torch' leaves the device alone.",
    ),
)
_rows: dict[str, EnvVar] = {row.name: row for row in _CORE_ROWS}
_values: dict[str, Any] = {}
_settings: Settings | None = None


def table() -> tuple[EnvVar, ...]:
    """All rows, the core's first, for the documentation and ``torchtpu doctor``."""
    return tuple(_rows.values())


def declare(row: EnvVar) -> None:
    """Adds a plugin's variable to the table.

    Raises:
        EnvironmentVariableError: the name lacks the prefix or is taken by another row.
    """
    if not row.name.startswith(PREFIX):
        raise EnvironmentVariableError(
            f"{row.name!r} cannot be declared: names start with {PREFIX}."
        )
    if _rows.setdefault(row.name, row) != row:
        raise EnvironmentVariableError(
            f"{row.name} is declared twice, with different rows. Rename one of them."
        )


def read(name: str) -> Any:
    """The value of one variable, parsed at the first call and kept.

    Raises:
        EnvironmentVariableError: no such row, or a value that is not allowed.
    """
    if name not in _values:
        _values[name] = _parse(_row(name))
    return _values[name]


def check_names() -> None:
    """Refuses ``TORCH_TPU_*`` names in the environment that no row declares.

    Call it when all plugins are loaded: they may declare rows of their own.

    Raises:
        EnvironmentVariableError: names the variables and the nearest known ones.
    """
    if mistakes := _unknown_names():
        raise EnvironmentVariableError("\n".join(mistakes))


def settings() -> Settings:
    """The core's settings, read once.

    Raises:
        EnvironmentVariableError: unknown names and values that are not allowed, all of them.
    """
    global _settings
    if _settings is None:
        values, mistakes = {}, _unknown_names()
        for row in _CORE_ROWS:
            try:
                values[row.name.removeprefix(PREFIX).lower()] = read(row.name)
            except EnvironmentVariableError as error:
                mistakes.append(str(error))
        if mistakes:
            raise EnvironmentVariableError("\n".join(mistakes))
        _settings = Settings(**values)
    return _settings


def reset() -> None:
    """Forgets what was read, so that a test can change the environment."""
    global _settings
    _settings = None
    _values.clear()


def _unknown_names() -> list[str]:
    """One complaint for each name in the environment that no row declares."""
    names = (name for name in sorted(os.environ) if name.startswith(PREFIX))
    return [_unknown(name) for name in names if name not in _rows]


def _unknown(name: str) -> str:
    return (
        f"{name} is not a variable of this backend or of its loaded plugins."
        f"{did_you_mean(name, _rows)} Known: {', '.join(_rows)}."
    )


def _row(name: str) -> EnvVar:
    """The row of a name, or an error that suggests the nearest known name."""
    if name not in _rows:
        raise EnvironmentVariableError(_unknown(name))
    return _rows[name]


def _parse(row: EnvVar) -> Any:
    """The value of a row in the present environment."""
    text = os.environ.get(row.name)
    if text is None:
        return row.default() if callable(row.default) else row.default
    try:
        return row.parse(text)
    except ValueError as error:
        shown = "(a secret)" if row.secret else repr(text)
        detail = f": {error}" if isinstance(error, env_values.WrongWord) else "."
        raise EnvironmentVariableError(
            f"{row.name}={shown} is not allowed{detail} Allowed: {row.allowed}."
        ) from (None if row.secret else error)
