# SPDX-License-Identifier: Apache-2.0
"""Execute the forms that lowerings have for TPUs on the CPU, over PyTorch's operator database.

A lowering that makes another program for a TPU must give the same values. XLA:CPU executes those
programs too, apart from Mosaic kernels, which no sample is large enough for. Takes what
`torchtpu_core.testing.op_database` takes:

    python -m torchtpu_core.testing.tpu_forms --samples 5 --dtypes float32

The nox session ``tpu_forms`` runs it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import jax
from jax import lax

from torchtpu_core.lowering import interpreter, linalg, mxu
from torchtpu_core.runtime import compiling
from torchtpu_core.testing import op_database


@contextlib.contextmanager
def executed() -> Iterator[None]:
    """Programs compiled inside the block have their forms for TPUs.

    What a TPU leaves to the host has a form all the same. Programs that the process has compiled
    before stay what they are.
    """
    lower = compiling._lower_for

    def for_tpu(
        platform: str, function: Any, avals: Sequence[Any], donated: Sequence[int]
    ) -> jax.stages.Lowered:
        with mxu.for_platform("tpu"):
            return lower("tpu", function, avals, donated)

    with (
        mock.patch.object(compiling, "_lower_for", for_tpu),
        mock.patch.object(interpreter, "_limit", lambda name, operands: None),
        mock.patch.object(linalg, "_exported_svd", lax.linalg.svd),  # exported for TPUs alone
    ):
        yield


if __name__ == "__main__":
    with executed():
        op_database.main()
