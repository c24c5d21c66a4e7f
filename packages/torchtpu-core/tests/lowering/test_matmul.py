# SPDX-License-Identifier: Apache-2.0
"""Matrix products against CPU PyTorch, and the form in which they are lowered."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torchtpu_core.lowering import layout, matmul, scaled_products
from torchtpu_core.lowering.matmul import linear, mm
from torchtpu_core.testing.lowering import assert_close, check, lower

TABLE = (*matmul.TABLE, *scaled_products.TABLE)
_GENERATOR = torch.Generator().manual_seed(0)
NAN = float("nan")


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Numbers of either sign; whole ones for integer dtypes."""
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, generator=_GENERATOR, dtype=torch.float64).to(dtype)
    return torch.randint(-5, 6, shape, generator=_GENERATOR).to(dtype)


def positive(*shape: int, dtype: torch.dtype) -> Tensor:
    """Numbers whose products do not cancel, so that 16-bit results are comparable."""
    return (torch.rand(shape, generator=_GENERATOR) + 0.1).to(dtype)


DTYPES = [torch.float32, torch.float64, torch.int64, torch.int8, torch.complex64]
PLAIN = {
    "aten::mm": ((3, 4), (4, 5)),
    "aten::bmm": ((2, 3, 4), (2, 4, 5)),
    "aten::mv": ((3, 4), (4,)),
    "aten::dot": ((4,), (4,)),
}
FUSED = {
    "aten::addmm": ((3, 5), (3, 4), (4, 5)),
    "aten::baddbmm": ((2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "aten::addbmm": ((3, 5), (2, 3, 4), (2, 4, 5)),
    "aten::addmv": ((3,), (3, 4), (4,)),
    "aten::addr": ((3, 5), (3,), (5,)),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("overload", PLAIN)
def test_product_equals_cpu(overload: str, dtype: torch.dtype) -> None:
    check(overload, *(rand(*s, dtype=dtype) for s in PLAIN[overload]), table=TABLE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("overload", PLAIN)
def test_product_of_16_bit_floats_equals_cpu(overload: str, dtype: torch.dtype) -> None:
    check(overload, *(positive(*s, dtype=dtype) for s in PLAIN[overload]), table=TABLE)


@pytest.mark.parametrize("shapes", [((0, 4), (4, 5)), ((3, 0), (0, 5)), ((3, 4), (4, 0))])
def test_mm_of_empty_operands_equals_cpu(shapes: tuple[tuple[int, int], ...]) -> None:
    check("aten::mm", *(rand(*s) for s in shapes), table=TABLE)


def test_vdot_conjugates_the_first_operand() -> None:
    check("aten::vdot", rand(4, dtype=torch.complex64), rand(4, dtype=torch.complex64), table=TABLE)


@pytest.mark.parametrize(("beta", "alpha"), [(1, 1), (0.5, 2.0), (2, 0.5), (0, 1), (1, 0)])
@pytest.mark.parametrize("overload", FUSED)
def test_fused_product_equals_cpu(overload: str, beta: float, alpha: float) -> None:
    operands = [rand(*s) for s in FUSED[overload]]
    check(overload, *operands, beta=beta, alpha=alpha, table=TABLE)


@pytest.mark.parametrize("overload", FUSED)
def test_fused_product_of_integers_equals_cpu(overload: str) -> None:
    operands = [rand(*s, dtype=torch.int64) for s in FUSED[overload]]
    check(overload, *operands, beta=3, alpha=-2, table=TABLE)


@pytest.mark.parametrize("overload", [o for o in FUSED if o != "aten::addr"])
def test_fused_product_with_beta_zero_ignores_nan(overload: str) -> None:
    first, *rest = (rand(*s) for s in FUSED[overload])
    check(overload, torch.full_like(first, NAN), *rest, beta=0, table=TABLE)
    check(overload, torch.full_like(first, NAN), *rest, beta=0.0, table=TABLE)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 1)])
def test_addmm_broadcasts_its_input(shape: tuple[int, ...]) -> None:
    check("aten::addmm", rand(*shape), rand(3, 4), rand(4, 5), beta=0.5, table=TABLE)


def test_addmm_bfloat16_rounds_once() -> None:
    operands = [positive(*s, dtype=torch.bfloat16) for s in FUSED["aten::addmm"]]
    row = next(r for r in TABLE if r.overload == "aten::addmm")
    exact = torch.addmm(*(x.double() for x in operands)).bfloat16()
    assert_close(lower(row, operands, {}), exact)


def test_addr_of_bools_is_or_of_and() -> None:
    a, b, c = (rand(*s, dtype=torch.int64) > 0 for s in FUSED["aten::addr"])
    check("aten::addr", a, b, c, beta=True, alpha=True, table=TABLE)


@pytest.mark.parametrize("use_gelu", [False, True])
def test_addmm_activation_equals_cpu(use_gelu: bool) -> None:
    operands = [rand(*s) for s in FUSED["aten::addmm"]]
    check("aten::_addmm_activation", *operands, beta=0.5, use_gelu=use_gelu, table=TABLE)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (0,)])
@pytest.mark.parametrize("with_bias", [False, True])
def test_linear_equals_cpu(lead: tuple[int, ...], with_bias: bool) -> None:
    bias = rand(5) if with_bias else None
    check("aten::linear", rand(*lead, 4), rand(5, 4), bias, table=TABLE)


def test_linear_with_vector_weight_equals_cpu() -> None:
    check("aten::linear", rand(2, 3, 4), rand(4), table=TABLE)


def test_linear_backward_equals_autograd() -> None:
    x, weight, grad = rand(2, 3, 4), rand(5, 4), rand(2, 3, 5)
    leaves = [t.clone().requires_grad_() for t in (x, weight, rand(5))]
    expected = torch.autograd.grad(torch.nn.functional.linear(*leaves), leaves, grad)
    row = next(r for r in TABLE if r.overload == "aten::linear_backward")
    assert_close(lower(row, (x, grad, weight, [True] * 3), {}), list(expected))


def test_int_mm_accumulates_in_int32() -> None:
    a = torch.full((32, 64), 127, dtype=torch.int8)
    check("aten::_int_mm", a, a.t().contiguous(), table=TABLE)


def test_weight_int8pack_mm_equals_cpu() -> None:
    weight = torch.randint(-128, 127, (32, 32), generator=_GENERATOR, dtype=torch.int8)
    x, scales = positive(4, 32, dtype=torch.bfloat16), positive(32, dtype=torch.bfloat16)
    row = next(r for r in TABLE if r.overload == "aten::_weight_int8pack_mm")
    expected = ((x.double() @ weight.double().t()) * scales.double()).bfloat16()
    assert_close(lower(row, (x, weight, scales), {}), expected)


@pytest.mark.parametrize("overload", ["aten::mm.dtype", "aten::bmm.dtype"])
def test_product_into_float32_keeps_the_sum(overload: str) -> None:
    a, b = (positive(*s, dtype=torch.bfloat16) for s in PLAIN[overload.removesuffix(".dtype")])
    row = next(r for r in TABLE if r.overload == overload)
    assert_close(lower(row, (a, b, torch.float32), {}), torch.matmul(a.float(), b.float()))


@pytest.mark.parametrize("overload", ["aten::addmm.dtype", "aten::baddbmm.dtype"])
def test_fused_product_into_float32_keeps_the_sum(overload: str) -> None:
    shapes = FUSED[overload.removesuffix(".dtype")]
    c, a, b = (positive(*s, dtype=torch.bfloat16) for s in shapes)
    row = next(r for r in TABLE if r.overload == overload)
    actual = lower(row, (c.float(), a, b, torch.float32), {"beta": 2.0})
    assert_close(actual, 2 * c.float() + torch.matmul(a.float(), b.float()))


@pytest.mark.parametrize("per_row", [False, True])
def test_scaled_mm_equals_its_definition(per_row: bool) -> None:
    a, b = rand(16, 32).to(torch.float8_e4m3fn), rand(16, 32).to(torch.float8_e4m3fn).t()
    scale_a = positive(16, 1, dtype=torch.float32) if per_row else torch.tensor(0.5)
    scale_b = positive(1, 16, dtype=torch.float32) if per_row else torch.tensor(2.0)
    row = next(r for r in TABLE if r.overload == "aten::_scaled_mm")
    actual = lower(row, (a, b, scale_a, scale_b, None, None, torch.float32), {})
    assert_close(actual, (a.float() @ b.float()) * scale_a * scale_b)


ENDS = torch.tensor([16, 16, 48], dtype=torch.int32)
GROUPED = {
    "rows": ((48, 32), (3, 32, 16), ENDS),
    "contracted": ((16, 48), (48, 32), ENDS),
    "columns": ((3, 16, 32), (32, 48), ENDS),
    "batched": ((3, 16, 32), (3, 32, 16), None),
}


@pytest.mark.parametrize("case", GROUPED)
def test_grouped_mm_equals_cpu(case: str) -> None:
    first, second, ends = GROUPED[case]
    a, b = positive(*first, dtype=torch.bfloat16), positive(*second, dtype=torch.bfloat16)
    check("aten::_grouped_mm", a, b, ends, table=TABLE)


def test_trilinear_equals_cpu() -> None:
    operands = rand(2, 3), rand(5, 3, 4), rand(2, 4)
    check("aten::_trilinear", *operands, [1, 3], [0], [1, 2], [2, 3], table=TABLE)


def _primitives(function: Callable[..., jax.Array], *shapes: tuple[int, ...]) -> list[str]:
    """The names of the primitives whose results reach the output of a traced function."""
    with layout.remembering():
        traced = jax.make_jaxpr(function)(*(jnp.zeros(s, jnp.float32) for s in shapes))
    needed, names = set(traced.jaxpr.outvars), []
    for equation in reversed(traced.jaxpr.eqns):
        if needed & set(equation.outvars):
            names.append(equation.primitive.name)
            needed |= {v for v in equation.invars if not hasattr(v, "val")}
    return names


def test_mm_of_remembered_transposes_is_one_dot() -> None:
    def both(a: jax.Array, b: jax.Array) -> jax.Array:
        return mm(layout.permuted(a, (1, 0)), layout.permuted(b, (1, 0)))

    assert _primitives(both, (4, 3), (5, 4)) == ["dot_general"]


def test_linear_contracts_the_weight_as_it_is_stored() -> None:
    names = _primitives(linear, (2, 3, 4), (5, 4))
    assert "transpose" not in names
    assert names.count("dot_general") == 1


def test_mm_of_remembered_transpose_has_the_values_of_the_transpose() -> None:
    a, b = rand(4, 3), rand(5, 4)
    with layout.remembering():
        out = mm(
            layout.permuted(jnp.asarray(a.numpy()), (1, 0)),
            layout.permuted(jnp.asarray(b.numpy()), (1, 0)),
        )
    torch.testing.assert_close(torch.from_numpy(jax.device_get(out).copy()), a.t() @ b.t())
