# SPDX-License-Identifier: Apache-2.0
"""What `torchtpu doctor` finds: one line each, with a level and a fix."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One fact about the installation.

    Attributes:
        topic: what it is about, such as ``torch``.
        text: the fact.
        level: whether something has to be done.
        fix: what to do; empty if nothing.
    """

    topic: str
    text: str
    level: Level = Level.OK
    fix: str = ""


def warning(topic: str, text: str, fix: str) -> Finding:
    """A finding that may surprise."""
    return Finding(topic=topic, text=text, level=Level.WARNING, fix=fix)


def error(topic: str, text: str, fix: str) -> Finding:
    """A finding that keeps the device from working."""
    return Finding(topic=topic, text=text, level=Level.ERROR, fix=fix)
