# SPDX-License-Identifier: Apache-2.0
"""The metrics of published rows: their names and units, and what is wrong with a row's.

How a metric follows from a prediction is the business of `validation.predict`.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from torchtpu_core.errors import SpecError, did_you_mean
from torchtpu_core.hardware.chip import Chip
from torchtpu_core.units import GB

SECONDS = {"s": 1.0, "ms": 1e3, "us": 1e6, "min": 1 / 60, "h": 1 / 3600}
RATES = {"GB/s": 1 / GB, "MB/s": 1e-6, "TB/s": 1e-12, "B/s": 1.0}
PARTS = {"%": 100.0, "percent": 100.0, "fraction": 1.0, "1": 1.0, "ratio": 1.0, "": 1.0}
TIMES = {"x": 1.0, "times": 1.0, "ratio": 1.0, "": 1.0}
_OF_A_CHIP = ("chip", "device", "core", "tensorcore")
METRICS = (
    *("step_time", "tflops_per_chip", "mfu", "hfu", "tokens_per_s", "tokens_per_s_per_chip"),
    *("speedup", "median_block_time", "time_to_train", "time", "tflops", "achieved_bw"),
    "bandwidth",
)
#: Likeness of letters from which a metric is taken for a known one with a mistake.
_MISSPELT = 0.8
#: Words of a rate's units, and the unit that a message names.
_WORDS = {
    "tflops_per_chip": (("tflop", "tf/", "top"), "TFLOP/s/chip"),
    "tflops": (("tflop", "tf/", "top"), "TFLOP/s"),
    "tokens_per_s": (("tok",), "tokens/s"),
    "tokens_per_s_per_chip": (("tok",), "tokens/s/chip"),
}


class NotModelledError(SpecError):
    """A row that the model does not cover, with the reason."""


class RowError(NotModelledError):
    """A row whose metric or unit is misspelt, or whose value its unit cannot have."""


def unknown_metric(metric: str) -> NotModelledError:
    """The reason of a metric that is none, or that this kind of spec does not have."""
    if metric in METRICS:
        return NotModelledError(f"{metric} is no metric of what its spec describes")
    kind = RowError if get_close_matches(metric, METRICS, 1, _MISSPELT) else NotModelledError
    near = did_you_mean(metric, METRICS)
    return kind(f"the metric {metric!r} is not one the model computes.{near}")


def factor(table: Mapping[str, float], unit: str, metric: str) -> float:
    """What a figure in the table's base unit is multiplied by for a unit.

    Raises:
        RowError: the table does not have it.
    """
    if unit not in table:
        known = ", ".join(filter(None, table))
        near = did_you_mean(unit, filter(None, table))
        raise RowError(f"{metric} is in {unit!r}; known units: {known}.{near}")
    return table[unit]


def check_rate_unit(metric: str, unit: str) -> None:
    """Refuses a unit that a rate of a training step cannot have.

    Raises:
        RowError: it has no word of that rate's units, or counts other chips than the metric.
    """
    words, known = _WORDS.get(metric, (("",), ""))
    if unit and not any(word in unit.lower() for word in words):
        raise RowError(f"{metric} is in {unit!r}; known units: {known}")
    if metric == "tokens_per_s" and unit.lower().rpartition("/")[2] in _OF_A_CHIP:
        raise RowError(f"{metric} is in {unit!r}, but counts all chips: use tokens_per_s_per_chip")


def chip_share(unit: str, chip: Chip) -> float:
    """Part of a chip that a rate's unit counts: `/device` and `/core` say less than all."""
    last = unit.lower().rpartition("/")[2]
    if last == "device":
        return 1 / (chip.devices_per_chip or 1)
    return 1 / (chip.cores_per_chip or 1) if last in ("core", "tensorcore") else 1.0


def utilisation_unit(unit: str) -> str:
    """The unit of a utilisation: what says percent is percent, as in ``% of peak``."""
    return "%" if "%" in unit else unit.lower()


def check_size(metric: str, unit: str, value: float) -> None:
    """Refuses a utilisation of more than all.

    Raises:
        RowError: it is above 100 % in its unit.
    """
    if metric in ("mfu", "hfu") and value > PARTS.get(utilisation_unit(unit), value):
        near = f" Nearest: the unit %, {value:g} %." if value <= PARTS["%"] else ""
        raise RowError(f"{metric} = {value:g} in {unit or 'fractions'!r} is more than all.{near}")
