# SPDX-License-Identifier: Apache-2.0
"""Run the device tests of PyTorch's own test files on `tpu`.

    python -m torchtpu_core.testing.pytorch_tests DIR test_view_ops test_indexing --raw raw

DIR is the `test` folder of PyTorch's sources, which no wheel holds. Every file runs in processes
of its own: a test that ends its process, or that hangs, counts as failed, and the next process
goes on after it. Tests that fail are run again on the CPU: one that fails there too expects
another version of PyTorch. Those of another mode are run again in Debug, where a mistake in
values is found within its call: one that passes there looked before the program ran. What was
tried is kept in files of lines in the folder `--raw`, one folder in it for each mode, so an
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

from torchtpu_core.env_values import EagerMode
from torchtpu_core.testing.pytorch_plugin import VARIABLE, Selection

_DTYPES = "float32,bfloat16,int64,bool"
_DEVICE = "PYTORCH_TESTING_DEVICE_ONLY_FOR"


def _on_device(mode: str) -> dict[str, str]:
    return {_DEVICE: "privateuse1", "TORCH_TPU_EAGER_MODE": mode}


#: How failed tests run once more, one way after the other, and the environment for it.
WAYS = {"cpu": {_DEVICE: "cpu"}, "debug": _on_device("debug")}
_QUIET_LIMIT_S = 90.0
_PLUGIN = "torchtpu_core.testing.pytorch_plugin"
_INTERNAL_ERROR = 3  # pytest's exit code when a limit strikes outside of a test


def outcomes(journal: Path) -> dict[str, dict[str, Any]]:
    """The last entry of each test in a file of lines; none if there is no file."""
    lines = journal.read_text().splitlines() if journal.exists() else []
    return {entry["test"]: entry for entry in map(json.loads, lines)}


def run_file(
    test_dir: Path, name: str, variables: dict[str, str], selection: Selection, limit_s: int
) -> None:
    """Run one test file to its end, in as many processes as that takes.

    Args:
        test_dir: the `test` folder of PyTorch's sources.
        name: of the file in it, without `.py`.
        variables: of the environment, such as those that choose the device and its mode.
        selection: which tests, and where their outcomes are appended.
        limit_s: seconds a test may take before it fails.

    Raises:
        RuntimeError: a process ended before it ran a test.
    """
    journal = Path(selection.journal)
    environment = dict(os.environ) | variables
    environment |= {
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
    """Run a file on the device, and what failed in other ways; yields a line for each."""
    stem = options.raw.resolve() / options.mode / name.replace("/", ".")
    dtypes = tuple(options.dtypes.split(","))
    first = Selection(journal=f"{stem}.jsonl", dtypes=dtypes, sample=options.sample)
    found = _outcomes_of(options, name, _on_device(options.mode), first)
    kinds = [entry["outcome"] for entry in found.values()]
    yield f"{name}: " + ", ".join(f"{kinds.count(k)} {k}" for k in ("passed", "failed", "skipped"))
    ours = [test for test, entry in found.items() if entry["outcome"] == "failed"]
    for way, variables in WAYS.items():
        if not ours or way == options.mode:
            continue
        again = replace(first, journal=f"{stem}.{way}.jsonl", sample=0, only=tuple(ours))
        entries = _outcomes_of(options, name, variables, again)
        still = {test for test, entry in entries.items() if entry["outcome"] == "failed"}
        yield f"    {len(still)} of these fail there too: {way}"
        ours = [test for test in ours if test not in still]


def _outcomes_of(
    options: argparse.Namespace, name: str, variables: dict[str, str], selection: Selection
) -> dict[str, dict[str, Any]]:
    run_file(options.directory.resolve(), name, variables, selection, options.limit_s)
    return outcomes(Path(selection.journal))


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory", type=Path, help="the `test` folder of PyTorch's sources")
    parser.add_argument("files", nargs="+", help="names of test files, without .py")
    parser.add_argument("--raw", type=Path, required=True, help="folder of outcomes")
    modes = [mode.value for mode in EagerMode]
    parser.add_argument("--mode", choices=modes, default="debug", help="eager mode (%(default)s)")
    parser.add_argument("--dtypes", default=_DTYPES, help="comma-separated (%(default)s)")
    parser.add_argument("--limit-s", type=int, default=60, help="seconds per test (%(default)s)")
    parser.add_argument("--sample", type=int, default=0, help="tests of a file at most; 0 for all")
    options = parser.parse_args(argv)
    (options.raw / options.mode).mkdir(parents=True, exist_ok=True)
    for name in options.files:
        for line in _run(options, name):
            print(line, flush=True)


if __name__ == "__main__":
    main()
