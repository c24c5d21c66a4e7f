# SPDX-License-Identifier: Apache-2.0
"""The page that says which architectures of other libraries agree with the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "model_zoo.json"

_Table = Callable[[Sequence[str], Iterable[Sequence[object]]], str]
_MODES = ("strict", "fused", "compile")
_HEAD = """# Models

Architectures of `transformers`, built from small configurations with drawn weights, on the device
and on the CPU: outputs in evaluation, then training steps with AdamW and without dropout. Losses,
all gradients and all parameters after the last step are compared; each tensor is divided by its
largest magnitude first, and agrees if it is within ten times the tolerance of its dtype in
`torchtpu_core.testing.tolerance`, or about as close to the result in double precision as the CPU's
own. *strict* and *fused* are eager modes, *compile* is `torch.compile(model, backend="tpu")`. An
empty cell was not tried.

*Operators* were recorded in one training step. `nox -s model_zoo` fills in what is missing.
Devices are simulated, and compute through XLA on the CPU: `{command}`, {environment}.
"""


def models_page(table: _Table) -> str:
    """A row per architecture, and what differed."""
    content = json.loads(RESULTS.read_text())
    environment = ", ".join(f"{k} {v}" for k, v in content["environment"].items())
    parts = [_HEAD.format(command=content["command"], environment=environment)]
    counted = (
        (mode, found["tried"], found["agree"], found["with_fallbacks"])
        for mode, found in content["counts"].items()
    )
    parts.append(table(["mode", "architectures", "agree", "used the host"], counted))
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for outcome in content["outcomes"]:
        rows.setdefault(outcome["name"], {})[outcome["mode"]] = outcome
    head = ["architecture", "family", *_MODES, "operators", "on the host"]
    parts.append(table(head, (_row(name, found) for name, found in rows.items())))
    parts += ["## What differs\n", table(["architecture", "mode", "what"], _differ(content))]
    return "\n".join(parts)


def _row(name: str, found: dict[str, dict[str, Any]]) -> list[object]:
    some = next(iter(found.values()))
    states = [found[mode]["status"] if mode in found else "" for mode in _MODES]
    on_host = sorted({f"`{op}`" for outcome in found.values() for op in outcome["fallbacks"]})
    return [name, some["family"], *states, some["ops"], ", ".join(on_host)]


def _differ(content: dict[str, Any]) -> Iterable[Sequence[object]]:
    for outcome in content["outcomes"]:
        if outcome["status"] != "pass":
            yield outcome["name"], outcome["mode"], outcome["detail"][:200]
