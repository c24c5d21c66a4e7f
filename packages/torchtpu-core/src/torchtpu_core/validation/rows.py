# SPDX-License-Identifier: Apache-2.0
"""Rows of published measurements: a CSV file, one figure a line.

Columns ``id``, ``metric``, ``value`` and ``unit`` are needed; ``source``, ``chip``,
``topology`` and ``workload`` are shown; a column ``spec`` may name the spec file's
row to use in place of the row's own identifier. Other columns are ignored.
"""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from torchtpu_core.errors import SpecError

NEEDED = ("id", "metric", "value", "unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One published figure.

    Attributes:
        id: identifier.
        metric: what was measured, such as ``step_time``.
        value: the figure, in `unit`.
        unit: such as ``s``, ``TFLOP/s/chip`` or ``%``.
        source: where it was published.
        chip, topology, workload: shown in the table.
        spec: the identifier under which the spec is found.
    """

    id: str
    metric: str
    value: float
    unit: str
    spec: str
    source: str = ""
    chip: str = ""
    topology: str = ""
    workload: str = ""


def read_rows(path: Path) -> list[Row]:
    """The rows of a file.

    Raises:
        SpecError: no text, a column is missing, a value is no number above 0, or an
            identifier repeats.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            lines = list(reader)
            header = reader.fieldnames or []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path} cannot be read as a table in UTF-8: {error}") from error
    missing = [name for name in NEEDED if name not in header]
    if missing:
        raise SpecError(f"{path} lacks the columns {', '.join(missing)}; it has {header}.")
    rows = [_row(line, path) for line in lines if any(line.values())]
    seen: set[str] = set()
    for row in rows:
        if row.id in seen:
            raise SpecError(f"{path}: the identifier {row.id} occurs twice.")
        seen.add(row.id)
    return rows


def _row(line: dict[str, str], path: Path) -> Row:
    empty = [name for name in NEEDED if not (line[name] or "").strip()]
    if empty:
        raise SpecError(f"{path}: row {line['id']!r} has no {' and no '.join(empty)}.")
    try:
        value = float(line["value"])
    except ValueError:
        value = 0.0
    if not 0 < value < math.inf:
        raise SpecError(
            f"{path}: row {line['id']} has the value {line['value']!r}; an error is relative to "
            "it, so give a number above 0."
        )
    return Row(
        id=line["id"].strip(),
        metric=line["metric"].strip(),
        value=value,
        unit=line["unit"].strip(),
        spec=(line.get("spec") or line["id"]).strip(),
        source=line.get("source") or "",
        chip=line.get("chip") or "",
        topology=line.get("topology") or "",
        workload=line.get("workload") or "",
    )
