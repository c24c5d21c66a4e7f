# SPDX-License-Identifier: Apache-2.0
"""Matrix products made of bfloat16 passes, against bfloat16 parts computed by PyTorch."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torchtpu_core.lowering import convolution_products, matmul, mxu
from torchtpu_core.lowering.convolution_geometry import geometry_of

_PASSES = {"medium": 1, "high": 3, "highest": 6}


@pytest.fixture
def _simulated():
    mxu.simulate(True)
    yield
    mxu.simulate(False)


def _bf16_parts(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    parts = []
    for _ in range(count):
        part = x.bfloat16().float()
        parts.append(part.double())
        x = x - part
    return parts


def _passes(x: torch.Tensor, y: torch.Tensor, passes: int) -> torch.Tensor:
    """The sum of the products of parts i and j of which i + j is small enough, in float64."""
    count = {1: 1, 3: 2, 6: 3}[passes]
    left, right = _bf16_parts(x, count), _bf16_parts(y, count)
    terms = [left[i] @ right[j] for i in range(count) for j in range(count) if i + j < count]
    assert len(terms) == passes
    return sum(terms)


def _product(x: torch.Tensor, y: torch.Tensor) -> jax.Array:
    # A function of its own: JAX remembers programs by function, and the precision is none.
    return jax.jit(lambda a, b: matmul.mm(a, b))(jnp.asarray(x.numpy()), jnp.asarray(y.numpy()))


def _operands(rows: int = 8, inner: int = 16, columns: int = 4):
    generator = torch.Generator().manual_seed(0)
    shapes = ((rows, inner), (inner, columns))
    return [torch.randn(shape, generator=generator) for shape in shapes]


@pytest.mark.usefixtures("_simulated")
@pytest.mark.parametrize("name", _PASSES)
def test_matmul_simulated_is_the_sum_of_its_bf16_passes(name):
    x, y = _operands()
    with mxu.using(name):
        actual = np.asarray(_product(x, y))
    expected = _passes(x, y, _PASSES[name])
    np.testing.assert_allclose(actual, expected.numpy(), rtol=5e-6, atol=1e-5)


@pytest.mark.usefixtures("_simulated")
def test_matmul_simulated_errors_shrink_with_the_passes():
    x, y = _operands(inner=256)
    exact = (x.double() @ y.double()).numpy()
    errors = []
    for name in _PASSES:
        with mxu.using(name):
            errors.append(np.abs(np.asarray(_product(x, y)) - exact).max())
    one, three, six = errors
    assert one > 30 * three > 30 * six


@pytest.mark.usefixtures("_simulated")
def test_matmul_simulated_keeps_infinities():
    x = jnp.array([[jnp.inf, 1.0]], jnp.float32)
    y = jnp.array([[2.0], [3.0]], jnp.float32)
    with mxu.using("highest"):
        assert float(matmul.mm(x, y)[0, 0]) == np.inf


@pytest.mark.usefixtures("_simulated")
@pytest.mark.parametrize("groups", [1, 4])
def test_convolution_simulated_medium_equals_convolution_of_rounded_operands(groups):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, 4, 6, 6, generator=generator)
    weight = torch.randn(4, 4 // groups, 3, 3, generator=generator)
    geometry = geometry_of(2, (1,), (1,), (1,), groups)
    with mxu.using("medium"):
        actual = convolution_products.forward(
            jnp.asarray(x.numpy()), jnp.asarray(weight.numpy()), geometry
        )
    rounded = (t.bfloat16().double() for t in (x, weight))
    expected = torch.nn.functional.conv2d(*rounded, padding=1, groups=groups)
    np.testing.assert_allclose(np.asarray(actual), expected.numpy(), rtol=5e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "word"), [("medium", "DEFAULT"), ("high", "HIGH"), ("highest", "HIGHEST")]
)
def test_program_text_names_the_precision_asked_for(name, word):
    x = jnp.zeros((2, 2), jnp.float32)
    with mxu.using(name):
        text = jax.jit(lambda a: matmul.mm(a, a)).lower(x).as_text()
    assert f"[{word}, {word}]" in text
