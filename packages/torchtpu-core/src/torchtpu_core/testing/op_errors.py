# SPDX-License-Identifier: Apache-2.0
"""Sweep the mistakes of PyTorch's operator database: refused as on CPU, class and words.

Each entry of the database lists calls that must fail (`error_inputs`). Here each one is
made on CPU and on the device; the classes must agree, and the device's message must
name the problem: it shares most of its words with CPU's.

    python -m torchtpu_core.testing.op_errors --json errors.json
"""

from __future__ import annotations

import argparse
import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db

from torchtpu_core.testing import op_sources
from torchtpu_core.testing.moving import Mover
from torchtpu_core.testing.op_database import Outcome, entry_name, raw

#: Words of CPU's message that the device's must share, as a fraction.
SHARED_WORDS = 0.5
_WORD = re.compile(r"[a-z_]{3,}")


def failure(op: Any, sample: Any) -> Exception | None:
    """What the call raises, at once or when the host synchronises; None if nothing."""
    try:
        op(sample.input, *sample.args, **sample.kwargs)
        torch.tpu.synchronize()
    except Exception as error:
        return error
    return None


def names_the_problem(actual: str, expected: str) -> bool:
    """Whether a message says what another says: most of its words."""
    wanted = set(_WORD.findall(expected.lower().replace("cpu", "")))
    found = set(_WORD.findall(actual.lower()))
    return not wanted or len(wanted & found) >= SHARED_WORDS * len(wanted)


def complaint(op: Any, sample: Any) -> str:
    """How the device's refusal of a sample differs from CPU's; empty if it does not."""
    try:
        actual = failure(op, Mover().sample(sample))
    except Exception as error:  # operands that cannot exist on the device
        actual = error
    expected = failure(op, sample)
    if expected is None:
        return "" if actual is None else f"CPU accepts it, tpu: {type(actual).__name__}: {actual}"
    said = f"CPU {type(expected).__name__}: {str(expected)[:200]}"
    if actual is None:
        return f"tpu accepts it; {said}"
    # A derived class is caught where CPU's is.
    if not isinstance(actual, type(expected)):
        return f"tpu {type(actual).__name__}: {str(actual)[:200]}; {said}"
    if not names_the_problem(str(actual), str(expected)):
        return f"words: {str(actual)[:200]!r}; {said}"
    return ""


def sweep_errors(op: Any) -> Outcome:
    """All mistakes of one entry; the detail lists every one that is answered differently."""
    outcome = Outcome(entry_name(op), "any", "error_inputs")
    if op.error_inputs_func is None:
        outcome.status = "skip"
        return outcome
    found = []
    before = torch.tpu.counters()["fallbacks"]
    for mistake in op_sources.mistakes(op):
        outcome.samples += 1
        said = complaint(op, mistake.sample_input)
        if said:
            found.append(f"[{outcome.samples}] {said}")
    if found:
        outcome.status, outcome.failed = "wrong", len(found)
        outcome.detail = "\n    ".join(found)
    after = torch.tpu.counters()["fallbacks"]
    outcome.fallbacks = sorted(k for k, v in after.items() if v > before.get(k, 0))
    return outcome


def main() -> None:
    """Sweep from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--names", default="", help="comma list; all by default")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    names = set(filter(None, args.names.split(",")))
    outcomes = [sweep_errors(op) for op in op_db if not names or op.name in names]
    tried = [o for o in outcomes if o.status != "skip"]
    for outcome in tried:
        if outcome.status != "pass":
            print(f"{outcome.name} ({outcome.samples} mistakes)\n    {outcome.detail}")
    passed = sum(o.status == "pass" for o in tried)
    print(f"{passed} of {len(tried)} entries refuse their mistakes as CPU does")
    if args.json:
        args.json.write_text(json.dumps(raw(None, tried), indent=1))


if __name__ == "__main__":
    main()
