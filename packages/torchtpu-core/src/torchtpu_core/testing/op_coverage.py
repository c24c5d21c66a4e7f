# SPDX-License-Identifier: Apache-2.0
"""From raw sweeps of the operator database to the figures that the docs show.

    python -m torchtpu_core.testing.op_coverage raw/*.json --out benchmarks/results/op_database.json

Raw files are what `torchtpu_core.testing.op_database` writes with ``--json``; the shards
of one sweep are joined. A sweep in the result is replaced by a new one of the same dtype
and form, and kept otherwise.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

_PACKAGES = ("torch", "jax", "jaxlib", "torchtpu-core")


def summarise(outcomes: Sequence[dict[str, Any]], limit: int | None) -> dict[str, Any]:
    """The figures of one dtype and form.

    Args:
        outcomes: one per entry, as `torchtpu_core.testing.op_database.Outcome` has them.
        limit: how many samples of an entry were tried at most; None for all.
    """
    tried = [o for o in outcomes if o["status"] != "skip"]
    passed = [o for o in tried if o["status"] == "pass"]
    on_host = {o["name"]: o["fallbacks"] for o in passed if o["fallbacks"]}
    return {
        "dtype": outcomes[0]["dtype"].removeprefix("torch."),
        "form": outcomes[0]["form"],
        "samples_per_entry": "all" if limit is None else limit,
        "samples": sum(o["samples"] for o in tried),
        "entries": len(tried),
        "agree": len(passed),
        "agree_percent": _percent(len(passed), len(tried)),
        "native": len(passed) - len(on_host),
        "native_percent": _percent(len(passed) - len(on_host), len(tried)),
        "on_host": on_host,
        "differ": {
            o["name"]: {k: o[k] for k in ("status", "failed", "samples", "detail")}
            for o in tried
            if o["status"] != "pass"
        },
    }


def _percent(part: int, whole: int) -> float:
    return round(100 * part / whole, 2) if whole else 0.0


@dataclass(frozen=True, slots=True)
class Sweep:
    """The shards of one dtype and form.

    Attributes:
        limit: samples of an entry at most; None for all.
        conditions: environment variables that the sweep was made under.
        outcomes: one per entry.
    """

    limit: int | None
    conditions: Mapping[str, str]
    outcomes: list[dict[str, Any]]


def read_raw(paths: Iterable[Path]) -> dict[tuple[str, str], Sweep]:
    """The sweeps of raw files, by dtype and form.

    Raises:
        ValueError: shards of one sweep differ in their limit or conditions.
    """
    found: dict[tuple[str, str], Sweep] = {}
    for path in paths:
        raw = json.loads(path.read_text())
        for outcome in raw["outcomes"]:
            fresh = Sweep(raw["samples"], raw["conditions"], [])
            sweep = found.setdefault((outcome["dtype"], outcome["form"]), fresh)
            if (sweep.limit, sweep.conditions) != (fresh.limit, fresh.conditions):
                raise ValueError(
                    f"{path} has another number of samples, or other conditions, than the shards "
                    "before it."
                )
            sweep.outcomes.append(outcome)
    return found


def merge(paths: Iterable[Path], out: Path) -> dict[str, Any]:
    """Put the sweeps of raw files into the coverage file `out` and return its content."""
    known = json.loads(out.read_text())["sweeps"] if out.exists() else []
    sweeps = {(s["dtype"], s["form"]): s for s in known}
    for (dtype, form), sweep in read_raw(paths).items():
        made = summarise(sweep.outcomes, sweep.limit)
        made["conditions"] = sweep.conditions
        made["date"] = datetime.now(UTC).date().isoformat()
        sweeps[dtype.removeprefix("torch."), form] = made
    content = {
        "command": "nox -s op_database",
        "environment": {
            **{name: version(name) for name in _PACKAGES},
            "python": platform.python_version(),
        },
        "sweeps": [sweeps[key] for key in sorted(sweeps)],
    }
    out.write_text(json.dumps(content, indent=1) + "\n")
    return content


def unexpected(sweeps: Iterable[dict[str, Any]], allowed: Iterable[dict[str, Any]]) -> list[str]:
    """Entries that differ and are not allowed to, and those that are and agree in all samples.

    Args:
        sweeps: of a coverage file.
        allowed: rows with ``entry``, ``dtype`` (or ``any``) and, unless it is ``plain``, ``form``.
    """
    listed = [(r["entry"], r["dtype"], r.get("form", "plain")) for r in allowed]
    found = []
    for s in sweeps:
        here = {n for n, *where in listed if where in ([s["dtype"], s["form"]], ["any", s["form"]])}
        what = f"{s['dtype']} {s['form']}"
        new = sorted(set(s["differ"]) - here)
        found += [f"{n} ({what}) differs and is not allowed to" for n in new]
        exactly = {n for n, *where in listed if where == [s["dtype"], s["form"]]}
        if s["samples_per_entry"] == "all":
            agree = sorted(exactly - set(s["differ"]))
            found += [f"{n} ({what}) agrees: remove it from the list" for n in agree]
    return found


def main() -> int:
    """Merge raw files from the command line and print one line per sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("raw", type=Path, nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--allowed", type=Path, help="list of what may differ; fails otherwise")
    args = parser.parse_args()
    sweeps = merge(args.raw, args.out)["sweeps"]
    for s in sweeps:
        print(
            f"{s['dtype']:10} {s['form']:13} samples per entry: {s['samples_per_entry']}; "
            f"{s['agree']} of {s['entries']} agree ({s['agree_percent']} %), "
            f"{s['native']} natively ({s['native_percent']} %)"
        )

    if args.allowed is None:
        return 0
    mistakes = unexpected(sweeps, json.loads(args.allowed.read_text()))
    print(*mistakes, sep="\n")
    return 1 if mistakes else 0


if __name__ == "__main__":
    raise SystemExit(main())
