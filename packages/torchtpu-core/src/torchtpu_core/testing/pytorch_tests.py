# SPDX-License-Identifier: Apache-2.0
"""Run the device tests of PyTorch's own test files on `tpu`.

    python -m torchtpu_core.testing.pytorch_tests DIR test_view_ops test_indexing --raw raw

DIR is the `test` folder of PyTorch's sources, which no wheel holds. Every file runs in processes
of its own: a test that ends its process, or that hangs, counts as failed, and the next process
goes on after it. Tests that fail are run again on the CPU: one that fails there too expects
another version of PyTorch. What was tried is kept in files of lines in the folder `--raw`, so an
interrupted run continues; `torchtpu_core.testing.pytorch_summary` counts them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torchtpu_core.testing.pytorch_plugin import VARIABLE, Selection

_DTYPES = "float32,bfloat16,int64,bool"
_QUIET_LIMIT_S = 90.0
_PLUGIN = "torchtpu_core.testing.pytorch_plugin"
_INTERNAL_ERROR = 3  # pytest's exit code when a limit strikes outside of a test


def outcomes(journal: Path) -> dict[str, dict[str, Any]]:
    """The last entry of each test in a file of lines; none if there is no file."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return {entry["test"]: entry for entry in map(json.loads, lines)}


def run_file(test_dir: Path, name: str, device: str, selection: Selection, limit_s: int) -> None:
    """Run one test file to its end, in as many processes as that takes.

    Args:
        test_dir: the `test` folder of PyTorch's sources.
        name: of the file in it, without `.py`.
        device: ``privateuse1`` or ``cpu``.
        selection: which tests, and where their outcomes are appended.
        limit_s: seconds a test may take before it fails.

    Raises:
        RuntimeError: a process ended before it ran a test.
    """
    journal = Path(selection.journal)
    environment = dict(os.environ)
    environment |= {
        "PYTORCH_TESTING_DEVICE_ONLY_FOR": device,
        "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(test_dir)]),
        VARIABLE: json.dumps(asdict(selection)),
    }
    command = [sys.executable, "-m", "pytest", "--noconftest", "-q", "-p", "no:cacheprovider"]
    command += ["-p", _PLUGIN, "-c", os.devnull, f"--rootdir={test_dir}", "--tb=short"]
    command += [f"--timeout={limit_s}", "--timeout-method=signal", f"{name}.py"]
    while True:
        before = _size(journal)
        with journal.with_suffix(".log").open("a") as log:
            process = subprocess.Popen(
                command, cwd=test_dir, env=environment, stdout=log, stderr=subprocess.STDOUT
            )
            ended = _wait(process, journal, limit_s + _QUIET_LIMIT_S)
        if ended in (0, 1, 5):  # passed, failed, nothing left
            return
        if not _blame(journal, ended) and _size(journal) == before:
            message = f"{name}: pytest ended with {ended} before a test; see {journal.stem}.log"
            raise RuntimeError(message)


def _size(journal: Path) -> int:
    return journal.stat().st_size if journal.exists() else 0


def _wait(process: subprocess.Popen[bytes], journal: Path, quiet_limit_s: float) -> int | None:
    """The exit code; None for a process killed because nothing was written for too long."""
    size, since = _size(journal), time.monotonic()
    while True:
        try:
            return process.wait(timeout=2)
        except subprocess.TimeoutExpired:
            pass
        if _size(journal) != size:
            size, since = _size(journal), time.monotonic()
        elif time.monotonic() - since > quiet_limit_s:
            process.kill()
            process.wait()
            return None


def _blame(journal: Path, ended: int | None) -> bool:
    """Note the test that was running as failed; False if there was none."""
    last = next(reversed(outcomes(journal).values()), {"outcome": "none"})
    if last["outcome"] != "began":
        return False
    detail = f"ended its process: {ended}"
    if ended is None or ended == _INTERNAL_ERROR:
        detail = "Timeout: it could not be interrupted"
    with journal.open("a") as file:
        file.write(json.dumps({**last, "outcome": "failed", "seconds": 0.0, "detail": detail}))
        file.write("\n")
    return True


def _run(options: argparse.Namespace, name: str) -> Iterator[str]:
    """Run a file on the device, and what failed on the CPU; yields a line for each."""
    directory = options.directory.resolve()
    stem = options.raw.resolve() / name.replace("/", ".")
    dtypes = tuple(options.dtypes.split(","))
    on_device = Selection(journal=f"{stem}.jsonl", dtypes=dtypes, sample=options.sample)
    run_file(directory, name, "privateuse1", on_device, options.limit_s)
    found = outcomes(Path(on_device.journal))
    kinds = [entry["outcome"] for entry in found.values()]
    yield f"{name}: " + ", ".join(f"{kinds.count(k)} {k}" for k in ("passed", "failed", "skipped"))
    failed = tuple(test for test, entry in found.items() if entry["outcome"] == "failed")
    if failed:
        on_cpu = replace(on_device, journal=f"{stem}.cpu.jsonl", sample=0, only=failed)
        run_file(directory, name, "cpu", on_cpu, options.limit_s)
        entries = outcomes(Path(on_cpu.journal)).values()
        yield f"    {sum(e['outcome'] == 'failed' for e in entries)} of these fail on the CPU too"


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="the `test` folder of PyTorch's sources")
    parser.add_argument("files", nargs="+", help="names of test files, without .py")
    parser.add_argument("--raw", type=Path, required=True, help="folder of outcomes")
    parser.add_argument("--dtypes", default=_DTYPES, help="comma-separated (%(default)s)")
    parser.add_argument("--limit-s", type=int, default=60, help="seconds per test (%(default)s)")
    parser.add_argument("--sample", type=int, default=0, help="tests of a file at most; 0 for all")
    options = parser.parse_args(argv)
    options.raw.mkdir(parents=True, exist_ok=True)
    for name in options.files:
        for line in _run(options, name):
            print(line, flush=True)


if __name__ == "__main__":
    main()
