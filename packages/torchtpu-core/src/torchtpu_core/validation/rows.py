# SPDX-License-Identifier: Apache-2.0
"""Rows of published measurements: a CSV file, one figure a line.

Columns ``id``, ``metric``, ``value`` and ``unit`` are needed; ``source``, ``chip``,
``topology`` and ``workload`` are shown; a column ``spec`` may name the spec file's
row to use in place of the row's own identifier. Other columns are ignored. A line with a
mistake is a row with the reason, and does not stop the others.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
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
        place: file and line.
        mistake: what is wrong with the line; its value is NaN then.
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
    place: str = ""
    mistake: str = ""


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, those with a mistake too.

    Raises:
        SpecError: no text, or a column is missing.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            found = list(_records(file.readlines()))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise SpecError(f"{path} cannot be read as a table in UTF-8: {error}") from error
    header = [name.strip().lower() for name in found[0][1]] if found else []
    missing = [name for name in NEEDED if name not in header]
    if missing:
        hint = " Separate its columns by commas." if len(header) == 1 and header[0] else ""
        raise SpecError(f"{path} lacks the columns {', '.join(missing)}; it has {header}.{hint}")
    rows: list[Row] = []
    first: dict[str, str] = {}
    for number, fields in found[1:]:
        if any(field.strip() for field in fields):
            row = _row(header, fields, f"{path}:{number}")
            if row.id in first:
                row = replace(row, value=math.nan, mistake=_twice(row.id, first[row.id]))
            first.setdefault(row.id, row.place)
            rows.append(row)
    return rows


def _records(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Line number and fields of each record.

    One over several lines whose fields are not those of the header has a quote that nobody
    closes: it ends with its line.
    """
    start, width = 0, 0
    while start < len(lines):
        reader = csv.reader(lines[start:])
        fields = next(reader)
        used = reader.line_num
        width = width or len(fields)
        if used > 1 and len(fields) != width:
            fields, used = next(csv.reader(lines[start : start + 1])), 1
        yield start + 1, fields
        start += used


def _twice(name: str, first: str) -> str:
    return (
        f"the identifier {name} occurs twice, first in {first}: give another, and name the "
        "spec's row in a column `spec`"
    )


def _row(header: list[str], fields: list[str], place: str) -> Row:
    line = dict.fromkeys(header, "")
    line.update((name, field.strip()) for name, field in zip(header, fields, strict=False))
    mistake = _mistake(line, len(fields) - len(header))
    shown = {name: line.get(name, "") for name in ("source", "chip", "topology", "workload")}
    return Row(
        id=line["id"],
        metric=line["metric"],
        value=math.nan if mistake else float(line["value"]),
        unit=line["unit"],
        spec=line.get("spec") or line["id"],
        place=place,
        mistake=mistake,
        **shown,
    )


def _mistake(line: dict[str, str], extra: int) -> str:
    """What is wrong with a line, and the nearest that would be right; empty if nothing is."""
    empty = [name for name in NEEDED if not line[name]]
    if empty:
        return f"row {line['id']!r} has no {' and no '.join(empty)}"
    if extra > 0:
        return (
            f"row {line['id']!r} has {extra} more fields than the header has columns: quote a "
            "field that holds a comma"
        )
    text = line["value"]
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0 < value < math.inf:
        return ""
    number = re.search(r"\d[\d,]*\.?\d*([eE][+-]?\d+)?", text)
    near = number.group().replace(",", "") if number else ""
    hint = f" Nearest: {near}." if near and near != text and float(near) > 0 else ""
    return (
        f"row {line['id']!r}, value = {text!r}: an error is relative to it, so give a number "
        f"above 0.{hint}"
    )
