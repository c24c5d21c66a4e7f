# SPDX-License-Identifier: Apache-2.0
"""Where a training step ends, in scripts of one optimizer and of several.

A step is over when each optimizer has stepped once more: the generator's and the
discriminator's, or one for each parameter. One that is never used is not waited for.
"""

from __future__ import annotations

import weakref
from typing import Any

STEPS = 2
#: How often an optimizer steps before those that never did are given up.
PATIENCE = 10


class Steps:
    """Counts the steps of a script's optimizers."""

    def __init__(self) -> None:
        self._numbers: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._history: list[tuple[int, int]] = []  # (optimizer's number, operators before its end)
        self._next = 0

    def made(self, optimizer: Any) -> None:
        """An optimizer exists."""
        self._next += 1
        self._numbers[optimizer] = self._next

    def done(self, optimizer: Any, operators: int) -> bool:
        """An optimizer has stepped.

        Args:
            optimizer: it.
            operators: how many operators are recorded by now.

        Returns:
            Whether `STEPS` steps are over.
        """
        if optimizer not in self._numbers:
            self.made(optimizer)
        self._history.append((self._numbers[optimizer], operators))
        counts = self._counts()
        waited_for = set(self._numbers.values()) - set(counts)
        if waited_for and max(counts.values()) < PATIENCE:
            return False
        return min(counts.values()) >= STEPS

    def ends(self) -> list[int]:
        """The operators before the end of each step."""
        users = set(self._counts())
        found: list[int] = []
        counts = dict.fromkeys(users, 0)
        for number, operators in self._history:
            counts[number] += 1
            if min(counts.values()) > len(found):
                found.append(operators)
        return found

    def _counts(self) -> dict[int, int]:
        counts: dict[int, int] = {}
        for number, _ in self._history:
            counts[number] = counts.get(number, 0) + 1
        return counts
