# SPDX-License-Identifier: Apache-2.0
"""Chips by name, with room for the chips of plugins.

`chips()` is the registry of this process: the built-in records, and what plugins
added. A registry is an ordinary object, so a test or a tool makes its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

from torchtpu_core.errors import PluginError, TargetError, did_you_mean
from torchtpu_core.hardware.chip import Chip


class ChipRegistry:
    """Chip records by name, alias and device kind; iterates over the records."""

    def __init__(self, records: Iterable[Chip] = ()) -> None:
        self._by_name: dict[str, Chip] = {}
        self._by_kind: dict[str, Chip] = {}
        self.extend(records)

    def __iter__(self) -> Iterator[Chip]:
        return iter(dict.fromkeys(self._by_name.values()))

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._by_name

    def extend(self, records: Iterable[Chip]) -> None:
        """Adds records, all or none of each.

        Raises:
            PluginError: a name, alias or device kind is taken by another chip.
        """
        for chip in records:
            names = (chip.name, *chip.aliases)
            kinds = (chip.device_kind, *chip.pjrt_device_kinds)
            self._refuse_taken(chip, names, self._by_name)
            self._refuse_taken(chip, kinds, self._by_kind)
            self._by_name.update(dict.fromkeys(names, chip))
            self._by_kind.update(dict.fromkeys(kinds, chip))

    def get(self, name: str) -> Chip:
        """The chip of a name or alias, in any case.

        Raises:
            TargetError: names the nearest chip and all known ones.
        """
        chip = self._by_name.get(name.strip().lower())
        if chip is None:
            raise TargetError(
                f"{name!r} is not a known chip.{did_you_mean(name, self._by_name)} "
                f"Known chips: {', '.join(record.name for record in self)}."
            )
        return chip

    def by_device_kind(self, device_kind: str) -> Chip:
        """The chip that PJRT or torch calls `device_kind`, such as ``TPU v5 lite``.

        Raises:
            TargetError: names the nearest device kind.
        """
        chip = self._by_kind.get(device_kind)
        if chip is None:
            raise TargetError(
                f"No chip record has the device kind {device_kind!r}."
                f"{did_you_mean(device_kind, self._by_kind)} A plugin can add one with the "
                "hook torchtpu_register_chips."
            )
        return chip

    @staticmethod
    def _refuse_taken(chip: Chip, keys: Iterable[str], taken: dict[str, Chip]) -> None:
        for key in keys:
            if key in taken:
                raise PluginError(
                    f"Chip {chip.name!r} cannot be registered: {key!r} already names chip "
                    f"{taken[key].name!r}. Give the new record a name of its own."
                )


@functools.cache
def chips() -> ChipRegistry:
    """The registry of this process, with the built-in records."""
    from torchtpu_core.hardware.records import RECORDS

    return ChipRegistry(RECORDS)
