# SPDX-License-Identifier: Apache-2.0
"""Which of many programs XLA's TPU compiler takes, in as few processes as survive it.

The compiler ends its process at some programs: that one is noted, and another process goes on
with the next. Imports neither torch nor JAX.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from torchtpu_core.child_processes import Child
from torchtpu_core.errors import TPUCompileError
from torchtpu_core.targets import Target
from torchtpu_core.xla_tpu.compiling import environment, require_libtpu
from torchtpu_core.xla_tpu.topologies import topology_of

#: Said of a program at which the compiler ended its process.
ENDED = "the compiler ended its process"
#: Said of one with which it was not done in time.
LATE = "the compiler took too long"

_POLL_S = 0.1

_CHILD = "import sys, pathlib; from torchtpu_core.xla_tpu.child import try_all; "
_CHILD += "sys.exit(try_all(pathlib.Path(sys.argv[1])))"


def try_all(
    programs: Mapping[str, bytes],
    target: Target,
    *,
    timeout_s: float = 120.0,
    progress: Callable[[int], None] = lambda done: None,
) -> dict[str, str]:
    """What the compiler says of each program: nothing if it compiles.

    Args:
        programs: MLIR bytecode lowered for the platform ``tpu``, by name.
        target: the slice.
        timeout_s: how long one program may take before its process is ended.
        progress: told how many are done whenever a process has ended.

    Raises:
        MissingExtraError: libtpu is not installed.
        CompilerTargetError: libtpu does not know the chip.
        TPUCompileError: the process ended before it came to a program.
    """
    require_libtpu("Compiling with XLA's TPU compiler")
    topology = topology_of(target)
    said: dict[str, str] = {}
    names = {f"{i:06d}.mlirbc": name for i, name in enumerate(programs)}
    with tempfile.TemporaryDirectory(prefix="torchtpu-xla-") as folder:
        directory = Path(folder)
        for file, name in names.items():
            (directory / file).write_bytes(programs[name])
        while left := [file for file, name in names.items() if name not in said]:
            job = {
                "topology": {"name": topology.name, "options": topology.options},
                "partitions": 1,
                "compiler_options": {},
                "programs": left,
            }
            (directory / "job.json").write_text(json.dumps(job), encoding="utf-8")
            (directory / "current").write_text("", encoding="utf-8")
            status = _run(directory, timeout_s)
            for line in _lines(directory / "tried.jsonl"):
                file, words = json.loads(line)
                said[names[file]] = words
            current = (directory / "current").read_text(encoding="utf-8")
            if status != 0 and not current:
                words = "\n".join(_lines(directory / "said")[-20:])
                raise TPUCompileError.died(target.name, -1 if status is None else status, words)
            if status != 0:
                said.setdefault(names[current], LATE if status is None else ENDED)
            progress(len(said))
    return said


def _run(directory: Path, timeout_s: float) -> int | None:
    """The exit status of a child; None if it was ended because one program took too long."""
    with (directory / "said").open("w", encoding="utf-8") as output:
        child = Child(
            _CHILD,
            [str(directory)],
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
        )
        at, since = "", time.monotonic()
        with child:
            while child.poll() is None:
                current = (directory / "current").read_text(encoding="utf-8")
                if current != at:
                    at, since = current, time.monotonic()
                elif time.monotonic() - since > timeout_s:
                    return None
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
            return child.returncode


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []
