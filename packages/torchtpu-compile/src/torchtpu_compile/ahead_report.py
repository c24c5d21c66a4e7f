# SPDX-License-Identifier: Apache-2.0
"""What a program compiled ahead of time costs: from XLA's TPU compiler, or the simulator."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torchtpu_core import xla_tpu
from torchtpu_core.errors import TorchTPUError, TPUCompileError, did_you_mean
from torchtpu_core.simulator.pricing import price
from torchtpu_core.simulator.stablehlo import program_cost
from torchtpu_core.targets import Target, libtpu_installed, real_tpu_present
from torchtpu_core.xla_tpu import lowering, timing

from torchtpu_compile.errors import CompileOptionError

log = logging.getLogger("torchtpu")

COMPILERS = ("auto", "xla-tpu", "simulator")
_OPERAND = re.compile(r"arrays\[(\d+)\]")
_REMEDY = "pip install 'torchtpu-core[tpu]'"


def uses_compiler(compiler: str, target: Target) -> bool:
    """Whether XLA's TPU compiler is used.

    Raises:
        CompileOptionError: no such compiler.
        MissingExtraError: it was asked for and is not installed.
        CompilerTargetError: it was asked for, and does not know the target.
    """
    if compiler not in COMPILERS:
        raise CompileOptionError(
            f"aot has no compiler {compiler!r}.{did_you_mean(compiler, COMPILERS)} "
            f"Use one of {', '.join(COMPILERS)}."
        )
    if compiler == "xla-tpu":
        xla_tpu.require_libtpu("aot(compiler='xla-tpu')")
        xla_tpu.topology_of(target)
        return True
    return compiler == "auto" and target.slice_ is not None and libtpu_installed()


def sizes(
    target: Target, operands: Sequence[Any], weights: Sequence[str], outputs: Sequence[Any]
) -> dict[str, Any]:
    """Bytes of what goes in and out, and of a device.

    Args:
        target: where the program runs.
        operands: shapes and dtypes of its operands, weights first.
        weights: their names.
        outputs: shapes and dtypes of its results.

    Raises:
        OutOfMemoryError: they alone do not fit.
    """
    own = dict(zip(weights, operands, strict=False))
    found = {
        "weight_bytes": sum(map(_bytes, own.values())),
        "input_bytes": sum(map(_bytes, operands[len(weights) :])),
        "output_bytes": sum(map(_bytes, outputs)),
    }
    limit = target.hbm_bytes_per_device
    if limit is not None and sum(found.values()) > limit:
        largest = max(own, key=lambda name: _bytes(own[name]), default="none")
        raise torch.OutOfMemoryError(
            f"the model needs {sum(found.values())} bytes for weights, inputs and results, but a "
            f"device of {target.name} has {limit}. The largest weight is {largest!r}. Use a chip "
            "with more memory, fewer or smaller weights, or shard the model."
        )
    return {"target": target.name, **found, "device_bytes": limit}


def simulated(text: str, target: Target, compiler: str) -> dict[str, Any]:
    """The simulator's price of a program's StableHLO, and why it is the simulator's."""
    if target.slice_ is None:
        return {}
    if compiler == "auto":
        log.warning(
            "<TorchTpu/aot> libtpu is not installed, so the simulator prices the program for %s; "
            "XLA's own TPU compiler does after: %s",
            target.name,
            _REMEDY,
        )
    cost = price(program_cost(text), target.slice_)
    return {
        "priced_by": "simulator",
        "simulated_run_ps": cost.total_ps,
        "simulated_bound_by": cost.bound_by,
    }


def compiled(
    function: Callable[..., Any],
    structs: Sequence[Any],
    target: Target,
    weights: Sequence[str],
    timeout_s: float,
) -> tuple[dict[str, Any], str]:
    """The report of XLA's TPU compiler, and its optimised program.

    Args:
        function: the program on arrays.
        structs: its operands, weights first.
        target: a slice.
        weights: names of the weights.
        timeout_s: how long the compiler may take.

    Raises:
        OutOfMemoryError: the program does not fit a device.
        TPUCompileError: the compiler refused it.
    """
    try:
        program = lowering.bytecode(function, structs, target, keep_unused=True)
    except TorchTPUError:
        raise
    except Exception as error:  # what Mosaic cannot lower: JAX words it
        words = f"{type(error).__name__}: {error}"
        raise TPUCompileError.refused(target.name, words, "", "") from error
    try:
        made = xla_tpu.compile_for(program, target, timeout_s=timeout_s)
    except TPUCompileError as error:
        if error.out_of_memory:
            words = xla_tpu.out_of_memory(error, target.name)
            raise torch.OutOfMemoryError(_named(words, weights)) from error
        raise
    assert target.slice_ is not None
    run = timing.time_of(made.hlo, target.slice_)
    report = xla_tpu.report_of(made)
    for buffer in report["largest_buffers"]:
        buffer["name"] = _named(buffer["name"], weights)
    report.update(priced_by="xla-tpu", simulated_run_ps=round(run.step_s * 1e12))
    return report, made.hlo


@contextlib.contextmanager
def without_looking_for_tpus() -> Iterator[None]:
    """JAX's export starts every backend it finds; libtpu's asks no server for a TPU here."""
    quiet = {} if real_tpu_present() else xla_tpu.ENVIRONMENT
    quiet = {n: v for n, v in quiet.items() if n.startswith("TPU_") and n not in os.environ}
    os.environ.update(quiet)
    try:
        yield
    finally:
        for name in quiet:
            os.environ.pop(name, None)


def _named(text: str, weights: Sequence[str]) -> str:
    """`text` with the weights' names in place of the operands' numbers."""

    def name(match: re.Match[str]) -> str:
        place = int(match[1])
        return weights[place] if place < len(weights) else f"input {place - len(weights)}"

    return _OPERAND.sub(name, text)


def _bytes(array: Any) -> int:
    return math.prod(array.shape) * int(array.dtype.itemsize)
