# SPDX-License-Identifier: Apache-2.0
"""Under which settings the JAX code of a kernel is traced.

A program is traced with 64-bit types on, but JAX code is usually written for JAX's
32-bit defaults, and Mosaic compiles Pallas kernels only under them. So a kernel sees
64-bit types only if an operand has one. Off a real TPU,
Pallas kernels are interpreted: their blocks and grid run as ordinary XLA code.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from torchtpu_core.runtime.current import TargetKind, target
from torchtpu_core.xla_tpu import lowering

from torchtpu_kernels.errors import KernelDtypeError


def run(name: str, function: Callable[..., Any], arrays: Sequence[Any]) -> Any:
    """``function(*arrays)``, traced under a kernel's settings.

    Raises:
        KernelDtypeError: a Pallas kernel is involved and an operand has 64 bits.
    """
    wide = [i for i, a in enumerate(arrays) if a.dtype.itemsize // _parts(a.dtype) == 8]
    with scope(bool(wide)):
        if wide and uses_pallas(function, arrays):
            kinds = ", ".join(f"operand {i} is {arrays[i].dtype}" for i in wide)
            raise KernelDtypeError(
                f"kernel {name!r} runs a Pallas kernel, and TPU cores have no 64-bit types: "
                f"{kinds}. Cast with .int() or .float() before the call. Plain JAX "
                "functions may use them."
            )
        return function(*arrays)


@contextlib.contextmanager
def scope(wide: bool) -> Iterator[None]:
    """Trace with 64-bit types on or off, Pallas interpreted unless a TPU's compiler follows."""
    with jax.enable_x64(wide), contextlib.ExitStack() as stack:
        if lowering.target() is not None:
            stack.enter_context(_simulated_chip())
        elif target().target.kind is not TargetKind.TPU:
            from jax.experimental.pallas import tpu as pltpu

            stack.enter_context(pltpu.force_tpu_interpret_mode(True))  # type: ignore[arg-type]
            stack.enter_context(_simulated_chip())
        yield


_simulated = threading.local()


@contextlib.contextmanager
def _simulated_chip() -> Iterator[None]:
    """Let Pallas helpers that ask for the chip (tilings of ``emit_pipeline``) find one.

    JAX looks a device kind it does not know up in a registry, and has no public way to add
    to it. Ours answers only while a kernel is traced on this thread.
    """
    from jax._src.pallas.mosaic import tpu_info

    outer = tpu_info.registry.get("cpu")

    def answer() -> Any:
        if getattr(_simulated, "depth", 0) == 0 and outer is not None:
            return outer()
        return tpu_info.get_tpu_info_for_chip(_chip_version(tpu_info.ChipVersion), 1)

    _simulated.depth = getattr(_simulated, "depth", 0) + 1
    tpu_info.registry["cpu"] = answer
    try:
        yield
    finally:
        _simulated.depth -= 1
        if outer is None:
            tpu_info.registry.pop("cpu", None)
        else:
            tpu_info.registry["cpu"] = outer


def _chip_version(versions: Any) -> Any:
    """JAX's name of the simulated chip; of a v5e for a target without a chip."""
    compiled_for = lowering.target()
    chip = compiled_for.chip if compiled_for is not None else target().chip
    name = chip.name.lower().removeprefix("tpu").strip() if chip is not None else "v5e"
    for version in versions:
        if str(version.value).lower().lstrip("v") == name.lstrip("v"):
            return version
    return versions.TPU_V5E


def _parts(dtype: Any) -> int:
    return 2 if dtype.kind == "c" else 1


def uses_pallas(function: Callable[..., Any], arrays: Sequence[Any]) -> bool:
    """Whether tracing `function` meets a Pallas call, at any depth."""
    return _has_pallas(jax.make_jaxpr(function)(*arrays).jaxpr)


def _has_pallas(jaxpr: Any) -> bool:
    for equation in jaxpr.eqns:
        if equation.primitive.name in ("pallas_call", "core_map", "mpmd_map"):
            return True
        for value in equation.params.values():
            for inner in value if isinstance(value, (tuple, list)) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns") and _has_pallas(inner):
                    return True
    return False
