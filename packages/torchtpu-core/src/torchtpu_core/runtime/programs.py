# SPDX-License-Identifier: Apache-2.0
"""Programs: what C++ runs for a trace.

A program is looked up by a key of the trace, which needs no tracing, or it is lowered
and compiled. The two halves are separate, so that a caller can look up at once and
compile elsewhere: both take the description of a trace, which is plain data, and may be
called from any thread.
"""

from __future__ import annotations

import importlib
import logging
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType

import jax

from torchtpu_core import plugins
from torchtpu_core.cache import Entry, Kind
from torchtpu_core.env_values import LogTopic
from torchtpu_core.env_vars import settings
from torchtpu_core.runtime import (
    caching,
    clients,
    compiling,
    executables,
    fresh_zeros,
    list_parts,
    varying,
)
from torchtpu_core.runtime.trace_key import trace_key
from torchtpu_core.runtime.trace_lowering import Check, Description, trace_function
from torchtpu_core.runtime.untraced import untraced

#: Where the errors of checks may come from.
_ERROR_PACKAGES = frozenset(
    {"builtins", "torch", "torchtpu_core", "torchtpu_compile", "torchtpu_kernels"}
)
log = logging.getLogger("torchtpu")


@dataclass(slots=True, weakref_slot=True, eq=False)
class Program:
    """A compiled program, as C++ reads it.

    Attributes:
        call: operands, then the scalar words if any, to a tuple of arrays.
        positions: live output -> index in the result.
        checks: (error, message, node) of each check; their flags are the last result.
        device_time_ps: simulated device time of one run; 0 without a chip model.
        new_bytes: memory of a run besides its operands: new results and temporaries.
        compiled: it was made for this trace; else it was there, for a trace of other sizes.
    """

    call: Callable[..., Sequence[jax.Array]]
    positions: list[int]
    checks: list[Check]
    device_time_ps: int
    new_bytes: int
    compiled: bool = True

    def __post_init__(self) -> None:
        entry = vars(type(self.call)).get("__call__")
        if isinstance(entry, FunctionType):
            untraced(entry)  # C++ enters it where an op runs between two graphs

    @property
    def has_checks(self) -> bool:
        """Whether the last result holds check flags."""
        return bool(self.checks)


#: How many programs of several ops, or at padded sizes, were there when they were wanted.
found_at_once = 0

#: Programs in use, by key of the trace and id of the device.
_loaded: weakref.WeakValueDictionary[tuple[str, int], Program] = weakref.WeakValueDictionary()


def build_program(description: Description) -> Program:
    """The program of a trace: looked up, else lowered and compiled.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
    """
    return build_noted(description, varying.sizes_seen(description))


def build_noted(description: Description, sizes_seen: Sequence[varying.Sizes]) -> Program:
    """The program of a trace that `varying` knows of already.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
        sizes_seen: what `varying.sizes_seen` gave for it.
    """
    key = trace_key(description)
    zeros = fresh_zeros.of_trace(description, lambda: _make(key, description).call)
    if zeros is not None:
        return _of_zeros(zeros, description)
    found = find_program(key, description["device"], remote=False)
    parts = None if found else list_parts.parts_of(description)
    if parts is not None:
        found = _of_parts(description, parts, _find if sizes_seen else _found_or_made)
    if found is None and sizes_seen:
        found = plugins.manager().hook.torchtpu_open_sizes(
            description=description, sizes_seen=[(sizes,) for sizes in sizes_seen], later=False
        )
    return found or _make(key, description)


def _of_zeros(zeros: fresh_zeros.FreshZeros, description: Description) -> Program:
    traced = trace_function(description)
    device_time_ps = compiling.price_function(traced.function, traced.avals, traced.name)
    return Program(zeros, [0], [], device_time_ps, zeros.nbytes, compiled=False)


def _find(description: Description) -> Program | None:
    return find_program(trace_key(description), description["device"], remote=False)


def _found_or_made(description: Description) -> Program | None:
    return _find(description) or _make(trace_key(description), description)


def _of_parts(
    description: Description,
    parts: Sequence[list_parts.Part],
    make: Callable[[Description], Program | None],
) -> Program | None:
    made = []

    def make_noted(part: Description) -> Program | None:
        made.append(part)
        return make(part)

    programs = list_parts.programs_of(parts, description["device"], make_noted)
    if programs is None:
        return None
    return Program(
        call=list_parts.Calls(description, parts, programs),
        positions=list(range(len(description["live"]))),
        checks=[],
        device_time_ps=sum(program.device_time_ps for program in programs),
        new_bytes=sum(program.new_bytes for program in programs),
        compiled=bool(made),
    )


def lookup_program(description: Description) -> Program | None:
    """The program of a trace if this host has it; never traces, lowers, compiles or waits.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
    """
    found = find_at_once(trace_key(description), description["device"])
    parts = None if found else list_parts.parts_of(description)
    if parts is not None:
        found = _of_parts(description, parts, _find)
    if found is not None:
        varying.note_ops(description)
    return found


def find_at_once(key: str | None, device_index: int) -> Program | None:
    """A program that the script can do without, if this host has it.

    Args:
        key: None: it has none.
        device_index: where it is to run.
    """
    global found_at_once
    found = find_program(key, device_index, remote=False)
    found_at_once += found is not None
    return found


def compile_program(description: Description) -> Program:
    """The program of a trace, made by this thread: from the shared root, or compiled.

    Args:
        description: what `csrc/describe.cpp` makes of a trace.
    """
    return _make(trace_key(description), description)


def find_program(key: str | None, device_index: int, *, remote: bool) -> Program | None:
    """The program kept under a key; never traces, lowers or compiles.

    Args:
        key: None: it has none.
        device_index: where it is to run.
        remote: also ask the root that many hosts share.
    """
    if key is None:
        return None
    device = clients.devices()[device_index]
    known = _loaded.get((key, device.id))
    if known is not None:
        caching.cache().count_hit("memory")
        return known
    found = caching.cache().find(key, remote=remote)
    if found is None:
        return None
    entry, level = found
    began = time.perf_counter()
    try:
        facts = entry.facts
        checks = [(_error_class(error), message, node) for error, message, node in facts["checks"]]
        executable = compiling.find_executable(facts["executable"], device, remote=remote)
        if executable is None:
            return None
        program = Program(
            call=executables.direct_call(executable[0]),
            positions=facts["positions"],
            checks=checks,
            device_time_ps=facts["device_time_ps"],
            new_bytes=facts["new_bytes"],
        )
    except (KeyError, ValueError, TypeError, ImportError, AttributeError) as error:
        caching.cache().refuse(key, level, f"cannot be used ({type(error).__name__}: {error})")
        return None
    if LogTopic.COMPILES in settings().log:
        took_ms = (time.perf_counter() - began) * 1e3
        log.warning("<TorchTpu/compiles> %s: %s, %.1f ms", entry.name, executable[1], took_ms)
    _loaded[key, device.id] = program
    return program


def _make(key: str | None, description: Description) -> Program:
    found = find_program(key, description["device"], remote=True)
    if found is not None:
        return found
    traced = trace_function(description)
    compiled = compiling.compile_function(
        traced.function, traced.avals, traced.donated, traced.name
    )
    program = Program(
        call=compiled.call,
        positions=traced.positions,
        checks=list(traced.checks),
        device_time_ps=compiled.device_time_ps,
        new_bytes=traced.output_bytes + compiled.temporary_bytes,
    )
    keep_program(key, description["device"], traced.name, compiled.executable_key, program)
    return program


def keep_program(
    key: str | None, device_index: int, name: str, executable_key: str | None, program: Program
) -> None:
    """Keep what a later process needs to have a program without lowering it.

    Args:
        key: `find_program` finds it by; None: it has none.
        device_index: where it runs.
        name: for lists of what is kept.
        executable_key: of its executable, None if that is not kept.
        program: what was made.
    """
    if key is None:
        return
    _loaded[key, clients.devices()[device_index].id] = program
    if executable_key is None:
        return
    checks = [[_error_name(error), message, node] for error, message, node in program.checks]
    if any(name is None for name, _, _ in checks):
        return
    facts = {
        "executable": executable_key,
        "positions": program.positions,
        "checks": checks,
        "device_time_ps": program.device_time_ps,
        "new_bytes": program.new_bytes,
    }
    cache = caching.cache()
    cache.keep(Entry(key=key, kind=Kind.TRACE, name=name, host=cache.host, facts=facts))


def _error_name(error: type[Exception]) -> str | None:
    """``module:name`` of an error class, None if another process would not find it."""
    if error.__module__.partition(".")[0] not in _ERROR_PACKAGES:
        return None
    found = getattr(sys.modules.get(error.__module__), error.__qualname__, None)
    return f"{error.__module__}:{error.__qualname__}" if found is error else None


def _error_class(name: str) -> type[Exception]:
    module, _, qualified = name.partition(":")
    if module.partition(".")[0] not in _ERROR_PACKAGES:
        raise ValueError(f"{name} is not an error of PyTorch or of this project")
    found: type[Exception] = getattr(importlib.import_module(module), qualified)
    return found
