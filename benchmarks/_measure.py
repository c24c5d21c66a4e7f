# SPDX-License-Identifier: Apache-2.0
"""Paired timing: candidates take turns in one process, and ratios are taken turn by turn.

The machine's speed drifts; two candidates timed back to back see the same machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True)
class Spread:
    """Minimum, median and maximum of repeated measurements."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """The spread of a list."""
        return cls(min(values), statistics.median(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def turns(
    candidates: Mapping[str, tuple[Callable[[], Any], Callable[[], Any]]],
    *,
    calls: int,
    rounds: int,
) -> dict[str, list[float]]:
    """Microseconds per call of each candidate, one figure a round.

    Args:
        candidates: name to (call, wait); a round is `calls` calls, then one wait.
        calls: calls per round.
        rounds: how often the candidates take turns; one more is not counted.
    """
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for turn in range(rounds + 1):
        for name, (call, wait) in candidates.items():
            began = time.perf_counter()
            for _ in range(calls):
                call()
            wait()
            if turn:
                times[name].append((time.perf_counter() - began) / calls * 1e6)
    return times


def ratios(times: Mapping[str, list[float]], over: str) -> dict[str, Spread]:
    """Each candidate's time over that of `over`, turn by turn."""
    return {
        name: Spread.of([a / b for a, b in zip(values, times[over], strict=True)])
        for name, values in times.items()
    }


def in_child(script: str, name: str, **variables: str) -> dict[str, float]:
    """What ``script --child name`` prints as JSON in its last line, in a process of its own.

    Args:
        script: the benchmark's ``__file__``.
        name: what to measure.
        variables: of the environment, added to this process's.
    """
    done = subprocess.run(
        [sys.executable, script, "--child", name],
        env={**os.environ, **variables},
        cwd=Path(script).parent,
        capture_output=True,
        text=True,
        check=True,
    )
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def arguments(
    doc: str | None, cases: Sequence[str], child: Callable[[str], None]
) -> argparse.Namespace | None:
    """The command line of a benchmark whose figures are processes of their own.

    Args:
        doc: the benchmark's docstring.
        cases: what it can measure; all of them unless some are named.
        child: measures one case and prints its figures.

    Returns:
        ``cases``, ``rounds`` and ``save``; None in a child, which has measured.
    """
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("cases", nargs="*", default=list(cases))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--save", action="store_true")
    parser.add_argument("--child", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        child(args.child)
        return None
    return args


def print_seconds(run: Callable[[], None]) -> None:
    """Print the wall and CPU time of a call, as `compare_modes` reads them."""
    began, began_cpu = time.perf_counter(), time.process_time()
    run()
    print(json.dumps({"wall": time.perf_counter() - began, "cpu": time.process_time() - began_cpu}))


def compare_modes(script: str, args: argparse.Namespace) -> dict[str, dict[str, Spread]]:
    """Seconds of each case in Strict and in Fused, by turns, each in a process with an empty cache.

    Args:
        script: the benchmark's ``__file__``; its children call `print_seconds`.
        args: what `arguments` gave.
    """
    figures = {}
    for name in args.cases:
        times: dict[str, dict[str, list[float]]] = {"wall": {}, "cpu": {}}
        for _ in range(args.rounds):
            for mode in ("strict", "fused"):
                with tempfile.TemporaryDirectory() as cache:
                    variables = {"TORCH_TPU_EAGER_MODE": mode, "TORCH_TPU_CACHE_DIR": cache}
                    for clock, seconds in in_child(script, name, **variables).items():
                        times[clock].setdefault(mode, []).append(seconds)
        for clock, by_mode in times.items():
            row = {mode: Spread.of(values) for mode, values in by_mode.items()}
            row["fused over strict"] = ratios(by_mode, "strict")["fused"]
            figures[f"{name} {clock} s"] = row
            print(name, clock, ", ".join(f"{k} {v}" for k, v in row.items()), flush=True)
    return figures


def environment() -> dict[str, str]:
    """What the figures depend on."""
    packages = ("torch", "jax", "jaxlib", "torchtpu-core")
    found = {name: version(name) for name in packages}
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.processor(),
    )
    return found | {"python": platform.python_version(), "cpu": model}


def save(name: str, figures: Mapping[str, Any]) -> Path:
    """Write a result with its command and environment; returns the file."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    record = {
        "command": " ".join([*_launcher(), *sys.argv]),
        "date": time.strftime("%Y-%m-%d"),
        "environment": environment(),
        "figures": dict(figures),
    }
    path.write_text(json.dumps(record, indent=2, default=str) + "\n")
    return path


def _launcher() -> list[str]:
    """What this script was started with."""
    chips = os.environ.get("LOCAL_WORLD_SIZE")
    return ["torchtpu", "run", "--chips", chips] if chips else [Path(sys.executable).name]
