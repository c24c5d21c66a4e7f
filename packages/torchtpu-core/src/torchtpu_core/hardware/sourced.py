# SPDX-License-Identifier: Apache-2.0
"""A number that knows where it comes from.

Every hardware or calibration constant is a `Sourced` value; its unit, and what it is
per, is in the name of the field that holds it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


class Status(enum.StrEnum):
    """How far a number can be trusted."""

    DATASHEET = "datasheet"
    """Published by the maker, or computed from figures the maker publishes."""
    MEASURED = "measured"
    """Measured on the chip, or read out of the maker's compiler for it."""
    ASSUMED = "assumed"
    """Second-hand, inferred, or chosen: the source says which."""


@dataclass(frozen=True, slots=True)
class Sourced(Generic[T]):
    """A value with its source.

    Attributes:
        value: the number, in the unit of the field that holds it.
        source: where it was read, or how it was derived, in one line.
        status: datasheet, measured or assumed.
    """

    value: T
    source: str
    status: Status = Status.DATASHEET

    def __post_init__(self) -> None:
        if not self.source:
            raise ValueError(f"{self.value!r} has no source: say where the number comes from.")

    def __str__(self) -> str:
        return f"{self.value} ({self.status}: {self.source})"
