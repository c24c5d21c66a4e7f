# SPDX-License-Identifier: Apache-2.0
"""Tracing, lowering and compiling one function for one device."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from torchtpu_core import plugins
from torchtpu_core.env_vars import LogTopic, settings
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.runtime import disk_cache
from torchtpu_core.runtime.current import target
from torchtpu_core.runtime.untraced import untraced_closures
from torchtpu_core.simulator.pricing import price
from torchtpu_core.simulator.stablehlo import program_cost

log = logging.getLogger("torchtpu")

#: Programs built in this process, by name.
_built: Counter[str] = Counter()
_built_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Compiled:
    """A loaded executable.

    Attributes:
        call: operands to results.
        device_time_ps: simulated time of one run, 0 without a chip model.
    """

    call: Callable[..., Sequence[jax.Array]]
    device_time_ps: int


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
    function.__name__ = _identifier(name)
    with jax.enable_x64(True):
        jitted = jax.jit(function, donate_argnums=tuple(donated), keep_unused=True)
        lowered = jitted.lower(*avals)
    text = lowered.as_text()
    traced = time.perf_counter()
    device = _only_device(avals)
    key = disk_cache.key_of(text, device)
    compiled = disk_cache.load(key, device)
    if compiled is None:
        compiled = lowered.compile()
        disk_cache.store(key, compiled)
    done = time.perf_counter()
    if LogTopic.COMPILES in settings().log:
        log.warning(
            "<TorchTpu/compiles> %s: traced in %.1f ms, compiled in %.1f ms",
            name,
            (traced - began) * 1e3,
            (done - traced) * 1e3,
        )
    with _built_lock:
        _built[name] += 1
    if _built[name] > 1 and LogTopic.RECOMPILES in settings().log:
        operands = ", ".join(f"{a.dtype}{list(a.shape)}" for a in avals)
        log.warning("<TorchTpu/recompiles> %s, program %d: %s", name, _built[name], operands)
    plugins.collect("torchtpu_after_compile", name=name, stablehlo=text, seconds=done - began)
    return Compiled(_direct_call(compiled), _device_time_ps(text))


def _only_device(avals: Sequence[jax.ShapeDtypeStruct]) -> Any:
    """The device that the operands are placed on."""
    (device,) = avals[0].sharding.device_set
    return device


def _identifier(name: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in name)[:80] or "program"


def _direct_call(compiled: Any) -> Callable[..., Any]:
    """JAX's C++ entry of the executable, without the Python wrapper around it."""
    executable = getattr(compiled, "_executable", None)
    params = getattr(compiled, "_params", None)
    if executable is None or params is None:
        return compiled
    untraced_closures(type(executable).create_cpp_call)
    return executable.create_cpp_call(params) or compiled


def _device_time_ps(text: str) -> int:
    slice_ = target().target.slice_
    if slice_ is None:
        return 0
    try:
        cost = program_cost(text)
        priced = plugins.collect("torchtpu_cost_model", cost=cost, target=target().name)
        own = (ps for _, ps in priced if ps is not None)
        return next(own, None) or price(cost, slice_).total_ps
    except TorchTPUError as error:
        log.warning("<TorchTpu/simulator> a program could not be priced: %s", error)
        return 0
