# SPDX-License-Identifier: Apache-2.0
"""A comparison as a table: for a terminal, for Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torchtpu_core.validation.compare import Comparison, Summary, by_configuration, by_row

HEAD = ("row", "chip", "topology", "what", "metric", "published", "simulated", "error")
_MANY_DIGITS = 100


def cells(item: Comparison) -> tuple[str, ...]:
    """One line of the table."""
    row = item.row
    published = f"{'?' if row.mistake else format(row.value, '.4g')} {row.unit}"
    if item.predicted is None or item.error is None:
        return (row.id, row.chip, row.topology, row.workload, row.metric, published, "-", "-")
    return (
        row.id,
        row.chip,
        row.topology,
        row.workload,
        row.metric,
        published,
        f"{item.predicted:.4g} {row.unit}",
        _percent(item.error, "+"),
    )


def _percent(error: float, sign: str = "") -> str:
    """An error in percent, in few digits if it is very wrong."""
    return f"{error:{sign}.1%}" if abs(error) < _MANY_DIGITS else f"{100 * error:{sign}.1e}%"


def summary_lines(found: Sequence[Comparison]) -> Iterator[str]:
    """The figures of merit, in words."""
    for name, figures in (("rows", by_row(found)), ("configurations", by_configuration(found))):
        if not figures.count:  # nothing has an error, which is no error of zero
            continue
        yield (
            f"{figures.count} {name}: median error {_percent(figures.median)}, "
            f"{figures.within:.0%} within 25 %, largest {_percent(figures.worst)} (simulated)"
        )
    wrong = [item for item in found if item.mistake]
    missing = [item for item in found if item.predicted is None and not item.mistake]
    for items, what in ((missing, "not modelled"), (wrong, "with a mistake")):
        if items:
            yield f"{len(items)} rows {what}:"
        for item in items:
            yield f"  {item.row.id} ({item.row.metric}): {item.reason}"


def markdown(found: Sequence[Comparison]) -> str:
    """The page's table, with the figures above it and the reasons below."""
    lines = [f" - {line}" if not line.startswith(" ") else line for line in summary_lines(found)]
    rows = [HEAD, ("---",) * len(HEAD), *(cells(i) for i in found if i.predicted is not None)]
    table = ("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows)
    return "\n".join([*lines, "", *table]) + "\n"


def as_json(found: Sequence[Comparison]) -> dict[str, Any]:
    """Everything, for programs."""
    return {
        "simulated": True,
        "rows": [
            {
                "id": item.row.id,
                "metric": item.row.metric,
                "unit": item.row.unit,
                "published": None if item.row.mistake else item.row.value,
                "simulated": item.predicted,
                "error": item.error,
                "reason": item.reason or None,
                "mistake": item.mistake,
                "configuration": item.configuration or None,
                "source": item.row.source,
            }
            for item in found
        ],
        "by_row": _figures(by_row(found)),
        "by_configuration": _figures(by_configuration(found)),
    }


def _figures(summary: Summary) -> dict[str, float]:
    return {
        "count": summary.count,
        "median_error": summary.median,
        "within_25_percent": summary.within,
        "largest_error": summary.worst,
    }
