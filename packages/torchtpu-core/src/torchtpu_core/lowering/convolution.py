# SPDX-License-Identifier: Apache-2.0
"""Convolutions, forward and backward, in one to three dimensions.

The layout is the one PyTorch has (N, C, spatial); `channel_order.py` changes it for whole
programs where that is faster. What they compute is in `convolution_products.py`. Outputs of 16-bit
convolutions are rounded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from torchtpu_core.lowering import images, merged_groups, mxu
from torchtpu_core.lowering.convolution_geometry import Geometry, full, geometry_of
from torchtpu_core.lowering.convolution_products import (
    forward,
    input_gradient,
    weight_gradient,
    zeros,
)
from torchtpu_core.lowering.matmul import accumulator
from torchtpu_core.lowering.table import Lowering, native


def _bias_gradient(grad: jax.Array) -> jax.Array:
    """`(N, O, *S)` -> `(O,)`."""
    return jnp.sum(grad.astype(accumulator(grad.dtype)), axis=(0, *range(2, grad.ndim)))


def _joined_groups(image: jax.Array, g: Geometry) -> jax.Array:
    """An image of several groups' features, joined before anybody reads it.

    XLA's TPU compiler convolves `(N, G, C/G, *S)`, and would compute what reads the image in that
    shape and in float32. For a RegNetY (autocast, groups of 72 to 96 features as they are merged)
    that takes 1,368 instead of 1,293 MiB (libtpu's buffers for v5e, simulated).
    """
    if not 1 < g.groups < image.shape[1] or not mxu.lowers_for("tpu"):
        return image
    return lax.optimization_barrier(image)


def convolution(
    input: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    *_: object,
) -> jax.Array:
    """`(N, C, *S)`, `(O, C/G, *K)` (transposed: `(C, O/G, *K)`), `(O,)` -> `(N, O, *S')`."""
    spatial = input.ndim - 2
    g = geometry_of(spatial, stride, padding, dilation, groups)
    if (count := merged_groups.merges(input, weight, g)) > 1:
        weight, g = merged_groups.merged(weight, g, count)
    if transposed:
        extra = full(output_padding, spatial)
        sizes = [
            (input.shape[2 + i] - 1) * g.stride[i]
            - 2 * g.padding[i][0]
            + g.dilation[i] * (weight.shape[2 + i] - 1)
            + extra[i]
            + 1
            for i in range(spatial)
        ]
        out = input_gradient(input, weight, sizes, g)
    else:
        out = forward(input, weight, g)
    if bias is not None:
        out = out + bias.astype(out.dtype).reshape((1, -1) + (1,) * spatial)
    return images.convolved(_joined_groups(out.astype(input.dtype), g))


def convolution_backward_overrideable(
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[jax.Array | None, ...]:
    """Gradients of `convolution` for its input, weight and bias."""
    g = parts = geometry_of(input.ndim - 2, stride, padding, dilation, groups)
    given = weight.shape
    if (count := merged_groups.merges(input, weight, g)) > 1:
        weight, g = merged_groups.merged(weight, g, count)
    results: list[jax.Array | None] = [None, None, None]
    if output_mask[0]:
        if transposed:
            whole = forward(grad_output, weight, g)
            # An output padding of a stride or more leaves a position that no input reached.
            results[0] = lax.slice(whole, (0,) * whole.ndim, input.shape)
        else:
            results[0] = input_gradient(grad_output, weight, input.shape[2:], g)
    if output_mask[1] and (0 in grad_output.shape or 0 in input.shape):
        results[1] = zeros(given, weight.dtype)  # no channels in: PyTorch has none out
    elif output_mask[1]:
        pair = (input, grad_output) if transposed else (grad_output, input)
        results[1] = weight_gradient(*pair, weight.shape[2:], g)
        if count > 1:
            results[1] = merged_groups.parted(results[1], parts, count)
    if output_mask[2]:
        results[2] = _bias_gradient(grad_output)
    image, *others = (r if r is None else r.astype(input.dtype) for r in results)
    return image if image is None else images.convolved(_joined_groups(image, g)), *others


def convolution_backward(
    grad_output: jax.Array,
    input: jax.Array,
    weight: jax.Array,
    bias_sizes: Sequence[int] | None,
    *arguments: Any,
) -> tuple[jax.Array | None, ...]:
    """As `convolution_backward_overrideable`, with the size of the bias, `(O,)`."""
    image, kernel, bias = convolution_backward_overrideable(grad_output, input, weight, *arguments)
    if bias is not None and bias_sizes is not None and 0 in input.shape:
        bias = zeros(bias_sizes, bias.dtype)
    return image, kernel, bias


TABLE: tuple[Lowering, ...] = (
    native("aten::convolution", convolution),
    native("aten::_convolution", convolution),
    native("aten::convolution_overrideable", convolution),
    native("aten::convolution_backward", convolution_backward),
    native("aten::convolution_backward_overrideable", convolution_backward_overrideable),
)
