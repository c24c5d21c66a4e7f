# SPDX-License-Identifier: Apache-2.0
"""JAX functions on tensors of device tpu: values, structure, statics, donation, errors."""

from __future__ import annotations

import enum
import functools

import jax
import jax.numpy as jnp
import pytest
import torch
from jax.experimental.layout import Layout, with_layout_constraint
from torch import Tensor
from torchtpu_kernels.errors import (
    KernelArgumentError,
    KernelDefinitionError,
    KernelNotSupportedError,
)
from torchtpu_kernels.pallas import JaxCallable, custom_jax_kernel


@pytest.fixture
def x() -> Tensor:
    return torch.randn(3, 4, device="tpu")


def test_function_and_both_decorator_forms_give_a_callable(x: Tensor) -> None:
    @custom_jax_kernel
    def plain(a):
        return a + 1

    @custom_jax_kernel(name="renamed")
    def named(a):
        return a + 1

    made = custom_jax_kernel(lambda a: a + 1, "third")
    for kernel, name in ((plain, "plain"), (named, "renamed"), (made, "third")):
        assert isinstance(kernel, JaxCallable)
        assert kernel.name == name
        assert torch.equal(kernel(x).cpu(), x.cpu() + 1)


def test_jitted_and_partial_functions_are_accepted(x: Tensor) -> None:
    def scaled(a, factor):
        return a * factor

    jitted = custom_jax_kernel(jax.jit(lambda a: a - 1))
    bound = custom_jax_kernel(functools.partial(scaled, factor=3.0))
    assert torch.equal(jitted(x).cpu(), x.cpu() - 1)
    assert torch.equal(bound(x).cpu(), x.cpu() * 3)
    assert bound.name == "scaled"


def test_nested_results_keep_their_structure(x: Tensor) -> None:
    kernel = custom_jax_kernel(lambda a: {"twice": a * 2, "rest": (a.sum(), None, [3])})
    result = kernel(x)
    assert torch.equal(result["twice"].cpu(), x.cpu() * 2)
    total, nothing, numbers = result["rest"]
    torch.testing.assert_close(total.cpu(), x.cpu().sum())
    assert nothing is None
    assert numbers == [3]


def test_result_with_an_order_in_memory_leaves_the_others_theirs(x: Tensor) -> None:
    @custom_jax_kernel
    def kernel(a: jax.Array) -> tuple[jax.Array, jax.Array]:
        return with_layout_constraint(a * 2, Layout((1, 0))), a.T + 1

    twice, turned = kernel(x)
    assert torch.equal(twice.cpu(), x.cpu() * 2)
    assert torch.equal(turned.cpu(), x.cpu().T + 1)


def test_lists_optionals_and_keywords_are_operands(x: Tensor) -> None:
    @custom_jax_kernel
    def add(parts, bias=None):
        total = sum(parts)
        return total if bias is None else total + bias

    assert torch.equal(add([x, x]).cpu(), x.cpu() * 2)
    assert torch.equal(add((x, x, x), bias=x).cpu(), x.cpu() + x.cpu() + x.cpu() + x.cpu())


def test_views_are_read_in_their_own_shape(x: Tensor) -> None:
    kernel = custom_jax_kernel(lambda a: a * 1.0)
    assert torch.equal(kernel(x.t()[1:]).cpu(), x.cpu().t()[1:])


def test_result_of_identity_has_storage_of_its_own(x: Tensor) -> None:
    before = x.cpu()
    result = custom_jax_kernel(lambda a: a)(x)
    result.add_(1)
    assert torch.equal(x.cpu(), before)
    assert torch.equal(result.cpu(), before + 1)


def test_repeated_calls_compile_once() -> None:
    kernel = custom_jax_kernel(lambda a: jnp.cos(a) + 1)
    inputs = [torch.full((5,), float(i), device="tpu") for i in range(3)]
    kernel(inputs[0])
    before = torch.tpu.counters()["programs"]
    for value in inputs:
        kernel(value)
    assert torch.tpu.counters()["programs"] == before


class Mode(enum.Enum):
    UP = "up"
    DOWN = "down"


def test_static_arguments_are_constants_by_position_and_name(x: Tensor) -> None:
    @functools.partial(custom_jax_kernel, static_argnums=1, static_argnames=("mode",))
    def shift(a, steps: int, *, mode: Mode = Mode.UP):
        for _ in range(steps):
            a = a + 1 if mode is Mode.UP else a - 1
        return a

    torch.testing.assert_close(shift(x, 2).cpu(), x.cpu() + 2)
    torch.testing.assert_close(shift(x, 3).cpu(), x.cpu() + 3)
    torch.testing.assert_close(shift(x, 2, mode="down").cpu(), x.cpu() - 2)


def test_static_dtype_and_list_become_numpy_dtype_and_tuple(x: Tensor) -> None:
    @functools.partial(custom_jax_kernel, static_argnames=("dtype", "shape"))
    def cast(a, dtype, shape):
        assert isinstance(shape, tuple)
        return a.astype(dtype).reshape(shape)

    result = cast(x, torch.int32, [4, 3])
    assert torch.equal(result.cpu(), x.cpu().int().view(4, 3))


def test_equal_static_values_of_different_types_are_different_constants() -> None:
    kernel = custom_jax_kernel(lambda a, k: a * k, static_argnums=1)
    ones = torch.ones(2, dtype=torch.int32, device="tpu")
    assert kernel(ones, 1).dtype == torch.int32
    assert kernel(ones, 1.0).dtype == torch.float32


def test_jax_defaults_hold_unless_an_operand_has_64_bits() -> None:
    kernel = custom_jax_kernel(lambda a: (a.argmax(), a * 2))
    index, twice = kernel(torch.arange(4.0, device="tpu"))
    assert (index.dtype, twice.dtype) == (torch.int32, torch.float32)
    big = torch.tensor([2**40, 1], device="tpu")
    index, twice = kernel(big)
    assert (index.dtype, twice.dtype) == (torch.int64, torch.int64)
    assert twice.cpu().tolist() == [2**41, 2]


def test_aliased_input_holds_the_result() -> None:
    kernel = custom_jax_kernel(lambda a, b: (a + b, b.sum()), input_output_aliases={0: 0})
    a, b = torch.ones(1 << 18, device="tpu"), torch.full((1 << 18,), 2.0, device="tpu")
    before = torch.tpu.counters()["donated_bytes"]
    first, total = kernel(a, b)
    assert first is a
    assert torch.equal(a.cpu(), torch.full((1 << 18,), 3.0))
    assert total.item() == 2.0 * (1 << 18)
    assert torch.tpu.counters()["donated_bytes"] - before == a.nbytes


def test_donated_argument_gives_its_storage_to_a_result_of_its_shape() -> None:
    kernel = custom_jax_kernel(lambda a: (a.sum(), a * 2), donate_argnums=0)
    a = torch.ones(1 << 18, device="tpu")
    pointer = a.untyped_storage().data_ptr()
    _, twice = kernel(a)
    assert twice.untyped_storage().data_ptr() == pointer
    assert twice[:2].cpu().tolist() == [2.0, 2.0]


def test_donating_a_tensor_that_requires_grad_is_refused() -> None:
    kernel = custom_jax_kernel(lambda a: a + 1, donate_argnums=0)
    a = torch.ones(3, device="tpu", requires_grad=True)
    with pytest.raises(KernelArgumentError, match=r"no_grad"):
        kernel(a)
    with torch.no_grad():
        assert torch.equal(kernel(a).cpu(), torch.full((3,), 2.0))


@pytest.mark.parametrize("argument", ["mesh", "input_partition_specs", "output_partition_specs"])
def test_mesh_and_specs_are_not_supported_yet(argument: str) -> None:
    with pytest.raises(KernelNotSupportedError, match=argument):
        custom_jax_kernel(lambda a: a, **{argument: ("data",)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_argnums": 5}, "argument 5"),
        ({"static_argnames": "nope"}, "nope"),
        ({"donate_argnums": 0, "input_output_aliases": {1: 0}}, "different"),
        ({"input_output_aliases": {0: 0, 1: 0}}, "one result into two"),
    ],
)
def test_contradictory_definitions_are_refused(options: dict, message: str) -> None:
    with pytest.raises(KernelDefinitionError, match=message):
        custom_jax_kernel(lambda a, b: a, **options)


def test_alias_of_another_shape_is_refused(x: Tensor) -> None:
    kernel = custom_jax_kernel(lambda a: a.sum(), input_output_aliases={0: 0})
    with pytest.raises(KernelDefinitionError, match=r"shape \(\)"):
        kernel(x)


def test_number_that_is_not_static_is_refused(x: Tensor) -> None:
    kernel = custom_jax_kernel(lambda a, k: a * k)
    with pytest.raises(KernelArgumentError, match="static_argnums"):
        kernel(x, 2.0)


def test_tensor_as_static_argument_is_refused(x: Tensor) -> None:
    kernel = custom_jax_kernel(lambda a, k: a * k, static_argnums=1)
    with pytest.raises(KernelDefinitionError, match="tensor was passed"):
        kernel(x, x)


def test_wrong_number_of_arguments_is_a_type_error(x: Tensor) -> None:
    with pytest.raises(TypeError, match="missing a required argument"):
        custom_jax_kernel(lambda a, b: a + b)(x)


def test_cpu_tensor_is_refused() -> None:
    with pytest.raises(KernelArgumentError, match=r"to\('tpu'\)"):
        custom_jax_kernel(lambda a: a)(torch.ones(2))


def test_error_of_the_jax_function_reaches_the_caller(x: Tensor) -> None:
    with pytest.raises(TypeError, match="incompatible shapes"):
        custom_jax_kernel(lambda a, b: a + b)(x, x[:, :3])


def test_module_is_attached_to_torch_tpu(x: Tensor) -> None:
    assert torch.tpu.pallas.custom_jax_kernel is custom_jax_kernel
