# SPDX-License-Identifier: Apache-2.0
"""Compiles StableHLO with XLA's TPU compiler, in a process of its own.

Needs the package `libtpu` (the extra ``[tpu]``), and no TPU. What the compiler decided is
read from its dump: the scheduled program, its buffers and its report of memory. Imports
neither torch nor JAX.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchtpu_core.child_processes import Child
from torchtpu_core.errors import CompilerTimeoutError, MissingExtraError, TPUCompileError
from torchtpu_core.targets import Target, libtpu_installed
from torchtpu_core.xla_tpu.topologies import topology_of

log = logging.getLogger("torchtpu")

#: Seconds that a compilation may take.
TIMEOUT_S = 900.0
#: Seconds between two messages that a compilation is still under way.
_PROGRESS_EVERY_S = 10.0
_POLL_S = 0.2

#: What libtpu must, and must not, find in its environment on a machine without a TPU.
ENVIRONMENT = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "true",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_LOG_DIR": "disabled",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
    "JAX_PLATFORMS": "cpu",
    "OMP_NUM_THREADS": "2",
}
_DROPPED = ("XLA_", "JAX_", "LIBTPU_", "TPU_", "TORCH_TPU_", "MEGASCALE_", "CLOUD_TPU_")
_KEPT = ("TPU_LIBRARY_PATH",)

#: Called with the seconds so far and what is being done.
Progress = Callable[[float, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What XLA's TPU compiler made of a program.

    Attributes:
        target: the slice's name.
        hlo: text of the optimised, scheduled HLO.
        buffers: text of the buffer assignment.
        stats: bytes of arguments, outputs, temporaries, aliased ones, code and the peak;
            empty if the compiler was stopped once the schedule was known.
        executable: the serialised executable, empty if it was not asked for.
        seconds: how long it took.
        versions: of libtpu and jax.
    """

    target: str
    hlo: str
    buffers: str
    stats: Mapping[str, int]
    executable: bytes = b""
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)


def require_libtpu(what: str) -> None:
    """Raises MissingExtraError with the command if libtpu is not installed."""
    if not libtpu_installed():
        raise MissingExtraError.for_extra("tpu", what)


def compile_for(
    program: bytes,
    target: Target,
    *,
    slices: int = 1,
    partitions: int = 1,
    compiler_options: Mapping[str, str] | None = None,
    schedule_only: bool = False,
    serialize: bool = False,
    timeout_s: float = TIMEOUT_S,
    progress: Progress | None = None,
) -> Compiled:
    """Compile a StableHLO module for a slice that this machine does not have.

    Args:
        program: MLIR bytecode, lowered for the platform ``tpu``.
        target: the slice.
        slices: slices joined by the data centre network.
        partitions: devices that share the program.
        compiler_options: such as ``xla_tpu_scoped_vmem_limit_kib``.
        schedule_only: stop once buffers are assigned, before code is generated, which is
            most of the time.
        serialize: also return the executable.
        timeout_s: give up after so many seconds.
        progress: told every ten seconds; None: the log.

    Raises:
        MissingExtraError: libtpu is not installed.
        CompilerTargetError: libtpu does not know the chip.
        CompilerTimeoutError: it took too long.
        TPUCompileError: the compiler refused the program, or died.
    """
    require_libtpu("Compiling with XLA's TPU compiler")
    topology = topology_of(target, slices)
    job = {
        "topology": {"name": topology.name, "options": topology.options},
        "partitions": partitions,
        "compiler_options": dict(compiler_options or {}),
        "serialize": serialize,
    }
    with tempfile.TemporaryDirectory(prefix="torchtpu-xla-") as name:
        directory = Path(name)
        (directory / "job.json").write_text(json.dumps(job), encoding="utf-8")
        (directory / "program.mlirbc").write_bytes(program)
        started = time.monotonic()
        status, tail = _run(directory, schedule_only, timeout_s, progress or _log, target.name)
        seconds = time.monotonic() - started
        dump = directory / "dump"
        error = directory / "error.json"
        if error.exists():
            found = json.loads(error.read_text(encoding="utf-8"))
            raise TPUCompileError.refused(
                target.name, found["message"], _text(dump, _OOM), _text(dump, _BUFFERS)
            )
        hlo = _text(dump, _SCHEDULED) or _text(dump, _OPTIMIZED)
        if not hlo or (status != 0 and not schedule_only):
            raise TPUCompileError.died(target.name, status, tail)
        stats = directory / "stats.json"
        executable = directory / "executable.bin"
        return Compiled(
            target=target.name,
            hlo=hlo,
            buffers=_text(dump, _BUFFERS),
            stats=json.loads(stats.read_text(encoding="utf-8")) if stats.exists() else {},
            executable=executable.read_bytes() if executable.exists() else b"",
            seconds=seconds,
            versions=_versions(),
        )


_CHILD = "import sys, pathlib; from torchtpu_core.xla_tpu.child import main; "
_CHILD += "sys.exit(main(pathlib.Path(sys.argv[1])))"
_SCHEDULED = "after_optimizations_after_buffer_assignment.txt"
_OPTIMIZED = "after_optimizations.txt"
_BUFFERS = "after_optimizations-buffer-assignment.txt"
_OOM = "oom_intermediate_module.txt"


def _run(
    directory: Path, schedule_only: bool, timeout_s: float, progress: Progress, target: str
) -> tuple[int, str]:
    """Runs the child; returns its exit status and the end of what it said."""
    with (directory / "said").open("w+", encoding="utf-8") as said:
        child = Child(
            _CHILD,
            [str(directory)],
            env={**environment(), "XLA_FLAGS": _dump_flags(directory / "dump")},
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            cwd=directory,
        )
        started = told = time.monotonic()
        written = -1
        try:
            while child.poll() is None:
                now = time.monotonic()
                if schedule_only and _is_scheduled(directory / "dump"):
                    before, written = written, len(_text(directory / "dump", _BUFFERS))
                    if before == written:  # nothing marks the end of the buffers
                        break
                if now - started > timeout_s:
                    raise CompilerTimeoutError.after(timeout_s, target)
                if now - told > _PROGRESS_EVERY_S:
                    told = now
                    progress(now - started, _last_line(directory / "said"))
                with contextlib.suppress(subprocess.TimeoutExpired):
                    child.wait(_POLL_S)
        finally:
            _end(child)
        said.flush()
    text = (directory / "said").read_text(encoding="utf-8", errors="replace")
    return child.returncode, "\n".join(text.splitlines()[-20:])


def _is_scheduled(dump: Path) -> bool:
    """Whether the scheduled program is written to its end, and its buffers are there.

    The entry comes last; what is half written may end with another computation, or within a line.
    """
    text = _text(dump, _SCHEDULED)
    whole = text.rstrip().endswith("\n}") and "\nENTRY " in text
    return whole and bool(_text(dump, _BUFFERS))


def _end(child: subprocess.Popen[Any]) -> None:
    """Ends a child that still runs, with what it started."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def environment() -> dict[str, str]:
    """This process' environment without what changes the compiler's behaviour."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or not name.startswith(_DROPPED)
    }
    return {**kept, **ENVIRONMENT}


def _dump_flags(dump: Path) -> str:
    return f"--xla_dump_to={dump} --xla_dump_hlo_as_text --xla_dump_hlo_pass_re=NONE"


def _text(dump: Path, ending: str) -> str:
    """The dumped file of the largest module whose name ends so."""
    found = sorted(dump.glob(f"module_*.{ending}"), key=lambda path: path.stat().st_size)
    return found[-1].read_text(encoding="utf-8", errors="replace") if found else ""


def _last_line(said: Path) -> str:
    lines = said.read_text(encoding="utf-8", errors="replace").splitlines()
    known = [line for line in lines if line in ("loading libtpu", "compiling")]
    return known[-1] if known else "starting"


def _log(seconds: float, what: str) -> None:
    log.warning("<TorchTpu/xla-tpu> %s, %.0f s so far", what, seconds)


def _versions() -> dict[str, str]:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for package in ("libtpu", "jax", "jaxlib"):
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
