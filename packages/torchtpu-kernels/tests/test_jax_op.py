# SPDX-License-Identifier: Apache-2.0
"""Named ops made of JAX functions."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
import pytest
import torch
from torch import Tensor
from torchtpu_kernels.errors import (
    KernelArgumentError,
    KernelDefinitionError,
    KernelNotSupportedError,
)
from torchtpu_kernels.pallas import jax_op
from torchtpu_kernels.schemas import schema_of

_number = itertools.count()


def fresh(label: str) -> str:
    """An op name not used before in this process."""
    return f"torchtpu_tests::{label}_{next(_number)}"


def scale(
    x: jax.Array, others: list[jax.Array], factor: float = 2.0, *, sign: Literal["+", "-"] = "+"
) -> tuple[jax.Array, jax.Array]:
    """``factor * x + sum(others)`` and ``+-sum(x)``."""
    return x * factor + sum(others), (x if sign == "+" else -x).sum()


def test_op_is_in_torch_ops_and_equals_its_formula() -> None:
    name = fresh("scale")
    op = jax_op(name, scale)
    x, y = torch.randn(2, 3), torch.randn(3)
    called = getattr(torch.ops.torchtpu_tests, name.partition("::")[2])
    for function in (op, called):
        a, b = function(x.to("tpu"), [y.to("tpu"), y.to("tpu")], 3.0, sign="-")
        torch.testing.assert_close(a.cpu(), x * 3 + 2 * y)
        torch.testing.assert_close(b.cpu(), -x.sum())


@pytest.mark.parametrize("pass_default", [True, False])
def test_gradients_reach_tensors_and_lists(pass_default: bool) -> None:
    op = jax_op(fresh("scale"), scale)
    x = torch.randn(2, 3, device="tpu", requires_grad=True)
    y = torch.randn(3, device="tpu", requires_grad=True)
    a, b = op(x, [y, y.detach()], 2.0) if pass_default else op(x, [y, y.detach()])
    (a.sum() + 5 * b).backward()
    assert torch.equal(x.grad.cpu(), torch.full((2, 3), 7.0))
    assert torch.equal(y.grad.cpu(), torch.full((3,), 2.0))


def test_optional_tensor_may_be_absent() -> None:
    def biased(x: jax.Array, bias: jax.Array | None = None) -> jax.Array:
        return x if bias is None else x + bias

    op = jax_op(fresh("biased"), biased)
    x = torch.ones(2, device="tpu", requires_grad=True)
    assert op(x).detach().cpu().tolist() == [1.0, 1.0]
    op(x, x).sum().backward()
    assert x.grad.cpu().tolist() == [2.0, 2.0]


def test_list_of_results() -> None:
    def halves(x: jax.Array) -> list[jax.Array]:
        return jnp.split(x, 2)

    op = jax_op(fresh("halves"), halves)
    x = torch.arange(4.0, device="tpu", requires_grad=True)
    low, high = op(x)
    (low.sum() + 2 * high.sum()).backward()
    assert high.detach().cpu().tolist() == [2.0, 3.0]
    assert x.grad.cpu().tolist() == [1.0, 1.0, 2.0, 2.0]


def test_op_is_recorded_without_python_and_compiled_once() -> None:
    op = jax_op(fresh("scale"), scale)
    inputs = [torch.full((2, 3), float(i), device="tpu") for i in range(3)]
    op(inputs[0], [inputs[0]])
    before = torch.tpu.counters()
    for x in inputs:
        op(x, [x])
    after = torch.tpu.counters()
    assert after["ops"] - before["ops"] == 3
    assert after["programs"] == before["programs"]


def test_op_is_part_of_a_compiled_program() -> None:
    pytest.importorskip("torchtpu_compile", reason="compiled programs are torchtpu-compile's")
    op = jax_op(fresh("scale"), scale)
    compiled = torch.compile(lambda x, y: op(x * 2, [y])[0].relu(), backend="tpu", fullgraph=True)
    x, y = torch.randn(2, 3, device="tpu"), torch.randn(3, device="tpu")
    compiled(x, y)
    before = torch.tpu.counters()["runs"]
    actual = compiled(x, y)
    assert torch.tpu.counters()["runs"] - before == 1
    torch.testing.assert_close(actual.cpu(), (x.cpu() * 4 + y.cpu()).relu())


def test_vmap_equals_a_loop() -> None:
    op = jax_op(fresh("scale"), scale)
    x, y = torch.randn(4, 3, device="tpu"), torch.randn(3, device="tpu")
    batched = torch.vmap(lambda row: op(row, [y])[0])(x)
    torch.testing.assert_close(batched.cpu(), x.cpu() * 2 + y.cpu())


def test_gradient_can_be_replaced() -> None:
    def double(x: jax.Array) -> jax.Array:
        return x * 2

    op = jax_op(fresh("double"), double)
    op.register_autograd(lambda ctx, g: g * 100)
    x = torch.ones(2, device="tpu", requires_grad=True)
    op(x).sum().backward()
    assert x.grad.cpu().tolist() == [100.0, 100.0]


def test_op_passes_torchs_own_checks() -> None:
    op = jax_op(fresh("scale"), scale)
    x = torch.randn(2, 3, device="tpu", requires_grad=True)
    outcome = torch.library.opcheck(
        op, (x, [x.detach()]), test_utils=("test_schema", "test_faketensor")
    )
    assert set(outcome.values()) == {"SUCCESS"}


class Kind(enum.Enum):
    A = "a"
    B = "b"


def test_schema_of_every_supported_annotation() -> None:
    def function(
        x: jax.Array,
        y: Tensor | None,
        many: Sequence[jax.Array],
        n: int,
        kind: Kind = Kind.A,
        sizes: list[int] = [1, 2],  # noqa: B006
        *,
        dtype: torch.dtype,
        flag: bool = False,
    ) -> tuple[jax.Array, jax.Array]:
        raise AssertionError("only its annotations are read")

    assert schema_of("a::b", function).text == (
        '(Tensor x, Tensor? y, Tensor[] many, int n, str kind="a", int[] sizes=[1, 2], *, '
        "ScalarType dtype, bool flag=False) -> (Tensor, Tensor)"
    )


def no_annotation(x) -> jax.Array:
    return x


def odd_annotation(x: jax.Array, table: dict) -> jax.Array:
    return x


def odd_return(x: jax.Array) -> dict:
    return {}


def variadic(*xs: jax.Array) -> jax.Array:
    return xs[0]


def keyword_tensor(*, x: jax.Array) -> jax.Array:
    return x


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_annotation, "'x' has no annotation"),
        (odd_annotation, "'table'"),
        (odd_return, "returns"),
        (variadic, r"\*xs"),
        (keyword_tensor, "keyword-only"),
    ],
)
def test_signatures_without_a_schema_are_refused(function, message: str) -> None:
    with pytest.raises(KernelDefinitionError, match=message):
        jax_op(fresh("bad"), function)


@pytest.mark.parametrize("name", ["scale", "a::b::c", "::b"])
def test_name_without_one_namespace_is_refused(name: str) -> None:
    with pytest.raises(KernelDefinitionError, match="namespace::op"):
        jax_op(name, scale)


def test_error_of_the_jax_function_reaches_the_caller() -> None:
    op = jax_op(fresh("scale"), scale)
    with pytest.raises(TypeError, match="incompatible shapes"):
        op(torch.ones(2, device="tpu"), [torch.ones(3, device="tpu")])


def test_mesh_is_not_supported_yet() -> None:
    with pytest.raises(KernelNotSupportedError, match="mesh"):
        jax_op(fresh("scale"), scale, mesh=object())


def test_cpu_tensors_are_refused() -> None:
    op = jax_op(fresh("scale"), scale)
    with pytest.raises(KernelArgumentError, match=r"to\('tpu'\)"):
        op(torch.ones(2), [torch.ones(2)])
