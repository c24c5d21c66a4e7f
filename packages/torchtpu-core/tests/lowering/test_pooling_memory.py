# SPDX-License-Identifier: Apache-2.0
"""What keeps XLA's TPU compiler from spreading a pooling's indices before their gradient comes."""

from __future__ import annotations

import contextlib

import jax
import jax.numpy as jnp
import pytest
from torchtpu_core.lowering.pooling import max_pool_gradient, windows
from torchtpu_core.targets import parse_target
from torchtpu_core.xla_tpu.lowering import for_tpu


@pytest.mark.parametrize("on_tpu", [True, False])
def test_indices_of_pooling_wait_for_the_gradient_on_a_tpu_only(on_tpu) -> None:
    spec = windows((8, 8), [2], [2], [0], [1], False)
    shape = jax.ShapeDtypeStruct((1, 1, 4, 4), jnp.float32)
    index = jax.ShapeDtypeStruct((1, 1, 4, 4), jnp.int32)
    with for_tpu(parse_target("v5e:1x1")) if on_tpu else contextlib.nullcontext():
        found = jax.make_jaxpr(lambda g, i: max_pool_gradient(g, i, (1, 1, 8, 8), spec))(
            shape, index
        ).jaxpr
    barriers = [eqn for eqn in found.eqns if eqn.primitive.name == "optimization_barrier"]
    assert [len(eqn.invars) for eqn in barriers] == ([2] if on_tpu else [])
    assert all(found.invars[0] in eqn.invars for eqn in barriers)
