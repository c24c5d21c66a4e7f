# SPDX-License-Identifier: Apache-2.0
"""Convolutions and their two gradients on JAX values, in one to three dimensions.

The layout is the one PyTorch has (N, C, spatial). A transposed convolution is the input gradient of
a forward one, and the other way round, so the three functions here serve everything. Outputs of
16-bit convolutions are not rounded.

Legend: N batch, C input channels, O output channels, G groups, S spatial.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torchtpu_core.lowering import convolution_slices, layout, matmul, mxu
from torchtpu_core.lowering.convolution_geometry import Geometry
from torchtpu_core.lowering.convolution_phases import phases_of
from torchtpu_core.lowering.matmul import accumulator

#: Depthwise kernels up to this many taps are sums of shifted products on XLA:CPU, whose grouped
#: convolution takes 60 times as long for 3x3 on 64 channels.
_MAX_TAPS = 49


def _numbers(order: tuple[int, ...], ndim: int) -> lax.ConvDimensionNumbers:
    numbers = (*order, *range(2, ndim))
    return lax.ConvDimensionNumbers(numbers, numbers, numbers)


def zeros(shape: Sequence[int], dtype: np.dtype) -> jax.Array:
    """The result where nothing is multiplied, in the accumulator's dtype."""
    return jnp.zeros(tuple(shape), accumulator(dtype))


def _is_depthwise(weight: jax.Array, g: Geometry) -> bool:
    """Whether each group has one input channel and the kernel is small."""
    return g.groups > 1 and weight.shape[1] == 1 and _sums_taps(weight.shape[2:])


def _sums_taps(kernel: Sequence[int]) -> bool:
    """Whether a depthwise kernel is a sum of shifted products.

    A TPU's compiler would keep the shifted copies: it convolves by itself. With the MXU's numerics
    the sums would not be rounded as the MXU's are.
    """
    plain = not mxu.lowers_for("tpu") and not mxu.simulated()
    return plain and math.prod(kernel) <= _MAX_TAPS


def _taps(x: jax.Array, kernel: Sequence[int], out: Sequence[int], g: Geometry) -> list[jax.Array]:
    """For each kernel position, the part of padded `x` it meets: `(N, C, *out)` each."""
    pads = [(0, 0, 0), (0, 0, 0), *((low, high, 0) for low, high in g.padding)]
    x = lax.pad(x, jnp.zeros((), x.dtype), pads)
    parts = []
    for position in itertools.product(*(range(k) for k in kernel)):
        start = [i * d for i, d in zip(position, g.dilation, strict=True)]
        stop = [a + (n - 1) * s + 1 for a, n, s in zip(start, out, g.stride, strict=True)]
        parts.append(lax.slice(x, (0, 0, *start), (*x.shape[:2], *stop), (1, 1, *g.stride)))
    return parts


def _out_sizes(sizes: Sequence[int], kernel: Sequence[int], g: Geometry) -> list[int]:
    return [
        (n + low + high - d * (k - 1) - 1) // s + 1
        for n, k, (low, high), d, s in zip(
            sizes, kernel, g.padding, g.dilation, g.stride, strict=True
        )
    ]


def _depthwise(x: jax.Array, weight: jax.Array, g: Geometry) -> jax.Array:
    """`(N, C, *S)`, `(C*M, 1, *K)` -> `(N, C*M, *S')` as a sum over kernel positions."""
    compute = accumulator(x.dtype)
    x, weight = x.astype(compute), weight.astype(compute)
    if weight.shape[0] != g.groups:
        x = jnp.repeat(x, weight.shape[0] // g.groups, axis=1)
    kernel = weight.shape[2:]
    factors = weight.reshape((weight.shape[0], -1))
    lane = (1, -1) + (1,) * len(kernel)
    parts = _taps(x, kernel, _out_sizes(x.shape[2:], kernel, g), g)
    return sum(part * factors[:, i].reshape(lane) for i, part in enumerate(parts))  # type: ignore[return-value]


def forward(x: jax.Array, weight: jax.Array, g: Geometry) -> jax.Array:
    """`(N, C, *S)`, `(O, C/G, *K)` -> `(N, O, *S')` in the accumulator's dtype."""
    if 0 in x.shape or 0 in weight.shape:
        sizes = _out_sizes(x.shape[2:], weight.shape[2:], g)
        return zeros((x.shape[0], weight.shape[0], *sizes), x.dtype)
    if _is_depthwise(weight, g):
        return _depthwise(x, weight, g)
    if _is_pointwise(weight.shape[2:], g):
        x, g = _sampled(x, g), replace(g, stride=(1,) * len(g.stride))
    kernel, sizes = weight.shape[2:], x.shape[2:]
    phases = phases_of(x.shape, kernel, _out_sizes(sizes, kernel, g), g)
    if phases is not None:
        split = phases.split_input(x), phases.split_weight(weight)
        return _convolve(*split, phases.geometry)
    return _convolve(x, weight, g)


def _is_pointwise(kernel: Sequence[int], g: Geometry) -> bool:
    """Whether a strided convolution only mixes channels: of the positions that it samples."""
    padded = any(n for pair in g.padding for n in pair)
    return math.prod(kernel) == 1 and g.groups == 1 and not padded and any(s > 1 for s in g.stride)


def _sampled(x: jax.Array, g: Geometry) -> jax.Array:
    """The positions that a strided convolution without padding samples."""
    return lax.slice(x, (0,) * x.ndim, x.shape, (1, 1, *g.stride))


def _convolve(
    x: jax.Array,
    weight: jax.Array,
    g: Geometry,
    *,
    spread: tuple[int, ...] | None = None,
    out: np.dtype | None = None,
) -> jax.Array:
    """The convolution of a geometry; `spread` dilates `x`, `out` is the result's dtype."""
    spread = spread or (1,) * len(g.stride)

    def product(x: jax.Array, weight: jax.Array) -> jax.Array:
        if convolution_slices.applies(g):
            return convolution_slices.convolve(x, weight, g, spread, convolve)
        return convolve(x, weight, g, spread)

    def convolve(x: jax.Array, weight: jax.Array, g: Geometry, spread: Sequence[int]) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            weight,
            g.stride,
            g.padding,
            lhs_dilation=spread,
            rhs_dilation=g.dilation,
            dimension_numbers=_numbers((0, 1), x.ndim),
            feature_group_count=g.groups,
            precision=mxu.precision(),
            preferred_element_type=out or accumulator(x.dtype),
        )

    return mxu.multiply(product, x, weight)


def _swap_groups(weight: jax.Array, groups: int) -> jax.Array:
    """`(O, C/G, *K)` -> `(C, O/G, *K)`: input and output channels change places in each group."""
    out, inner, *kernel = weight.shape
    if groups == 1:
        return jnp.swapaxes(weight, 0, 1)
    grouped = weight.reshape((groups, out // groups, inner, *kernel))
    return jnp.swapaxes(grouped, 1, 2).reshape((groups * inner, out // groups, *kernel))


def input_gradient(
    grad: jax.Array, weight: jax.Array, sizes: Sequence[int], g: Geometry
) -> jax.Array:
    """`(N, O, *S')`, `(O, C/G, *K)` -> `(N, C, *sizes)`: the transpose of `forward` in `x`."""
    if 0 in grad.shape or 0 in weight.shape:
        return zeros((grad.shape[0], weight.shape[1] * g.groups, *sizes), grad.dtype)
    if _is_pointwise(weight.shape[2:], g):
        mixed = _convolve(grad, _swap_groups(weight, 1), replace(g, stride=(1,) * len(sizes)))
        holes = [
            (0, size - (n - 1) * s - 1, s - 1)
            for size, n, s in zip(sizes, grad.shape[2:], g.stride, strict=True)
        ]
        return lax.pad(mixed, jnp.zeros((), mixed.dtype), [(0, 0, 0), (0, 0, 0), *holes])
    whole = (grad.shape[0], weight.shape[1] * g.groups, *sizes)
    phases = phases_of(whole, weight.shape[2:], grad.shape[2:], g)
    if phases is not None:
        split = phases.split_weight(weight)
        return phases.join_input(input_gradient(grad, split, phases.places, phases.geometry))
    pads = []
    for i, size in enumerate(sizes):
        reach = (weight.shape[2 + i] - 1) * g.dilation[i]
        spread = (grad.shape[2 + i] - 1) * g.stride[i] + 1
        low = reach - g.padding[i][0]
        pads.append((low, size + reach - spread - low))
    flipped = lax.rev(_swap_groups(weight, g.groups), tuple(range(2, grad.ndim)))
    strides = g.stride
    depthwise = _is_depthwise(flipped, g)
    volumes = grad.ndim == 5 and not convolution_slices.applies(g)
    if any(s > 1 for s in strides) and (depthwise or volumes):
        # XLA:CPU ends the process with some dilated volumes (jaxlib 0.10.2); others are slow.
        spread_out = [(low, high, s - 1) for (low, high), s in zip(pads, strides, strict=True)]
        grad = lax.pad(grad, jnp.zeros((), grad.dtype), [(0, 0, 0), (0, 0, 0), *spread_out])
        grad = lax.optimization_barrier(grad)
        strides, pads = (1,) * len(pads), [(0, 0)] * len(pads)
    if depthwise:
        ones = (1,) * len(pads)
        return _depthwise(
            grad,
            flipped,
            Geometry(stride=ones, padding=tuple(pads), dilation=g.dilation, groups=g.groups),
        )
    plain = replace(g, stride=(1,) * len(pads), padding=tuple(pads))
    return _convolve(grad, flipped, plain, spread=tuple(strides))


def weight_gradient(grad: jax.Array, x: jax.Array, kernel: Sequence[int], g: Geometry) -> jax.Array:
    """`(N, O, *S')`, `(N, C, *S)` -> `(O, C/G, *kernel)`: the transpose of `forward` in `weight`.

    The batch is the contracted feature; stride and dilation change places.
    """
    (n, c, *sizes), o, compute = x.shape, grad.shape[1], accumulator(x.dtype)
    if c == g.groups > 1 and _sums_taps(kernel):
        wide = (x if o == c else jnp.repeat(x, o // c, axis=1)).astype(compute)
        parts = _taps(wide, kernel, grad.shape[2:], g)
        over = (0, *range(2, x.ndim))
        sums = [jnp.sum(part * grad.astype(compute), axis=over) for part in parts]
        return jnp.stack(sums, axis=-1).reshape((o, 1, *kernel))
    phases = phases_of(x.shape, kernel, grad.shape[2:], g)
    if phases is not None:
        split = phases.split_input(x)
        return phases.join_weight(weight_gradient(grad, split, phases.taps, phases.geometry))
    if _is_pointwise(kernel, g):
        x = _sampled(x, g)
    mixes = math.prod(kernel) == 1 and x.shape[2:] == grad.shape[2:]
    mixes_slices = math.prod(kernel[1:]) == 1 and convolution_slices.applies(g)
    if g.groups == 1 and (mixes or mixes_slices):
        everywhere = (0, *range(2, x.ndim))
        over = ((everywhere, everywhere), ((), ()))
        parts = [x] if mixes else _taps(x, kernel, grad.shape[2:], g)
        products = [matmul.general(grad, part, over, compute) for part in parts]
        return jnp.stack(products, axis=-1).reshape((o, c, *kernel))
    if g.groups == 1 and mxu.lowers_for("tpu") and _lies_by_image(o, c, g):
        return _gradient_by_image(grad, x, kernel, g)
    pads = []
    for i, size in enumerate(kernel):
        reach = (size - 1) * g.dilation[i] + 1
        spread = (grad.shape[2 + i] - 1) * g.stride[i] + 1
        low = g.padding[i][0]
        pads.append((low, reach + spread - 1 - x.shape[2 + i] - low))
    if g.groups == 1:
        swapped = jnp.swapaxes(x, 0, 1)
    elif mxu.lowers_for("tpu"):
        return _grouped_weight_gradient(grad, x, pads, g)
    else:
        grouped = jnp.swapaxes(x.reshape((n, g.groups, c // g.groups, *sizes)), 0, 2)
        swapped = grouped.reshape((c // g.groups, g.groups * n, *sizes))
    out = _convolve(
        swapped,
        jnp.swapaxes(grad, 0, 1),
        replace(g, stride=g.dilation, padding=tuple(pads), dilation=g.stride),
        out=compute,
    )
    return jnp.swapaxes(out, 0, 1)


def _lies_by_image(o: int, c: int, g: Geometry) -> bool:
    """Whether a weight's gradient is made with features of the image along a TPU's lanes.

    Where they waste no more lanes than the result's the weight lies so, and the optimizer's update
    at the end of its gradient moves nothing: a ResNet-18 of 4 images took 191 instead of 250 MiB
    and 0.93 instead of 1.07 ms (autocast; libtpu for v5e, simulated). Steps over pixels would be
    holes in the first operand: one of 32 images took 4.66 instead of 4.49 ms. Nor do volumes gain:
    four convolutions of them took 3.6 instead of 3.3 ms.
    """
    plain = tuple(g.stride) == (1, 1)
    return plain and layout.padded_elements(c, o) <= layout.padded_elements(o, c)


def _gradient_by_image(
    grad: jax.Array, x: jax.Array, kernel: Sequence[int], g: Geometry
) -> jax.Array:
    """`weight_gradient` for strides of one, with features of the image along lanes."""
    pads = []
    for i, size in enumerate(kernel):
        reach = (size - 1) * g.dilation[i]
        low = reach - g.padding[i][0]
        pads.append((low, x.shape[2 + i] + reach - grad.shape[2 + i] - low))
    plain = replace(g, stride=g.dilation, padding=tuple(pads), dilation=(1,) * len(kernel))
    swapped = jnp.swapaxes(grad, 0, 1), jnp.swapaxes(x, 0, 1)
    turned = _convolve(*swapped, plain, out=accumulator(x.dtype))
    return lax.rev(turned, tuple(range(2, turned.ndim)))


def _grouped_weight_gradient(
    grad: jax.Array, x: jax.Array, pads: Sequence[tuple[int, int]], g: Geometry
) -> jax.Array:
    """`weight_gradient` of several groups without moving them, which a TPU's compiler would do."""
    swapped = (1, 0, *range(2, x.ndim))

    def product(x: jax.Array, grad: jax.Array) -> jax.Array:
        return lax.conv_general_dilated(
            x,
            grad,
            g.dilation,
            pads,
            rhs_dilation=g.stride,
            dimension_numbers=lax.ConvDimensionNumbers(swapped, swapped, swapped),
            batch_group_count=g.groups,
            precision=mxu.precision(),
            preferred_element_type=accumulator(x.dtype),
        )

    return mxu.multiply(product, x, grad)
