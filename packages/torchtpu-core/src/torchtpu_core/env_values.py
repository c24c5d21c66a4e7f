# SPDX-License-Identifier: Apache-2.0
"""Values that ``TORCH_TPU_*`` variables take: the words, and how texts are read.

A parser raises ValueError for a text that it does not understand; `env_vars` says which
variable it was.
"""

from __future__ import annotations

import enum
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from torchtpu_core.errors import did_you_mean
from torchtpu_core.units import GIB, MIB

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
_UNIT_BYTES = {"": 1, "kib": 1024, "mib": MIB, "gib": GIB, "tib": 1024 * GIB}
_SIZE = re.compile(r"([0-9.]+) *([kmgt]ib|)")
_KEY_BYTES_MAX = 64
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off", "")


def words(text: str) -> list[str]:
    """The comma-separated words of a text, without blanks."""
    return [word.strip() for word in text.split(",") if word.strip()]


class WrongWord(ValueError):
    """Its text says which word of a value is wrong, and what may have been meant."""


def choice(word: str, values: type[Member], aliases: Mapping[str, Member] | None = None) -> Member:
    """A word as a member of an enum, or `WrongWord`."""
    known = {**(aliases or {}), **{str(value): value for value in values}}
    if (found := known.get(word.strip().lower())) is None:
        raise WrongWord(f"{word.strip()!r} is unknown.{did_you_mean(word.strip().lower(), known)}")
    return found


def parse_log(text: str) -> frozenset[LogTopic]:
    """The topics that a comma-separated text names; says all words that are wrong."""
    topics, wrong = set(), []
    for word in words(text):
        try:
            topics.add(choice(word, LogTopic))
        except WrongWord as error:
            wrong.append(str(error))
    if wrong:
        raise WrongWord(" ".join(wrong))
    return frozenset(topics)


def parse_bool(text: str) -> bool:
    """1, true, yes, on; or 0, false, no, off, nothing."""
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise ValueError(text)
    return word in _TRUE


def parse_timeout(text: str) -> float:
    """A positive, finite number of seconds."""
    seconds = float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError(text)
    return seconds


def parse_cache_dir(text: str) -> Path | None:
    """A path, with ``~`` for the home directory; None for an empty text."""
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


def parse_key(text: str) -> bytes:
    """A secret of at most 64 bytes."""
    key = text.strip().encode()
    if len(key) > _KEY_BYTES_MAX:
        raise ValueError("too long")
    return key


def default_cache_dir() -> Path:
    """The user's cache directory; ``XDG_CACHE_HOME`` moves it."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "torchtpu"


def one_of(values: type[enum.StrEnum]) -> str:
    """The words of an enum, for a help text."""
    return ", ".join(values)
