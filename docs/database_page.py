# SPDX-License-Identifier: Apache-2.0
"""The page that says how far PyTorch's operator database agrees with the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "op_database.json"

_Table = Callable[[Sequence[str], Iterable[Sequence[object]]], str]
_HEAD = """# Operator database

Every entry of PyTorch's `op_db` is called on the device and on the CPU with the database's own
samples, and differentiated where it can be; results and gradients are compared. *Form* is how an
entry is called: as it is, with non-contiguous operands, of an empty batch, in place, or with `out=`
of the right shape, of other strides, empty, and to be resized; `reference` and `sparse_*` are the
longer and the sparse samples that the entries of `op_db` have, `foreach` and `python_ref_db`
PyTorch's other databases, `error_inputs` calls that must fail: in the same class as on CPU, and
most of its words. A value agrees if it is within ten times the tolerance of its dtype in
`torchtpu_core.testing.tolerance`, or about as close to the result in double precision as the CPU's
own. What is random, unspecified or defined up to a phase only is listed in
`torchtpu_core.testing.op_rules`, with the reason. *Native* entries had no part run on the host.

The figures are from simulated devices, which compute through XLA on the CPU:
`{command}`, {environment}.
"""


def database_page(table: _Table) -> str:
    """The figures of the last sweeps, what differed, and what ran on the host."""
    content = json.loads(RESULTS.read_text())
    environment = ", ".join(f"{k} {v}" for k, v in content["environment"].items())
    parts = [_HEAD.format(command=content["command"], environment=environment)]
    columns = ("dtype", "form", "samples_per_entry", "samples", "entries")
    head = [*(c.replace("_", " ") for c in columns), "agree", "native", "conditions", "date"]
    parts.append(table(head, (_figures(s, columns) for s in content["sweeps"])))
    parts += ["## What differs\n", table(["entry", "sweep", "samples", "what"], _differ(content))]
    parts += [
        "## What runs on the host in part\n",
        table(["entry", "operators"], _on_host(content)),
    ]
    return "\n".join(parts)


def _figures(sweep: dict[str, Any], columns: Sequence[str]) -> list[object]:
    agree = f"{sweep['agree']} ({sweep['agree_percent']} %)"
    native = f"{sweep['native']} ({sweep['native_percent']} %)"
    conditions = ", ".join(f"{k}={v}" for k, v in sweep.get("conditions", {}).items())
    return [*(sweep[c] for c in columns), agree, native, conditions, sweep["date"]]


def _differ(content: dict[str, Any]) -> Iterable[Sequence[object]]:
    for sweep in content["sweeps"]:
        for name, what in sweep["differ"].items():
            counts = f"{what['failed']} of {what['samples']}"
            yield (
                f"`{name}`",
                f"{sweep['dtype']} {sweep['form']}",
                counts,
                _first_sentence(what["detail"]),
            )


def _first_sentence(detail: str) -> str:
    return detail.partition(". ")[0][:160]


def _on_host(content: dict[str, Any]) -> Iterable[Sequence[object]]:
    found: dict[str, set[str]] = {}
    for sweep in content["sweeps"]:
        for name, overloads in sweep["on_host"].items():
            found.setdefault(name, set()).update(overloads)
    for name in sorted(found):
        yield f"`{name}`", ", ".join(f"`{o}`" for o in sorted(found[name]))
