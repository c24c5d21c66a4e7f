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

import enum
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from torchtpu_core.errors import EnvironmentVariableError, did_you_mean
from torchtpu_core.units import GIB, MIB

PREFIX = "TORCH_TPU_"
Member = TypeVar("Member", bound=enum.StrEnum)


class EagerMode(enum.StrEnum):
    """When a recorded trace is flushed."""

    DEBUG = "debug"
    STRICT = "strict"
    FUSED = "fused"


class Fallback(enum.StrEnum):
    """What happens when an operator runs on the host."""

    WARN = "warn"
    ERROR = "error"
    QUIET = "quiet"


class Numerics(enum.StrEnum):
    """Whether a simulated target computes as the CPU does or rounds as a TPU does."""

    EXACT = "exact"
    TPU = "tpu"


class Collectives(enum.StrEnum):
    """What carries collectives of tensors of the device."""

    AUTO = "auto"
    GLOO = "gloo"
    XLA = "xla"


class LogTopic(enum.StrEnum):
    """What the backend reports on its logger."""

    COMPILES = "compiles"
    RECOMPILES = "recompiles"
    FLUSHES = "flushes"
    FALLBACKS = "fallbacks"


# The names of Google's torch_tpu for the same three modes.
EAGER_MODE_ALIASES: Mapping[str, EagerMode] = {
    "defer_never_and_launch_blocking": EagerMode.DEBUG,
    "defer_never": EagerMode.STRICT,
    "defer_and_fuse": EagerMode.FUSED,
}
_UNIT_BYTES = {"": 1, "mib": MIB, "gib": GIB, "tib": 1024 * GIB}
_SIZE = re.compile(r"([0-9.]+) *([mgt]ib|)")
_KEY_BYTES_MAX = 64
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


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


def _words(text: str) -> list[str]:
    """The comma-separated words of a text, without blanks."""
    return [word.strip() for word in text.split(",") if word.strip()]


class _WrongWord(ValueError):
    """Its text says which word of a value is wrong, and what may have been meant."""


def _choice(word: str, values: type[Member], aliases: Mapping[str, Member] | None = None) -> Member:
    """A word as a member of an enum, or `_WrongWord`."""
    known = {**(aliases or {}), **{str(value): value for value in values}}
    if (found := known.get(word.strip().lower())) is None:
        raise _WrongWord(f"{word.strip()!r} is unknown.{did_you_mean(word.strip().lower(), known)}")
    return found


def _parse_log(text: str) -> frozenset[LogTopic]:
    topics, wrong = set(), []
    for word in _words(text):
        try:
            topics.add(_choice(word, LogTopic))
        except _WrongWord as error:
            wrong.append(str(error))
    if wrong:
        raise _WrongWord(" ".join(wrong))
    return frozenset(topics)


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(text)
    return word in _TRUE


def _parse_timeout(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def _parse_cache_dir(text: str) -> Path | None:
    return Path(text).expanduser() if text.strip() else None


def parse_bytes(text: str) -> int:
    """Bytes from a text such as ``500MiB``, ``1.5 GiB`` or ``4096``.

    Raises:
        ValueError: it is no such text.
    """
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(text)
    size_bytes = int(float(found[1]) * _UNIT_BYTES[found[2]])
    if size_bytes <= 0:
        raise ValueError(text)
    return size_bytes


def _parse_key(text: str) -> bytes:
    key = text.strip().encode()
    if len(key) > _KEY_BYTES_MAX:
        raise ValueError("too long")
    return key


def _default_cache_dir() -> Path:
    """The user's cache directory; ``XDG_CACHE_HOME`` moves it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "torchtpu"


def _one_of(values: type[enum.StrEnum]) -> str:
    return ", ".join(values)


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
        lambda text: _choice(text, EagerMode, EAGER_MODE_ALIASES),
        EagerMode.FUSED,
        f"{_one_of(EagerMode)} (also {', '.join(name.upper() for name in EAGER_MODE_ALIASES)})",
        "The eager mode a process starts in.",
    ),
    EnvVar(
        "TORCH_TPU_FUSED_BACKGROUND",
        _parse_bool,
        True,
        "1, true, yes, on, 0, false, no, off",
        "Whether Fused Eager compiles on a thread of its own; if not, the script waits.",
    ),
    EnvVar(
        "TORCH_TPU_FALLBACK",
        lambda text: _choice(text, Fallback),
        Fallback.WARN,
        _one_of(Fallback),
        "What happens when an operator runs on the host.",
    ),
    EnvVar(
        "TORCH_TPU_NUMERICS",
        lambda text: _choice(text, Numerics),
        Numerics.EXACT,
        _one_of(Numerics),
        "Whether a simulated target computes exactly or rounds as a TPU does.",
    ),
    EnvVar(
        "TORCH_TPU_DISABLE_PLUGINS",
        lambda text: frozenset(_words(text)),
        frozenset(),
        "a comma-separated list of plugin names",
        "Plugins that are not loaded.",
    ),
    EnvVar(
        "TORCH_TPU_LOG",
        _parse_log,
        frozenset(),
        f"a comma-separated list of {_one_of(LogTopic)}",
        "What the backend reports on its logger.",
    ),
    EnvVar(
        "TORCH_TPU_CACHE_DIR",
        _parse_cache_dir,
        _default_cache_dir,
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
        parse_bytes,
        4 * GIB,
        "a positive number of bytes, or of MiB, GiB or TiB: 500MiB",
        "Bound of the directory of compiled programs; the ones used longest ago are removed.",
    ),
    EnvVar(
        "TORCH_TPU_CACHE_WAIT_S",
        _parse_timeout,
        120.0,
        "a positive number of seconds",
        "How long to wait for another process that compiles the same program.",
    ),
    EnvVar(
        "TORCH_TPU_CACHE_KEY",
        _parse_key,
        b"",
        "a text of at most 64 bytes",
        "A secret that signs compiled programs; those signed otherwise are not loaded.",
        secret=True,
    ),
    EnvVar(
        "TORCH_TPU_COLLECTIVES",
        lambda text: _choice(text, Collectives),
        Collectives.AUTO,
        _one_of(Collectives),
        "What carries collectives: XLA's programs, or gloo on a simulated device's memory.",
    ),
    EnvVar(
        "TORCH_TPU_COLLECTIVE_TIMEOUT_S",
        _parse_timeout,
        600.0,
        "a positive number of seconds",
        "How long a collective waits for the other ranks.",
    ),
    EnvVar(
        "TORCH_TPU_DISABLE_AUTOLOAD",
        _parse_bool,
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
        detail = f": {error}" if isinstance(error, _WrongWord) else "."
        raise EnvironmentVariableError(
            f"{row.name}={shown} is not allowed{detail} Allowed: {row.allowed}."
        ) from (None if row.secret else error)
