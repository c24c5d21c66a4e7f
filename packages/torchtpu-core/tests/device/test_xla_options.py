# SPDX-License-Identifier: Apache-2.0
"""Which of XLA:CPU's emitters compiles which program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from torchtpu_core.runtime.xla_options import for_program


def uses_older_emitters(function: Callable[..., Any], *shapes: tuple[int, ...]) -> bool:
    operands = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    text = jax.jit(function).lower(*operands).as_text()
    return not for_program("cpu", text).get("xla_cpu_use_fusion_emitters", True)


def convolve(images: jax.Array, kernel: jax.Array) -> jax.Array:
    return jax.lax.conv(images, kernel, (1, 1), "SAME")


@pytest.mark.parametrize("shape", [(), (3,), (512, 1024)])
def test_an_elementwise_operator_has_the_older_ones(shape: tuple[int, ...]) -> None:
    assert uses_older_emitters(jnp.tanh, shape)


@pytest.mark.parametrize("rearrange", [jnp.transpose, lambda value: jnp.pad(value, 1)])
def test_a_large_rearrangement_has_the_newer_ones(
    rearrange: Callable[[jax.Array], jax.Array],
) -> None:
    assert uses_older_emitters(rearrange, (16, 32))
    assert not uses_older_emitters(rearrange, (512, 1024))


def test_a_convolution_is_judged_by_its_kernel() -> None:
    assert uses_older_emitters(convolve, (8, 64, 56, 56), (64, 64, 3, 3))
    assert not uses_older_emitters(convolve, (2, 512, 3, 3), (512, 512, 3, 3))


def test_many_operators_have_the_newer_ones() -> None:
    def chain(value: jax.Array) -> jax.Array:
        for _ in range(100):
            value = jnp.sin(value) * 2
        return value

    assert not uses_older_emitters(chain, (8,))


def test_a_tpu_takes_no_option_of_the_cpu() -> None:
    assert for_program("tpu", "") == {}
