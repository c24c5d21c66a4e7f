# SPDX-License-Identifier: Apache-2.0
"""Counting the work of StableHLO that JAX prints, against formulas and brute force."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from torchtpu_core.simulator import (
    MatmulClass,
    Precision,
    program_cost,
)
from torchtpu_core.simulator.matmul_work import valid_taps

BF16, F32 = jnp.bfloat16, jnp.float32


def _array(*sizes: int, dtype=F32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(sizes, dtype)


def _text(function, *arguments) -> str:
    return jax.jit(function).lower(*arguments).as_text()


def _cost(function, *arguments):
    return program_cost(_text(function, *arguments))


def test_matmul_counts_flops_and_boundary_bytes() -> None:
    cost = _cost(lambda a, b: a @ b, _array(8, 16, dtype=BF16), _array(16, 4, dtype=BF16))
    assert cost.matmul_flops == {MatmulClass("bf16"): 2 * 8 * 16 * 4}
    assert cost.bytes_hbm == 2 * (8 * 16 + 16 * 4 + 8 * 4)
    assert (cost.elementwise_flops, cost.transcendentals, cost.collectives) == (0, 0, ())


def test_batched_int8_matmul_counts_every_batch() -> None:
    def product(a, b):
        dims = (((2,), (1,)), ((0,), (0,)))
        return lax.dot_general(a, b, dims, preferred_element_type=jnp.int32)

    cost = _cost(product, _array(3, 8, 16, dtype=jnp.int8), _array(3, 16, 4, dtype=jnp.int8))
    assert cost.matmul_flops == {MatmulClass("i8"): 2 * 3 * 8 * 16 * 4}
    assert cost.bytes_hbm == 3 * 8 * 16 + 3 * 16 * 4 + 4 * 3 * 8 * 4


@pytest.mark.parametrize("precision", list(Precision))
def test_matmul_keeps_the_precision_it_asks_for(precision) -> None:
    cost = _cost(
        lambda a, b: jnp.matmul(a, b, precision=str(precision)), _array(8, 16), _array(16, 4)
    )
    assert list(cost.matmul_flops) == [MatmulClass("f32", precision)]


def test_vector_product_counts_two_flops_per_element() -> None:
    cost = _cost(jnp.dot, _array(64), _array(64))
    assert cost.matmul_flops == {MatmulClass("f32"): 2 * 64}


def test_elementwise_and_transcendental_work_are_counted_apart() -> None:
    cost = _cost(lambda x: jnp.tanh(x * 2 + x) - x, _array(32, 8))
    assert cost.elementwise_flops == 3 * 32 * 8
    assert cost.transcendentals == 32 * 8


def test_reduction_counts_its_input() -> None:
    cost = _cost(lambda x: lax.reduce(x, 0.0, lax.add, (1,)), _array(32, 8))
    assert cost.elementwise_flops == 32 * 8


def test_reduction_with_its_own_body_counts_its_input() -> None:
    cost = _cost(lambda x: lax.argmax(x, 1, jnp.int32), _array(32, 8))
    assert cost.elementwise_flops == 32 * 8


def test_window_reduction_counts_every_window() -> None:
    def pool(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID")

    assert _cost(pool, _array(8, 8)).elementwise_flops == 4 * 4 * 4


def test_movement_of_data_is_free() -> None:
    cost = _cost(lambda x: jnp.concatenate([x.T[1:3], x.T[:2]]).reshape(-1), _array(8, 4))
    assert cost.flops == 0


@st.composite
def _convolutions(draw: st.DrawFn) -> dict:
    """Lengths and windows of one-dimensional convolutions with a non-empty result."""
    length, kernel = draw(st.integers(1, 7)), draw(st.integers(1, 4))
    stride, spread, dilation = (draw(st.integers(1, 3)) for _ in range(3))
    low, high = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    span = (length - 1) * spread + 1 + low + high - ((kernel - 1) * dilation + 1)
    outputs = max(0, span // stride + 1) if span >= 0 else 0
    return {
        "length": length,
        "kernel": kernel,
        "outputs": outputs,
        "stride": stride,
        "low": low,
        "spread": spread,
        "dilation": dilation,
    }


@given(_convolutions())
def test_valid_taps_is_the_count_of_products_with_the_input(window) -> None:
    places = {place * window["spread"] for place in range(window["length"])}
    expected = sum(
        out * window["stride"] + tap * window["dilation"] - window["low"] in places
        for out, tap in itertools.product(range(window["outputs"]), range(window["kernel"]))
    )
    assert valid_taps(**window) == expected


@pytest.mark.parametrize(
    "window",
    [
        {"window_strides": (1, 1), "padding": "SAME"},
        {"window_strides": (2, 1), "padding": ((2, 1), (0, 3)), "rhs_dilation": (2, 1)},
        {"window_strides": (1, 2), "padding": ((1, 1), (1, 2)), "lhs_dilation": (2, 3)},
        {"window_strides": (1, 1), "padding": "VALID", "feature_group_count": 2},
        {"window_strides": (1, 1), "padding": "VALID", "batch_group_count": 2},
    ],
)
def test_convolution_counts_what_the_cost_analysis_of_xla_counts(window) -> None:
    def convolve(x, w):
        return lax.conv_general_dilated(x, w, **window)

    features = 4 // window.get("feature_group_count", 1)
    lowered = jax.jit(convolve).lower(_array(4, 4, 9, 8), _array(6, features, 3, 3))
    assert program_cost(lowered.as_text()).flops == lowered.cost_analysis()["flops"]


def test_convolution_counts_products_with_the_input() -> None:
    # 3x3 over 8x8 with a border of one: the border costs 2 x 3 of 8 x 3 taps on each axis.
    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME")

    cost = _cost(convolve, _array(2, 4, 8, 8), _array(6, 4, 3, 3))
    assert cost.matmul_flops == {MatmulClass("f32"): 2 * 2 * 6 * 4 * (8 * 3 - 2) ** 2}


def test_grouped_convolution_counts_the_features_of_a_group() -> None:
    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (2, 2), "VALID", feature_group_count=4)

    cost = _cost(convolve, _array(2, 4, 8, 8), _array(8, 1, 2, 2))
    assert cost.matmul_flops == {MatmulClass("f32"): 2 * 2 * 8 * 1 * (4 * 2) ** 2}


def test_transposed_convolution_does_not_count_holes() -> None:
    # Every input element meets every kernel element once.
    def convolve(x, w):
        return lax.conv_general_dilated(x, w, (1,), [(1, 1)], lhs_dilation=(2,))

    cost = _cost(convolve, _array(1, 1, 5), _array(1, 1, 2))
    assert cost.matmul_flops == {MatmulClass("f32"): 2 * 5 * 2}


def test_scan_counts_its_body_once_per_step() -> None:
    def layers(x, weights):
        return lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, weights)[0]

    cost = _cost(layers, _array(8, 16), _array(5, 16, 16))
    assert cost.matmul_flops == {MatmulClass("f32"): 5 * 2 * 8 * 16 * 16}
    assert cost.transcendentals == 5 * 8 * 16
    assert cost.unknown_loops == 0


@pytest.mark.parametrize(
    ("start", "step", "keep", "runs"),
    [
        (0, 1, lambda i: i < 7, 7),
        (2, 3, lambda i: i < 10, 3),
        (2, 3, lambda i: i <= 11, 4),
        (9, -2, lambda i: i > 0, 5),
        (9, -2, lambda i: i >= 1, 5),
        (0, 2, lambda i: i != 8, 4),
        (5, 1, lambda i: i < 3, 0),
        (0, 1, lambda i: i < 4, 4),
    ],
)
def test_while_with_an_evident_counter_counts_its_runs(start, step, keep, runs) -> None:
    def loop(x):
        # A sine in the body shows how often it ran.
        return lax.while_loop(
            lambda c: keep(c[0]), lambda c: (c[0] + step, jnp.sin(c[1])), (start, x)
        )[1]

    cost = _cost(loop, _array(8))
    assert (cost.transcendentals, cost.unknown_loops) == (8 * runs, 0)


def test_nested_loops_multiply() -> None:
    def loop(x):
        def outer(_, y):
            return lax.fori_loop(0, 3, lambda _, z: jnp.sin(z), y)

        return lax.fori_loop(0, 4, outer, x)

    assert _cost(loop, _array(8)).transcendentals == 4 * 3 * 8


def test_loop_of_unknown_length_is_counted_once_and_reported() -> None:
    def loop(x):
        return lax.while_loop(lambda y: y.sum() < 10.0, jnp.sin, x)

    cost = _cost(loop, _array(8))
    assert (cost.transcendentals, cost.unknown_loops) == (8, 1)


def test_branches_count_the_most_work() -> None:
    def choose(index, x):
        return lax.switch(index, [lambda y: y, lambda y: y @ y, jnp.sin], x)

    cost = _cost(choose, _array(dtype=jnp.int32), _array(8, 8))
    assert cost.matmul_flops == {MatmulClass("f32"): 2 * 8**3}
    assert cost.transcendentals == 0


def test_function_called_twice_counts_twice() -> None:
    inner = jax.jit(lambda x: jnp.sin(x))
    assert _cost(lambda x: inner(inner(x)), _array(8)).transcendentals == 16


def test_unknown_operation_counts_the_elements_of_its_result() -> None:
    text = """
module @m {
  func.func public @main(%arg0: tensor<4x8xf32>) -> tensor<4x8xf32> {
    %0 = "acme.frobnicate"(%arg0) <{depth = 3 : i64}> : (tensor<4x8xf32>) -> tensor<4x8xf32>
    return %0 : tensor<4x8xf32>
  }
}
"""
    assert program_cost(text).elementwise_flops == 32


_MESH_PROGRAM = """
import jax, jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)

def body(a):
    full = lax.all_gather(a, "x", tiled=True)
    part = lax.psum_scatter(full, "x", tiled=True)
    moved = lax.ppermute(lax.psum(a, ("x", "y")), "y", [(0, 1), (1, 0)])
    mixed = lax.all_to_all(full, "x", 0, 0, tiled=True)
    return jnp.sin(moved) + part, mixed

mapped = jax.shard_map(
    body, mesh=mesh, in_specs=P("x", "y"), out_specs=(P("x", "y"), P("x", "y")), check_vma=False
)
a = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=NamedSharding(mesh, P("x", "y")))
print(jax.jit(mapped).lower(a).as_text())
print("-----")
b = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P()))
c = NamedSharding(mesh, P("x", "y"))
print(jax.jit(lambda a, b: a @ b, out_shardings=c).lower(a, b).as_text())
"""


@pytest.fixture(scope="module")
def mesh_texts() -> list[str]:
    """A manual and an automatic program on a 2x2 mesh, printed by a JAX of four devices."""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", _MESH_PROGRAM],
        env={**os.environ, **flags},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split("-----")


def test_manual_program_counts_collectives_with_bytes_and_groups(mesh_texts) -> None:
    cost = program_cost(mesh_texts[0])
    shard = 8 * 4 * 4
    rows, columns = ((0, 2), (1, 3)), ((0, 1), (1, 0), (2, 3), (3, 2))
    found = [
        (str(c.kind), c.operand_bytes, c.result_bytes, tuple(sorted(c.groups)))
        for c in cost.collectives
    ]
    assert sorted(found) == [
        ("all_gather", shard, 2 * shard, rows),
        ("all_reduce", shard, shard, ((0, 1, 2, 3),)),
        ("all_to_all", 2 * shard, 2 * shard, rows),
        ("collective_permute", shard, shard, columns),
        ("reduce_scatter", 2 * shard, shard, rows),
    ]


def test_manual_program_counts_the_work_of_one_device(mesh_texts) -> None:
    cost = program_cost(mesh_texts[0])
    assert cost.transcendentals == 8 * 4
    assert cost.devices == 4
    assert cost.bytes_hbm == 8 * 4 * 4 * (1 + 1 + 2)


def test_automatic_program_is_split_evenly(mesh_texts) -> None:
    cost = program_cost(mesh_texts[1])
    assert cost.matmul_flops == {MatmulClass("f32"): 2 * 16 * 8 * 8 // 4}
    # The left operand and the result are sharded, the right operand is replicated.
    assert cost.bytes_hbm == 4 * (16 * 8 // 4 + 8 * 8 + 16 * 8 // 4)


def test_old_style_sharding_splits_arguments() -> None:
    sharding = 'mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"'
    text = f"""
module @m attributes {{mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32}} {{
  func.func public @main(%arg0: tensor<8x4xf32> {{{sharding}}}) -> (tensor<8x4xf32>) {{
    return %arg0 : tensor<8x4xf32>
  }}
}}
"""
    assert program_cost(text).bytes_hbm == 8 * 4 * 4 // 2 + 8 * 4 * 4 // 4


def test_locations_in_the_text_change_nothing() -> None:
    lowered = jax.jit(lambda a, b: jnp.tanh(a @ b)).lower(_array(8, 16), _array(16, 4))
    assert program_cost(lowered.as_text(debug_info=True)) == program_cost(lowered.as_text())
