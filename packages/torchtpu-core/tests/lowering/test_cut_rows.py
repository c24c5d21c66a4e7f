# SPDX-License-Identifier: Apache-2.0
"""Losses of logits that were cut along tokens are computed of the rows of all tokens on a TPU."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from torchtpu_core.lowering import (
    copies,
    layout,
    losses,
    mxu,
    shape,
    softmax,
    storage_views,
    view_ops,
)
from torchtpu_core.lowering.storage_views import Geometry, Plan

B, T, C = 2, 16, 24
RANDOM = np.random.default_rng(0)
LABELS = RANDOM.integers(0, C, B * (T - 1))


def row(module: object, overload: str) -> Callable[..., jax.Array]:
    """The lowering of an operator."""
    return next(r.function for r in module.TABLE if r.overload == f"aten::{overload}")


def front(logits: jax.Array) -> jax.Array:
    """The view of all tokens but the last."""
    return view_ops.slice_dim(logits, 1, 0, T - 1)


def _window(logits: jax.Array, start: np.int32 | jax.Array) -> jax.Array:
    whole = Geometry((B, T, C), (T * C, C, 1), torch.float32)
    part = Geometry((B, T - 1, C), (T * C, C, 1), torch.float32)
    plan = Plan("slice", (B, T, C), part.sizes, (0, 1, 2), 3)
    return storage_views.read(logits, whole, part, plan, [np.int32(0), start, np.int32(0)])


def window(logits: jax.Array) -> jax.Array:
    """The same view as Fused Eager reads it where its start is an operand."""
    return _window(logits, jnp.int32(0))


def known_window(logits: jax.Array) -> jax.Array:
    """And where the program is for windows that start at 0."""
    return _window(logits, np.int32(0))


def loss_and_gradient(
    logits: jax.Array, labels: jax.Array, view: Callable[[jax.Array], jax.Array], dtype: torch.dtype
) -> tuple[jax.Array, jax.Array]:
    """A language model's loss and the gradient of its logits, by operators of PyTorch."""
    forward, backward = (row(losses, f"nll_loss_{way}") for way in ("forward", "backward"))
    rows = layout.reshaped(view(logits), (B * (T - 1), C))
    rows = row(copies, "_to_copy")(rows, dtype=dtype)
    logs = softmax.log_softmax(rows, 1, False)
    loss, total = forward(logs, labels, None, 1, -100)
    ones = jnp.ones((), logs.dtype)
    grad = backward(ones, logs, labels, None, 1, -100, total)
    grad = softmax.log_softmax_backward(grad, logs, 1, dtype)
    grad = layout.reshaped(grad, (B, T - 1, C))
    return loss, shape._slice_backward(grad, (B, T, C), 1, 0, T - 1, 1)


def results(logits: np.ndarray, platform: str, *how: object) -> tuple[str, list[np.ndarray]]:
    """The program for a platform, and its results."""

    def remembered(logits: jax.Array, labels: jax.Array) -> tuple[jax.Array, jax.Array]:
        with layout.remembering():
            return loss_and_gradient(logits, labels, *how)

    with mxu.for_platform(platform):
        text = str(jax.make_jaxpr(remembered)(logits, LABELS))
        return text, [np.asarray(one, np.float32) for one in jax.jit(remembered)(logits, LABELS)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("view", [front, window, known_window])
def test_loss_of_cut_logits_is_computed_of_all_rows(view, dtype) -> None:
    logits = RANDOM.standard_normal((B, T, C)).astype(np.float32)
    plain, expected = results(logits, "cpu", view, dtype)
    text, found = results(logits, "tpu", view, dtype)
    exponentials = [line for line in text.splitlines() if " = exp " in line]
    assert f"[{B * (T - 1)},{C}] = exp " in plain
    assert exponentials
    assert all(f"[{B * T},{C}]" in line for line in exponentials)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize(
    ("view", "padded"), [(front, False), (known_window, False), (window, True)]
)
def test_gradient_of_a_cut_that_starts_where_it_is_known_is_not_padded(view, padded) -> None:
    logits = RANDOM.standard_normal((B, T, C)).astype(np.float32)
    assert ("= pad" in results(logits, "tpu", view, torch.float32)[0]) == padded


def test_what_is_cut_off_has_no_gradient_whatever_it_is() -> None:
    logits = RANDOM.standard_normal((B, T, C)).astype(np.float32)
    _, (expected, _) = results(logits, "tpu", front, torch.float32)
    logits[:, -1] = np.nan
    _, (loss, gradient) = results(logits, "tpu", front, torch.float32)
    assert loss == expected
    assert not gradient[:, -1].any()


def test_gradient_of_another_cut_is_padded() -> None:
    """The gradient of what is shifted against itself is cut elsewhere than the slice was."""

    def shifted(x: jax.Array) -> jax.Array:
        part = view_ops.slice_dim(x, 1, 1, T)
        return shape._slice_backward(part, (B, T, C), 1, 0, T - 1, 1)

    x = RANDOM.standard_normal((B, T, C)).astype(np.float32)
    with mxu.for_platform("tpu"), layout.remembering():
        found = shifted(jnp.asarray(x))
    np.testing.assert_array_equal(found[:, :-1], x[:, 1:])
    assert not found[:, -1].any()


def test_few_rows_are_computed_alone() -> None:
    x = jnp.asarray(RANDOM.standard_normal((B, T, C)).astype(np.float32))
    with mxu.for_platform("tpu"), layout.remembering():
        rows = layout.reshaped(view_ops.slice_dim(x, 1, 0, 3), (B * 3, C))
        text = str(jax.make_jaxpr(lambda: softmax.log_softmax(rows, 1, False))())
    assert f"[{B * T},{C}] = exp" not in text
