# SPDX-License-Identifier: Apache-2.0
"""Executables as bytes, and loaded from bytes on any one device of the same kind.

JAX pickles what surrounds XLA's own serialisation. Unpickling accepts only what that
needs; the executable itself is machine code, so the bytes must still come from somebody
who is trusted.
"""

from __future__ import annotations

import io
import pickle
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.experimental import serialize_executable
from jaxlib import lapack, xla_client

from torchtpu_core.runtime.untraced import untraced_closures

#: Packages, and names of `builtins`, that a pickled executable may refer to.
_PACKAGES = frozenset({"jax", "jaxlib", "numpy", "ml_dtypes"})
_BUILTINS = frozenset({"set", "frozenset", "slice", "complex", "bytearray", "range"})


_CUSTOM_CALL = re.compile(r"custom_call @([\w.$]+)")
_LAPACK = "lapack_"
#: Custom calls that need no preparation: XLA's own, and the FFT's.
_ALWAYS_THERE = ("mhlo.", "chlo.", "stablehlo.", "xla.", "ducc_fft", "dynamic_ducc_fft", "Sharding")


def custom_calls(stablehlo: str) -> list[str]:
    """Names of the functions outside of XLA that a module calls."""
    return sorted(set(_CUSTOM_CALL.findall(stablehlo)))


def can_prepare(calls: Sequence[str]) -> bool:
    """Whether `load` makes all these functions callable; else only lowering does."""
    return all(name.startswith((_LAPACK, *_ALWAYS_THERE)) for name in calls)


def serialize(compiled: jax.stages.Compiled) -> bytes | None:
    """The bytes of a compiled function, None if XLA cannot serialise it (host callbacks)."""
    try:
        return pickle.dumps(serialize_executable.serialize(compiled))
    except (NotImplementedError, ValueError, TypeError, AttributeError):
        return None


def load(payload: bytes, device: Any, calls: Sequence[str] = ()) -> jax.stages.Compiled:
    """A compiled function for one device, wherever it was compiled for.

    Args:
        payload: what `serialize` gave.
        device: the PJRT device to run on.
        calls: its `custom_calls`.

    Raises:
        Exception: of any kind, if the bytes are not good.
    """
    if any(name.startswith(_LAPACK) for name in calls):
        # JAX looks LAPACK up when it lowers such a call; unprepared, the call is to address 0.
        lapack.prepare_lapack_call("potrf_ffi", np.dtype(np.float32))
    serialized, in_tree, out_tree = _Unpickler(payload, device).load()
    unloaded, args_info_flat, no_kwargs = _Unpickler(serialized, device).load()
    args_info = in_tree.unflatten(args_info_flat)
    return jax.stages.Compiled(unloaded.load(), [], args_info, out_tree, no_kwargs=no_kwargs)


def direct_call(compiled: jax.stages.Compiled) -> Callable[..., Any]:
    """JAX's C++ entry of an executable, without the Python wrapper around it."""
    executable = getattr(compiled, "_executable", None)
    params = getattr(compiled, "_params", None)
    if executable is None or params is None:
        return compiled
    untraced_closures(type(executable).create_cpp_call)
    return executable.create_cpp_call(params) or compiled


class _Unpickler(pickle.Unpickler):
    """Puts every device and client of the pickle where the program is to run."""

    def __init__(self, data: bytes, device: Any) -> None:
        super().__init__(io.BytesIO(data))
        self.device = device

    def persistent_load(self, pid: tuple[Any, ...]) -> Any:
        """What JAX's pickler left out: ``exec``, ``device`` or ``client``."""
        kind = pid[0]
        if kind == "device":
            return self.device
        if kind == "client":
            return self.device.client
        if kind == "exec":
            return self.device.client.deserialize_executable(
                pid[1], xla_client.DeviceList((self.device,)), _options(self.device)
            )
        raise pickle.UnpicklingError(f"unknown object {kind!r}")

    def find_class(self, module: str, name: str) -> Any:
        """A class or function that the pickle names."""
        package = module.partition(".")[0]
        if package in _PACKAGES or (package == "builtins" and name in _BUILTINS):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong into an executable")


def _options(device: Any) -> xla_client.CompileOptions:
    """Assigns the program to a device; the rest was decided when it was compiled."""
    options = xla_client.CompileOptions()
    options.num_replicas = 1
    options.num_partitions = 1
    options.device_assignment = xla_client.DeviceAssignment.create(np.array([[device.id]]))
    return options
