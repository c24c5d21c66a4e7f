# SPDX-License-Identifier: Apache-2.0
"""Matrix products: every one is a single ``dot_general``.

XLA:CPU runs a 2-D ``dot_general`` that contracts whichever dimension is at hand, but
copies a transposed operand at each call. So an operand that is a remembered transpose
(`torchtpu_core.lowering.layout`) is read untransposed, and batched operands with one
batch are not made 3-D. On a TPU, an operand that is the remembered rows of a tensor of more
dimensions is multiplied as that tensor. 16-bit floats accumulate in float32.

Legend: B batch, M rows of the result, N columns of the result, K contracted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import dtypes, images, layout, mxu
from torchtpu_core.lowering.promotion import Operand, Scalar, cast, result_type
from torchtpu_core.lowering.table import Lowering, native

#: Two operands and the dtype of the product.
Product: TypeAlias = Callable[[jax.Array, jax.Array, np.dtype], jax.Array]
#: Rows of a tile of a TPU: joining whole tiles moves nothing.
_SUBLANES = 8
#: Contracted and batch dimensions, as ``lax.dot_general`` takes them.
Dimensions: TypeAlias = tuple[
    tuple[Sequence[int], Sequence[int]], tuple[Sequence[int], Sequence[int]]
]


def accumulator(dtype: np.dtype) -> np.dtype:
    """The dtype in which products of `dtype` are summed."""
    return dtypes.opmath(dtype)


def contract(
    x: jax.Array, y: jax.Array, x_dim: int, y_dim: int, *, batch: int = 0, out: np.dtype
) -> jax.Array:
    """Contract one dimension of each operand; the first `batch` dimensions are batches.

    Returns:
        An array of dtype `out`, dimensions: batches, rest of `x`, rest of `y`.
    """
    x, x_dim = _untransposed(x, x_dim, batch)
    y, y_dim = _untransposed(y, y_dim, batch)
    batches = tuple(range(batch))
    if batch == 0 and mxu.lowers_for("tpu"):
        whole = _of_rows(x, y, x_dim, y_dim, out)
        if whole is not None:
            return whole
    if batch == 1 and mxu.lowers_for("tpu"):
        whole = _of_batches(x, y, x_dim, y_dim, out)
        if whole is not None:
            return whole
    return general(x, y, (((x_dim,), (y_dim,)), (batches, batches)), out)


def _of_rows(x: jax.Array, y: jax.Array, x_dim: int, y_dim: int, out: np.dtype) -> jax.Array | None:
    """The product of matrices whose rows are those of tensors; None if they are not.

    Rows that fill tiles are multiplied as they are, but not the pixels of images.
    """
    rows, others = layout.rows_of(x), layout.rows_of(y)
    if rows is None or (rows.shape[-2] % _SUBLANES == 0 and not _are_pixels(rows, others)):
        return None
    last = rows.ndim - 1
    if x_dim == 1:
        product = general(rows, y, (((last,), (y_dim,)), ((), ())), out)
        features = images.lies_like_one(rows)
        if features is not None:
            images.mark(product, features)
        return layout.reshaped(product, (x.shape[0], *product.shape[last:]))
    if others is None or y_dim != 0 or rows.shape[:-1] != others.shape[:-1]:
        return None
    lead = tuple(range(last))
    return general(rows, others, ((lead, lead), ((), ())), out)


def _are_pixels(rows: jax.Array, others: jax.Array | None) -> bool:
    """Whether rows of 16 bits are the pixels of an image, or its features over pixels.

    In float32 there is no rounding to save, and XLA keeps what GELU makes beside what it reads.
    """
    known = [one for one in (rows, others) if one is not None]
    return rows.dtype.itemsize == 2 and any(images.lies_like_one(one) is not None for one in known)


def _of_batches(
    x: jax.Array, y: jax.Array, x_dim: int, y_dim: int, out: np.dtype
) -> jax.Array | None:
    """The products of matrices whose batch is that of joined dimensions; None if none is.

    Whole tiles lie alike either way, and XLA makes less of more dimensions.
    """
    if all(size % _SUBLANES == 0 for size in (*x.shape[1:], *y.shape[1:])):
        return None
    found = [layout.rows_of(x), layout.rows_of(y)]
    leads = {source.shape[:-2] for source in found if source is not None}
    if len(leads) != 1:
        return None
    (lead,) = leads
    x4, y4 = (
        lax.reshape(one, (*lead, *one.shape[1:])) if source is None else source
        for one, source in zip((x, y), found, strict=True)
    )
    more = len(lead) - 1
    product = contract(x4, y4, x_dim + more, y_dim + more, batch=len(lead), out=out)
    return layout.reshaped(product, (x.shape[0], *product.shape[-2:]))


def general(x: jax.Array, y: jax.Array, dimensions: Dimensions, out: np.dtype) -> jax.Array:
    """``lax.dot_general`` of dtype `out`, at the precision asked for."""
    if x.dtype.kind in "iu" and x.dtype.itemsize == 8 and mxu.lowers_for("tpu"):
        return _summed_products(x, y, dimensions, out)

    def product(x: jax.Array, y: jax.Array) -> jax.Array:
        first = mxu.first_operand(x)
        return lax.dot_general(
            first, y, dimensions, precision=mxu.precision(), preferred_element_type=out
        )

    return mxu.multiply(product, x, y)


def _summed_products(
    x: jax.Array, y: jax.Array, dimensions: Dimensions, out: np.dtype
) -> jax.Array:
    """`general` as a fused sum: XLA's TPU compiler has no dot of 64-bit integers."""
    (x_summed, y_summed), (x_batch, y_batch) = dimensions
    x_free = [d for d in range(x.ndim) if d not in (*x_summed, *x_batch)]
    y_free = [d for d in range(y.ndim) if d not in (*y_summed, *y_batch)]
    batch, rows, columns, summed = (
        [value.shape[d] for d in chosen]
        for value, chosen in ((x, x_batch), (x, x_free), (y, y_free), (x, x_summed))
    )
    count = math.prod(summed)
    x = x.transpose(*x_batch, *x_free, *x_summed).reshape(*batch, math.prod(rows), 1, count)
    y = y.transpose(*y_batch, *y_free, *y_summed).reshape(*batch, 1, math.prod(columns), count)
    return jnp.sum(x * y, axis=-1, dtype=out).reshape(*batch, *rows, *columns)


def _untransposed(x: jax.Array, dim: int, batch: int) -> tuple[jax.Array, int]:
    """The value `x` was transposed from and where `dim` is in it; at most one free dimension."""
    source = layout.source_of(x)
    if source is None or x.ndim > batch + 2:
        return x, dim
    value, permutation = source
    if permutation[:batch] != tuple(range(batch)):
        return x, dim
    return value, permutation[dim]


def _mm(x: jax.Array, y: jax.Array, out: np.dtype) -> jax.Array:
    """`(M, K)`, `(K, N)` -> `(M, N)` of dtype `out`."""
    return contract(x, y, 1, 0, out=out)


def _bmm(x: jax.Array, y: jax.Array, out: np.dtype) -> jax.Array:
    """`(B, M, K)`, `(B, K, N)` -> `(B, M, N)` of dtype `out`."""
    return contract(x, y, 2, 1, batch=1, out=out)


def _addbmm(x: jax.Array, y: jax.Array, out: np.dtype) -> jax.Array:
    """`(B, M, K)`, `(B, K, N)` -> `(M, N)`: the products are summed over the batches."""
    return general(x, y, (((0, 2), (0, 1)), ((), ())), out)


def _mv(x: jax.Array, y: jax.Array, out: np.dtype) -> jax.Array:
    """`(M, K)`, `(K,)` -> `(M,)`."""
    return contract(x, y, 1, 0, out=out)


def _plus(added: Operand, product: jax.Array, beta: Operand, alpha: Operand) -> jax.Array:
    """``beta * added + alpha * product`` in the product's dtype; beta == 0 hides NaN in `added`."""
    dtype = product.dtype
    if not _is(alpha, 1):
        product = product * cast(alpha, dtype)
    if _is(beta, 0):
        return product
    term = cast(added, dtype)
    if not _is(beta, 1):
        factor = cast(beta, dtype)
        term = jnp.where(factor == 0, jnp.zeros((), dtype), term * factor)
    return term + product


def _is(x: Operand, value: int) -> bool:
    """Whether `x` is known, when the program is built, to be `value`."""
    return not isinstance(x, (Scalar, jax.Array)) and x == value


def mm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    product = _mm(self, mat2, accumulator(self.dtype))
    return layout.by_rows(product, lambda rows: rows.astype(self.dtype))


def bmm(self: jax.Array, mat2: jax.Array) -> jax.Array:
    product = _bmm(self, mat2, accumulator(self.dtype))
    return layout.by_rows(product, lambda made: made.astype(self.dtype))


def mv(self: jax.Array, vec: jax.Array) -> jax.Array:
    return _mv(self, vec, accumulator(self.dtype)).astype(self.dtype)


def dot(self: jax.Array, tensor: jax.Array) -> jax.Array:
    return contract(self, tensor, 0, 0, out=accumulator(self.dtype)).astype(self.dtype)


def vdot(self: jax.Array, other: jax.Array) -> jax.Array:
    return dot(jnp.conj(self) if dtypes.is_complex(self.dtype) else self, other)


def _fused(product: Product) -> Callable[..., jax.Array]:
    """A row function ``beta * self + alpha * product(x, y)``, of self's dtype."""

    def run(
        self: jax.Array, x: jax.Array, y: jax.Array, *, beta: Operand = 1, alpha: Operand = 1
    ) -> jax.Array:
        made = product(x, y, accumulator(x.dtype))
        if self.ndim > 1:
            return _plus(self, made, beta, alpha).astype(x.dtype)
        return layout.by_rows(made, lambda rows: _plus(self, rows, beta, alpha).astype(x.dtype))

    return run


def _fused_to(product: Product) -> Callable[..., jax.Array]:
    """As `_fused`, with the result's dtype as an argument."""

    def run(
        self: jax.Array,
        x: jax.Array,
        y: jax.Array,
        out_dtype: torch.dtype,
        *,
        beta: Operand = 1,
        alpha: Operand = 1,
    ) -> jax.Array:
        result = dtypes.to_numpy(out_dtype)
        return _plus(self, product(x, y, accumulator(result)), beta, alpha).astype(result)

    return run


def _plain_to(product: Product) -> Callable[..., jax.Array]:
    """A row function for ``mm.dtype`` and ``bmm.dtype``: the result's dtype is an argument."""

    def run(self: jax.Array, mat2: jax.Array, out_dtype: torch.dtype) -> jax.Array:
        result = dtypes.to_numpy(out_dtype)
        return product(self, mat2, accumulator(result)).astype(result)

    return run


def addr(
    self: jax.Array,
    vec1: jax.Array,
    vec2: jax.Array,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
) -> jax.Array:
    """``beta * self + alpha * outer(vec1, vec2)``; on bools, `or` and `and`."""
    result = result_type(self, vec1, vec2)
    compute = dtypes.opmath(result)
    outer = cast(vec1, compute)[:, None] * cast(vec2, compute)[None, :]
    if compute == np.bool_:
        kept = cast(self, compute) & cast(beta, compute)
        return kept | (outer & cast(alpha, compute))
    shape = outer.shape
    return jnp.broadcast_to(_plus(self, outer, beta, alpha), shape).astype(result)


def _addmm_activation(
    self: jax.Array,
    mat1: jax.Array,
    mat2: jax.Array,
    *,
    beta: Operand = 1,
    alpha: Operand = 1,
    use_gelu: bool = False,
) -> jax.Array:
    x = _plus(self, _mm(mat1, mat2, accumulator(self.dtype)), beta, alpha)
    if use_gelu:
        half, root = x.dtype.type(0.5), x.dtype.type(np.sqrt(0.5))
        return (half * x * (x.dtype.type(1) + lax.erf(x * root))).astype(self.dtype)
    return lax.max(x, jnp.zeros((), x.dtype)).astype(self.dtype)


def linear(input: jax.Array, weight: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """`(..., K)`, `(N, K)` or `(K,)`, `(N,)` -> `(..., N)` or `(...)`."""
    rows = as_rows(input)
    out = contract(rows, weight, 1, weight.ndim - 1, out=accumulator(input.dtype))
    if bias is not None:
        out = layout.by_rows(out, lambda made: made + bias.astype(made.dtype))
    shape = input.shape[:-1] + weight.shape[:-1]
    return layout.reshaped(out, shape).astype(input.dtype)


def as_rows(x: jax.Array) -> jax.Array:
    """`(..., K)` -> `(rows, K)`; a 2-D value is returned as it is, so its source stays known."""
    if x.ndim == 2:
        return x
    return layout.reshaped(x, (math.prod(x.shape[:-1]), x.shape[-1]))


def linear_backward(
    self: jax.Array, grad_output: jax.Array, weight: jax.Array, output_mask: list[bool]
) -> tuple[jax.Array | None, ...]:
    """Gradients of `linear` for its input, weight `(N, K)` and bias."""
    compute = accumulator(self.dtype)
    x, grad = as_rows(self), as_rows(grad_output)
    results: list[jax.Array | None] = [None, None, None]
    if output_mask[0]:
        results[0] = layout.reshaped(contract(grad, weight, 1, 0, out=compute), self.shape)
    if output_mask[1]:
        results[1] = contract(grad, x, 0, 0, out=compute)
    if output_mask[2]:
        results[2] = jnp.sum(grad.astype(compute), axis=0)
    return tuple(r if r is None else r.astype(self.dtype) for r in results)


_PRODUCTS = (("addmm", _mm), ("baddbmm", _bmm), ("addbmm", _addbmm), ("addmv", _mv))

TABLE: tuple[Lowering, ...] = (
    native("aten::mm", mm),
    native("aten::bmm", bmm),
    native("aten::mv", mv),
    native("aten::dot", dot),
    native("aten::vdot", vdot),
    native("aten::addr", addr),
    native("aten::linear", linear),
    native("aten::linear_backward", linear_backward),
    native("aten::_addmm_activation", _addmm_activation),
    native("aten::mm.dtype", _plain_to(_mm)),
    native("aten::bmm.dtype", _plain_to(_bmm)),
    native("aten::addmm.dtype", _fused_to(_mm)),
    native("aten::baddbmm.dtype", _fused_to(_bmm)),
    *(native(f"aten::{name}", _fused(product)) for name, product in _PRODUCTS),
)
