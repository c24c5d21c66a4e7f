# SPDX-License-Identifier: Apache-2.0
"""Reading the printed form of StableHLO: types, groups, operations, mistakes."""

from __future__ import annotations

import doctest

import jax
import jax.numpy as jnp
import pytest
from torchtpu_core.errors import ProgramTextError
from torchtpu_core.simulator import groups_text, matmul_work, program_cost, tensor_type
from torchtpu_core.simulator.groups_text import read_groups
from torchtpu_core.simulator.hlo_text import read_module
from torchtpu_core.simulator.tensor_type import parse_type


@pytest.mark.parametrize("module", [groups_text, matmul_work, tensor_type])
def test_reader_doctests_pass(module) -> None:
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups = dense<0> : tensor<1x1xi64>", ((0,),)),
        ("replica_groups = dense<[[0, 1, 2], [3, 4, -1]]> : tensor<2x3xi64>", ((0, 1, 2), (3, 4))),
        (
            'replica_groups = dense<"0x'
            + "".join(n.to_bytes(8, "little").hex() for n in range(4))
            + '"> : tensor<2x2xi64>',
            ((0, 1), (2, 3)),
        ),
        ("split_count = 4 : i64", ()),
    ],
)
def test_read_groups_of_each_printed_form(text, groups) -> None:
    assert read_groups(text) == groups


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("tensor<f32>", 4),
        ("tensor<3x5xi1>", 15),
        ("tensor<3xi4>", 2),
        ("tensor<4xcomplex<f32>>", 32),
        ("tensor<4xf8E4M3FN>", 4),
        ("tensor<2xindex>", 16),
        ("tensor<0x8xf32>", 0),
        ("tensor<?x8xf32>", 32),
        ("tensor<?x8xf32, #stablehlo.bounds<3, ?>>", 96),
    ],
)
def test_size_of_each_printed_type(text, size_bytes) -> None:
    assert parse_type(text).size_bytes == size_bytes


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no function"),
        ("HloModule jit_f", "no function"),
        ("func.func public @main() {\n  %0 = stablehlo.iota dim = 0 : tensor<4xi32>", "cut off"),
        ("func.func public @main() {\n  ?? \n}", "Not an operation"),
        (
            "func.func public @main() {\n  %0 = stablehlo.dot_general %1 : tensor<4xf32>\n}",
            "not printed as JAX prints it",
        ),
    ],
)
def test_text_of_another_form_raises(text, message) -> None:
    with pytest.raises(ProgramTextError, match=message):
        program_cost(text)


def test_read_module_keeps_every_operation_of_a_training_step() -> None:
    def loss(w, x):
        return jnp.sum(jax.nn.softmax(jnp.tanh(x @ w)) ** 2)

    arguments = jax.ShapeDtypeStruct((16, 4), "float32"), jax.ShapeDtypeStruct((8, 16), "float32")
    text = jax.jit(jax.value_and_grad(loss)).lower(*arguments).as_text()
    printed = sum(line.strip().startswith("%") for line in text.splitlines())
    module = read_module(text)

    def count(operations) -> int:
        nested = (count(region) for op in operations for region in op.regions)
        return sum(bool(op.result) for op in operations) + sum(nested)

    assert sum(count(function.body) for function in module.functions.values()) == printed
