# SPDX-License-Identifier: Apache-2.0
"""The page that says which of PyTorch's own device tests pass."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results" / "pytorch_tests.json"

_Table = Callable[[Sequence[str], Iterable[Sequence[object]]], str]
_HEAD = """# PyTorch's own tests

PyTorch instantiates the classes of its test files for each device type; these are the instances
for `tpu`, with PyTorch's own assertions and tolerances: {passed} passed, {failed} failed,
{skipped} were skipped by the tests themselves, mostly as being for another device. The tests are
those of PyTorch {tests_of}, run in the mode and on the day of each row; of tests with a dtype in
their name, those of float32, bfloat16, int64 and bool.

Devices are simulated, and compute through XLA on the CPU: `{command}`, {environment}.
Conditions: {conditions}. `nox -s pytorch_tests` runs more files.
"""


def pytorch_tests_page(table: _Table) -> str:
    """A row per file, why tests fail, and the failures without a reason."""
    content = json.loads(RESULTS.read_text())
    environment = ", ".join(f"{k} {v}" for k, v in content["environment"].items())
    head = _HEAD.format(**{**content, **content["totals"], "environment": environment})
    files = content["files"]
    counted = ("mode", "passed", "failed", "skipped", "date")
    rows = ((f"`{f['file']}`", *(f[key] for key in counted)) for f in files)
    reasons: Counter[str] = Counter()
    for file in files:
        reasons.update(file["reasons"])
    unexplained = (
        (f"`{f['file']}`", f"`{test}`", message)
        for f in files
        for test, message in f["unexplained"].items()
    )
    return "\n".join(
        (
            head,
            table(["file", *counted], rows),
            "## Why tests fail\n",
            table(["reason", "tests"], reasons.most_common()),
            "## Failures without a reason of that kind\n",
            table(["file", "test", "message"], unexplained),
        )
    )
