# SPDX-License-Identifier: Apache-2.0
"""Run architectures of other people's libraries on the device and compare with the CPU.

    python -m torchtpu_core.testing.model_zoo [bert llama ...] [--modes fused,strict,compile]
        [--shard 0/8] [--json part.json]

`nox -s model_zoo` runs all of them and writes `benchmarks/results/model_zoo.json`.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from torchtpu_core.testing.model_zoo.architectures import ARCHITECTURES, Architecture
from torchtpu_core.testing.model_zoo.trial import STEPS, Outcome, try_out

#: A trial that takes longer ends the process with every thread's stack.
LIMIT_S = 900


def sweep(architectures: Iterable[Architecture], modes: Iterable[str]) -> Iterator[Outcome]:
    """Each architecture in each mode, one after the other."""
    for architecture in architectures:
        for mode in modes:
            faulthandler.dump_traceback_later(LIMIT_S, exit=True)
            yield try_out(architecture, mode)
            faulthandler.cancel_dump_traceback_later()


def chosen(names: list[str], shard: str) -> list[Architecture]:
    """The rows of the table with these names, all if there are none, and of them a shard."""
    known = {row.name: row for row in ARCHITECTURES}
    if unknown := set(names) - known.keys():
        raise SystemExit(f"model_zoo: no architecture {sorted(unknown)}; there are {sorted(known)}")
    rows = [known[name] for name in names] if names else list(ARCHITECTURES)
    which, _, count = shard.partition("/")
    return rows[int(which) :: int(count)]


def line(outcome: Outcome) -> str:
    """An outcome for people."""
    parts = [
        f"{outcome.name:24} {outcome.mode:8} {outcome.status:6} {outcome.seconds:7.1f} s",
        f"{outcome.ops:5} ops {outcome.compiles:4}+{outcome.late_compiles} programs",
        f"{outcome.host_reads} reads",
    ]
    for what in (outcome.fallbacks, outcome.graph_breaks, outcome.warnings, outcome.detail):
        if what:
            parts.append(f"\n    {what}")
    return " ".join(parts)


def main() -> None:
    """Run, print a line for each trial, and write the outcomes with ``--json``."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--modes", default=",".join(STEPS))
    parser.add_argument("--shard", default="0/1")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)  # the CPU's sums then have one order
    found = []
    for outcome in sweep(chosen(args.names, args.shard), args.modes.split(",")):
        print(line(outcome), flush=True)
        found.append(asdict(outcome))
        if args.json:  # after each: a sweep that is stopped has not run for nothing
            args.json.write_text(json.dumps(found, indent=1) + "\n")
    passed = sum(o["status"] == "pass" for o in found)
    print(f"{passed} of {len(found)} agree with the CPU")


if __name__ == "__main__":
    main()
