# SPDX-License-Identifier: Apache-2.0
"""The process in which XLA's TPU compiler runs.

A process of its own for each compilation, because libtpu takes a lock file, reads the
environment once, and ends the process on some mistakes. Reads ``job.json`` and
``program.mlirbc`` in DIR, says what it does on its standard output, and writes
``stats.json`` and ``executable.bin``, or ``error.json``. `try_all` is for many small programs,
of which only whether they compile is asked.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def main(directory: Path) -> int:
    """Compile the job of a directory; returns the exit status."""
    job = json.loads((directory / "job.json").read_text(encoding="utf-8"))
    try:
        _say("loading libtpu")
        devices = _devices(job)
        _say("compiling")
        executable = _compile(job, (directory / "program.mlirbc").read_bytes(), devices)
        (directory / "stats.json").write_text(json.dumps(_stats(executable)), encoding="utf-8")
        if job["serialize"]:
            _say("writing the executable")
            (directory / "executable.bin").write_bytes(executable.serialize())
    except Exception as error:  # every failure is the parent's to word
        message = {"type": type(error).__name__, "message": str(error)}
        (directory / "error.json").write_text(json.dumps(message), encoding="utf-8")
        return 1
    return 0


def try_all(directory: Path) -> int:
    """Compile the programs of a job one by one; returns the exit status.

    Each is named in ``current`` before it is compiled, so that who reads it knows at which one the
    compiler ended the process; what it says of each follows in ``tried.jsonl``.
    """
    job = json.loads((directory / "job.json").read_text(encoding="utf-8"))
    devices = _devices(job)
    with (directory / "tried.jsonl").open("a", encoding="utf-8") as tried:
        for name in job["programs"]:
            (directory / "current").write_text(name, encoding="utf-8")
            words = ""
            try:
                _compile(job, (directory / name).read_bytes(), devices)
            except Exception as error:
                words = str(error) or type(error).__name__
            print(json.dumps([name, words]), file=tried, flush=True)
    return 0


def _say(what: str) -> None:
    print(what, flush=True)


def _devices(job: dict[str, Any]) -> list[Any]:
    from jax.experimental import topologies

    options = dict(job["topology"]["options"])
    if "wrap" in options:
        options["wrap"] = tuple(options["wrap"])
    if "chips_per_host_bounds" in options:
        options["chips_per_host_bounds"] = tuple(options["chips_per_host_bounds"])
    found = topologies.get_topology_desc(
        platform="tpu", topology_name=job["topology"]["name"], **options
    )
    return list(found.devices)[: job["partitions"]]


def _compile(job: dict[str, Any], program: bytes, devices: list[Any]) -> Any:
    import numpy as np
    from jax._src import compiler
    from jax._src.lib.mlir import ir
    from jax.interpreters import mlir
    from jaxlib import xla_client

    with mlir.make_ir_context():
        module = ir.Module.parse(program)
    partitions = job["partitions"]
    options = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=partitions,
        device_assignment=np.arange(partitions).reshape(1, partitions),
        env_options_overrides=job["compiler_options"],
    )
    client = devices[0].client
    return client.compile(module, xla_client.DeviceList(tuple(devices)), options)


def _stats(executable: Any) -> dict[str, int]:
    stats = executable.get_compiled_memory_stats()
    return {
        name: int(getattr(stats, f"{name}_size_in_bytes"))
        for name in ("argument", "output", "temp", "alias", "generated_code")
    } | {"peak": int(stats.peak_memory_in_bytes)}
