# SPDX-License-Identifier: Apache-2.0
"""Work of Pallas kernels, by their Mosaic programs; no libtpu is needed."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import export
from jax.experimental import pallas as pl
from torchtpu_core.xla_tpu.kernels import work_of

BLOCKS, ROWS, COLUMNS = 4, 128, 256


def call_of(kernel) -> str:
    """The custom call of a kernel on a grid of ``[BLOCKS, BLOCKS]``, as HLO words it."""

    def run(x, y):
        return pl.pallas_call(
            kernel,
            grid=(BLOCKS, BLOCKS),
            in_specs=[
                pl.BlockSpec((ROWS, 64), lambda i, j: (i, 0)),
                pl.BlockSpec((64, COLUMNS), lambda i, j: (0, j)),
            ],
            out_specs=pl.BlockSpec((ROWS, COLUMNS), lambda i, j: (i, j)),
            out_shape=jax.ShapeDtypeStruct((BLOCKS * ROWS, BLOCKS * COLUMNS), jnp.float32),
        )(x, y)

    x = jax.ShapeDtypeStruct((BLOCKS * ROWS, 64), jnp.bfloat16)
    y = jax.ShapeDtypeStruct((64, BLOCKS * COLUMNS), jnp.bfloat16)
    made = export.export(jax.jit(run), platforms=["tpu"])(x, y)
    return made.mlir_module().replace("\\22", '"')


def multiply(x, y, out) -> None:
    out[...] = jnp.exp(jnp.dot(x[...], y[...], preferred_element_type=jnp.float32))


def below_the_diagonal(x, y, out) -> None:
    @pl.when(pl.program_id(0) >= pl.program_id(1))
    def _():
        multiply(x, y, out)


def in_a_loop(x, y, out) -> None:
    jax.lax.fori_loop(0, 3, lambda _, none: multiply(x, y, out), None)


@pytest.mark.parametrize(
    ("kernel", "times"),
    [(multiply, BLOCKS**2), (below_the_diagonal, BLOCKS * (BLOCKS + 1) // 2)],
)
def test_kernel_work_is_its_products_in_the_steps_that_run(kernel, times) -> None:
    found = work_of(call_of(kernel))
    assert found is not None
    assert found.products == ((times, ROWS, 64, COLUMNS, "bf16", 1),)
    assert found.flops == 2 * times * ROWS * 64 * COLUMNS
    assert found.vector_operations == times * ROWS * COLUMNS  # the exponential


def test_kernel_work_counts_a_loop_by_its_bounds() -> None:
    found = work_of(call_of(in_a_loop))
    assert found is not None
    assert found.products[0][0] == 3 * BLOCKS**2


@pytest.mark.parametrize("text", ["custom-call(%a)", 'custom-call(%a), "body":"AAAA"'])
def test_kernel_work_without_a_readable_program_is_none(text) -> None:
    assert work_of(text) is None
