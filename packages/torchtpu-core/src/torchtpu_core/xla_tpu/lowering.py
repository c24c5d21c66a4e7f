# SPDX-License-Identifier: Apache-2.0
"""Says, while a program is lowered, that a real TPU's compiler will get it.

Custom kernels are interpreted for a simulated target; for XLA's TPU compiler they must stay
what they are.
"""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torchtpu_core.targets import Target

_local = threading.local()


def target() -> Target | None:
    """The target that a program is lowered for with `for_tpu` on this thread."""
    found: Target | None = getattr(_local, "target", None)
    return found


@contextlib.contextmanager
def for_tpu(chosen: Target) -> Iterator[None]:
    """Lower for the real compiler inside the block."""
    from torchtpu_core.lowering import mxu

    outer, _local.target = target(), chosen
    try:
        with mxu.for_platform("tpu"):
            yield
    finally:
        _local.target = outer


def bytecode(
    function: Callable[..., Any],
    structs: Sequence[Any],
    chosen: Target,
    **options: Any,
) -> bytes:
    """MLIR bytecode of a function on arrays, for the platform ``tpu``.

    Args:
        function: what JAX can trace.
        structs: shape and dtype of each operand.
        chosen: where the program shall run.
        options: of ``jax.jit``, such as ``donate_argnums``.
    """
    import jax

    with for_tpu(chosen), jax.enable_x64(True):
        traced = jax.jit(function, **options).trace(*structs)
        module = traced.lower(lowering_platforms=("tpu",)).compiler_ir("stablehlo")
        buffer = io.BytesIO()
        module.operation.write_bytecode(buffer)
    return buffer.getvalue()
