# SPDX-License-Identifier: Apache-2.0
"""The benchmark's models written by hand in JAX, in the form XLA:CPU runs fastest.

A linear layer is one 2-D ``dot_general`` that contracts the weight's second dimension, so
that no weight is transposed. Parameters are the torch model's, by name; every step donates
parameters and optimizer state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

Params = dict[str, jax.Array]


def linear(params: Params, name: str, x: jax.Array) -> jax.Array:
    """``x @ W.T + b`` on the last dimension."""
    flat = x.reshape(-1, x.shape[-1])
    y = lax.dot_general(flat, params[f"{name}.weight"], (((1,), (1,)), ((), ())))
    if f"{name}.bias" in params:
        y = y + params[f"{name}.bias"]
    return y.reshape(*x.shape[:-1], y.shape[-1])


def layer_norm(params: Params, name: str, x: jax.Array) -> jax.Array:
    """Over the last dimension, eps 1e-5."""
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    variance = (centred * centred).mean(-1, keepdims=True)
    scaled = centred * lax.rsqrt(variance + 1e-5)
    return scaled * params[f"{name}.weight"] + params[f"{name}.bias"]


def cross_entropy(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean over all rows."""
    logits = logits.reshape(-1, logits.shape[-1])
    chosen = jnp.take_along_axis(logits, targets.reshape(-1, 1), axis=1)[:, 0]
    return (jax.nn.logsumexp(logits, axis=1) - chosen).mean()


def attention(params: Params, name: str, x: jax.Array, heads: int) -> jax.Array:
    """Causal self-attention; the projections are `qkv` and `out`."""
    batch, length, width = x.shape
    q, k, v = jnp.split(linear(params, f"{name}.qkv", x), 3, axis=-1)

    def split(t: jax.Array) -> jax.Array:
        return t.reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)

    q, k, v = split(q), split(k), split(v)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) * (width // heads) ** -0.5
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
    mixed = jnp.einsum("bhqk,bhkd->bhqd", weights, v)
    return linear(params, f"{name}.out", mixed.transpose(0, 2, 1, 3).reshape(batch, length, width))


def gpt_loss(params: Params, tokens: jax.Array, targets: jax.Array, *, layers: int, heads: int):
    """Loss of `models.GPT`."""
    x = params["token.weight"][tokens] + params["position.weight"][: tokens.shape[1]]
    for i in range(layers):
        block = f"blocks.{i}"
        x = x + attention(
            params, f"{block}.attention", layer_norm(params, f"{block}.norm1", x), heads
        )
        h = linear(params, f"{block}.up", layer_norm(params, f"{block}.norm2", x))
        x = x + linear(params, f"{block}.down", jax.nn.gelu(h, approximate=False))
    x = layer_norm(params, "norm", x)
    flat = x.reshape(-1, x.shape[-1])
    logits = lax.dot_general(flat, params["token.weight"], (((1,), (1,)), ((), ())))
    return cross_entropy(logits, targets)


def _conv(params: Params, name: str, x: jax.Array, stride: int) -> jax.Array:
    weight = params[f"{name}.weight"]
    pad = weight.shape[2] // 2
    return lax.conv_general_dilated(
        x, weight, (stride, stride), ((pad, pad), (pad, pad)),
        dimension_numbers=("NHWC", "OIHW", "NHWC"),
    )  # fmt: skip


def _batch_norm(params: Params, state: Params, new: Params, name: str, x: jax.Array) -> jax.Array:
    mean = x.mean((0, 1, 2))
    centred = x - mean
    variance = (centred * centred).mean((0, 1, 2))
    count = x.size // x.shape[-1]
    running_mean, running_var = f"{name}.running_mean", f"{name}.running_var"
    new[running_mean] = 0.9 * state[running_mean] + 0.1 * mean
    new[running_var] = 0.9 * state[running_var] + 0.1 * variance * count / (count - 1)
    scale = params[f"{name}.weight"] * lax.rsqrt(variance + 1e-5)
    return centred * scale + params[f"{name}.bias"]


def resnet_loss(params: Params, state: Params, images: jax.Array, targets: jax.Array):
    """Loss of `models.ResNet` and its new running statistics.

    Channels last, which XLA:CPU runs in two thirds of the time of channels first.
    """
    new: Params = {}

    def unit(name: str, norm: str, x: jax.Array, stride: int) -> jax.Array:
        return _batch_norm(params, state, new, norm, _conv(params, name, x, stride))

    x = jax.nn.relu(unit("stem", "stem_norm", images.transpose(0, 2, 3, 1), 1))
    for i, stride in enumerate((1, 2, 2)):
        block = f"blocks.{i}"
        h = jax.nn.relu(unit(f"{block}.conv1", f"{block}.norm1", x, stride))
        h = unit(f"{block}.conv2", f"{block}.norm2", h, 1)
        short = x
        if f"{block}.skip.weight" in params:
            short = unit(f"{block}.skip", f"{block}.skip_norm", x, stride)
        x = jax.nn.relu(h + short)
    return cross_entropy(linear(params, "head", x.mean((1, 2))), targets), new


def _perceptron(params: Params, name: str, x: jax.Array) -> jax.Array:
    x, layer = linear(params, f"{name}.0", x), 2
    while f"{name}.{layer}.weight" in params:
        x, layer = linear(params, f"{name}.{layer}", jax.nn.relu(x)), layer + 2
    return x


def dlrm_loss(params: Params, dense: jax.Array, bags: jax.Array, targets: jax.Array):
    """Loss of `models.DLRM`; `bags` is ``[tables, batch, indices]``."""
    x = jax.nn.relu(_perceptron(params, "bottom", dense))
    features = [x]
    for i in range(bags.shape[0]):
        features.append(params[f"tables.{i}.weight"][bags[i]].sum(1))
    stacked = jnp.stack(features, 1)
    crossed = jnp.einsum("bij,bkj->bik", stacked, stacked)
    row, column = jnp.tril_indices(len(features), -1)
    joined = jnp.concatenate([x, crossed[:, row, column]], axis=1)
    logits = _perceptron(params, "top", joined)[:, 0]
    loss = jnp.maximum(logits, 0) - logits * targets + jnp.log1p(jnp.exp(-jnp.abs(logits)))
    return loss.mean()


def adamw(params: Params, grads: Params, first: Params, second: Params, count: jax.Array):
    """One AdamW step (lr 1e-3, betas 0.9 and 0.999, eps 1e-8, decay 0.01)."""
    correction1 = 1 - 0.9**count
    correction2 = 1 - 0.999**count
    new: tuple[Params, Params, Params] = ({}, {}, {})
    for name, grad in grads.items():
        m = 0.9 * first[name] + 0.1 * grad
        v = 0.999 * second[name] + 0.001 * grad * grad
        p = params[name] * (1 - 1e-5)
        new[0][name] = p - 1e-3 * (m / correction1) / (jnp.sqrt(v / correction2) + 1e-8)
        new[1][name] = m
        new[2][name] = v
    return new


def adamw_step(loss_of: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted step ``(state, batch...) -> (state, loss)``; state is (p, m, v, count)."""

    def step(state: Any, *batch: jax.Array) -> Any:
        params, first, second, count = state
        loss, grads = jax.value_and_grad(loss_of)(params, *batch)
        count = count + 1
        return (*adamw(params, grads, first, second, count), count), loss

    return jax.jit(step, donate_argnums=0)


def momentum_step(loss_of: Callable[..., Any]) -> Callable[..., Any]:
    """A jitted step of SGD (lr 0.05, momentum 0.9); state is (p, velocity, statistics)."""

    def step(state: Any, *batch: jax.Array) -> Any:
        params, velocity, statistics = state
        (loss, statistics), grads = jax.value_and_grad(loss_of, has_aux=True)(
            params, statistics, *batch
        )
        velocity = {n: 0.9 * velocity[n] + grads[n] for n in params}
        params = {n: params[n] - 0.05 * velocity[n] for n in params}
        return (params, velocity, statistics), loss

    return jax.jit(step, donate_argnums=0)
