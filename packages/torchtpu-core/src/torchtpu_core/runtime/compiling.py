# SPDX-License-Identifier: Apache-2.0
"""Tracing, lowering and compiling one function for one device."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.errors import JaxRuntimeError
from jax.extend import core
from jaxlib.mlir.passmanager import PassManager

from torchtpu_core import plugins
from torchtpu_core.cache import Entry, Kind
from torchtpu_core.env_values import LogTopic
from torchtpu_core.env_vars import settings
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.lowering import channel_order, convolution_slices, mxu
from torchtpu_core.runtime import (
    caching,
    executables,
    fingerprints,
    memory,
    priorities,
    xla_options,
)
from torchtpu_core.runtime.collector import uncollected
from torchtpu_core.runtime.current import target
from torchtpu_core.simulator.cost import ProgramCost
from torchtpu_core.simulator.pricing import price
from torchtpu_core.simulator.stablehlo import program_cost

log = logging.getLogger("torchtpu")

#: What says how a value lies in memory.
_CONSTRAINTS = frozenset({"layout_constraint", "sharding_constraint"})

#: Programs built in this process, by name.
_built: Counter[str] = Counter()
_count_lock = threading.Lock()


#: Programs that XLA compiled in this process, by name.
compiled: Counter[str] = Counter()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A loaded executable.

    Attributes:
        call: operands to results.
        device_time_ps: simulated time of one run, 0 without a chip model.
        temporary_bytes: memory that XLA's program takes while it runs, besides operands and
            results.
        executable_key: its key in the cache; None if it cannot be loaded from there without
            being lowered.
    """

    call: Callable[..., Sequence[jax.Array]]
    device_time_ps: int
    temporary_bytes: int
    executable_key: str | None


def compile_function(
    function: Callable[..., Any],
    avals: Sequence[jax.ShapeDtypeStruct],
    donated: Sequence[int],
    name: str,
) -> Compiled:
    """Compile `function` for operands of `avals`, which name the device.

    Args:
        function: pure, on JAX arrays, returning a tuple.
        avals: shape, dtype and placement of each operand; at least one.
        donated: operands whose buffers the results may take.
        name: shown in logs and profiles.
    """
    began = time.perf_counter()
    before = convolution_slices.written()
    lowered = _lower(function, avals, donated, name)
    text = lowered.as_text()
    as_on_tpu = convolution_slices.written() == before
    traced = time.perf_counter()
    key = fingerprints.executable_key(text)
    calls = executables.custom_calls(text)
    executable, is_kept = _find_or_compile(key, lowered, _only_device(avals), name, text)
    is_kept = is_kept and executables.can_prepare(calls)
    done = time.perf_counter()
    _log(name, avals, traced - began, done - traced)
    plugins.collect("torchtpu_after_compile", name=name, stablehlo=text, seconds=done - began)
    return Compiled(
        executables.direct_call(executable),
        device_time_ps(partial(program_cost, text))
        if as_on_tpu
        else price_function(function, avals, name),
        _temporary_bytes(executable),
        key if is_kept else None,
    )


def price_function(
    function: Callable[..., Any], avals: Sequence[jax.ShapeDtypeStruct], name: str
) -> int:
    """Simulated device time in ps of one run, 0 without a chip model; nothing is compiled.

    Args:
        function: pure, on JAX arrays, returning a tuple.
        avals: shape, dtype and placement of each operand; at least one.
        name: shown in logs.
    """

    def anew(*operands: Any) -> Any:  # JAX keeps what it traced of a function
        return function(*operands)

    def cost() -> ProgramCost:
        with convolution_slices.volumes_whole():
            return program_cost(_lower(anew, avals, (), name).as_text())

    return device_time_ps(cost)


def _lower(
    function: Callable[..., Any],
    avals: Sequence[jax.ShapeDtypeStruct],
    donated: Sequence[int],
    name: str,
) -> jax.stages.Lowered:
    function.__name__ = _identifier(name)
    platform = _only_device(avals).platform
    with jax.enable_x64(True), uncollected(), mxu.for_platform(platform):
        return _lower_for(platform, function, avals, donated)


def _lower_for(
    platform: str,
    function: Callable[..., Any],
    avals: Sequence[jax.ShapeDtypeStruct],
    donated: Sequence[int],
) -> jax.stages.Lowered:
    options: dict[str, Any] = {"donate_argnums": tuple(donated), "keep_unused": True}
    traced = jax.jit(function, **options).trace(*avals)
    if platform == "cpu":
        reordered = channel_order.channels_last(traced.jaxpr)
        if reordered is not None:
            reordered.__name__ = function.__name__
            traced = jax.jit(reordered, **options).trace(*avals)
    if laid_out := _laid_out(traced.jaxpr.jaxpr):
        pinned = _held_back(traced.jaxpr, laid_out)
        pinned.__name__ = function.__name__
        traced = jax.jit(pinned, **options).trace(*avals)
    lowered = traced.lower()
    _simplify(lowered)
    return lowered


def _laid_out(jaxpr: core.Jaxpr) -> set[int]:
    """Results that come straight from a constraint on their order in memory.

    JAX leaves that of such a result to XLA, which then chooses that of the others as well: images
    came back with their channels last, and were read as if they were not.
    """
    constrained = {
        variable
        for equation in jaxpr.eqns
        if equation.primitive.name in _CONSTRAINTS
        for variable in equation.outvars
    }
    return {
        i
        for i, variable in enumerate(jaxpr.outvars)
        if isinstance(variable, core.Var) and variable in constrained
    }


def _held_back(closed: core.ClosedJaxpr, results: set[int]) -> Callable[..., Any]:
    """A program with some of its results behind barriers, which hide from JAX how they lie."""
    evaluate = core.jaxpr_as_fun(closed)

    def function(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return tuple(
            lax.optimization_barrier(value) if i in results else value
            for i, value in enumerate(evaluate(*operands))
        )

    return function


def _simplify(lowered: jax.stages.Lowered) -> None:
    """Drop what no result needs, and the second of equal operations.

    Rows compute what some of their users do not ask for, such as the transposition of a weight
    whose product contracts the untransposed one. XLA would find it out, but our key, the price
    and the user's dump are made from the module before.
    """
    module = lowered.compiler_ir()
    with module.context:
        PassManager.parse("builtin.module(cse)").run(module.operation)


def find_executable(
    key: str, device: Any, *, remote: bool = True
) -> tuple[jax.stages.Compiled, str] | None:
    """The executable of a key, loaded on a device, and the level it came from.

    Args:
        key: what `fingerprints.executable_key` gave.
        device: the PJRT device to run on.
        remote: also ask the root that many hosts share.
    """
    found = caching.cache().find(key, remote=remote)
    if found is None:
        return None
    entry, level = found
    try:
        loaded = executables.load(entry.payload, device, entry.facts["custom_calls"])
    except Exception as error:
        caching.cache().refuse(key, level, f"cannot be loaded ({type(error).__name__}: {error})")
        return None
    caching.cache().count_hit(level)
    return loaded, level


def _find_or_compile(key: str, lowered: Any, device: Any, name: str, text: str) -> tuple[Any, bool]:
    """The executable, and whether the cache has it. Of many who want it, one compiles."""
    cache = caching.cache()
    found = find_executable(key, device)
    if found is not None:
        return found[0], True
    with cache.compiling(key) as alone:
        found = find_executable(key, device, remote=False) if alone else None
        if found is not None:
            return found[0], True
        with priorities.compiling():
            options = xla_options.for_program(device.platform, text)
            try:
                executable = lowered.compile(options)
            except JaxRuntimeError as error:
                memory.raise_of_run(error)
        with _count_lock:
            compiled[name] += 1
        payload = executables.serialize(executable) if cache.enabled else None
        if payload is not None:
            cache.keep(
                Entry(
                    key=key,
                    kind=Kind.EXECUTABLE,
                    name=name,
                    host=cache.host,
                    facts={"custom_calls": executables.custom_calls(text)},
                    payload=payload,
                )
            )
    return executable, payload is not None


def _log(
    name: str, avals: Sequence[jax.ShapeDtypeStruct], traced_s: float, compiled_s: float
) -> None:
    topics = settings().log
    if LogTopic.COMPILES in topics:
        log.warning(
            "<TorchTpu/compiles> %s: traced in %.1f ms, compiled in %.1f ms",
            name,
            traced_s * 1e3,
            compiled_s * 1e3,
        )
    with _count_lock:
        _built[name] += 1
    if _built[name] > 1 and LogTopic.RECOMPILES in topics:
        operands = ", ".join(f"{a.dtype}{list(a.shape)}" for a in avals)
        log.warning("<TorchTpu/recompiles> %s, program %d: %s", name, _built[name], operands)


def _only_device(avals: Sequence[jax.ShapeDtypeStruct]) -> Any:
    """The device that the operands are placed on."""
    (device,) = avals[0].sharding.device_set
    return device


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)[:80] or "program"


def _temporary_bytes(compiled: jax.stages.Compiled) -> int:
    stats = compiled.memory_analysis()  # None where the client does not know
    return 0 if stats is None else int(stats.temp_size_in_bytes)


def device_time_ps(work: Callable[[], ProgramCost]) -> int:
    """Simulated time of one run of what costs `work()`, 0 without a chip model."""
    slice_ = target().target.slice_
    if slice_ is None:
        return 0
    try:
        cost = work()
        priced = plugins.collect("torchtpu_cost_model", cost=cost, target=target().name)
        own = (ps for _, ps in priced if ps is not None)
        return next(own, None) or price(cost, slice_).total_ps
    except TorchTPUError as error:
        log.warning("<TorchTpu/simulator> a program could not be priced: %s", error)
        return 0
