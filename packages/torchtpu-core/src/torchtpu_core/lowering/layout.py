# SPDX-License-Identifier: Apache-2.0
"""What is known of a value where it was made, for those who can use it.

XLA:CPU copies a transposed weight at every call of a dot; one 2-D ``dot_general``
that contracts the untransposed dimension does not (a factor of 1.7 on a GPT step).
So whoever transposes a value says so here, and ``matmul.py`` asks. Likewise bags of
embeddings whose offsets are a ramp are all of one size, and the rows of a matrix are those of
a tensor of more dimensions: PyTorch joins these before it multiplies and splits them afterwards,
which on a TPU moves all the data where rows do not fill its tiles. The gradient of a cumulative sum
is one of the flipped gradient, flipped back, and each of the three would be written to memory.
Nothing is rewritten: the value itself stays correct, and is dead code if nobody reads it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import jax
import numpy as np
from jax import lax
from jax.experimental.layout import Layout, with_layout_constraint

from torchtpu_core.lowering import images, mxu

_local = threading.local()
_KINDS = (
    "sources",
    "ramps",
    "joined",
    "flipped",
    "split",
    "cuts",
    "sums",
    "all_keys",
    "moves",
    "narrow",
)
#: Lanes of a TPU's registers and tiles, along which the last dimension lies.
LANES = 128
#: Rows of such a tile, along which the dimension before it lies.
SUBLANES = 8
#: Waves `[N, C, T]` to tokens `[N, T, C]`, and back.
_SWAP = (0, 2, 1)
#: Of rows of which so many are left, all are computed.
NEARLY_ALL = 3 / 4
#: Where a part starts along each dimension.
Starts: TypeAlias = Sequence[int | np.integer | jax.Array]
_KNOWN = (int, np.integer)


@contextlib.contextmanager
def remembering() -> Iterator[None]:
    """Remember what is said inside the block (one program's tracing)."""
    outer = [getattr(_local, kind, None) for kind in _KINDS]
    for kind in _KINDS:
        setattr(_local, kind, {})
    try:
        with images.remembering():
            yield
    finally:
        for kind, before in zip(_KINDS, outer, strict=True):
            setattr(_local, kind, before)


def permuted(x: jax.Array, permutation: Sequence[int]) -> jax.Array:
    """``lax.transpose``, remembered; the identity permutation returns `x`."""
    permutation = tuple(permutation)
    if permutation == tuple(range(len(permutation))):
        return x
    result = images.permuted(lax.transpose(x, permutation), x, permutation)
    if permutation == _SWAP and mxu.lowers_for("tpu"):
        if images.is_wave(x):
            return _apart(result)
        if images.is_wave(result):
            return lax.transpose(_apart(x), permutation)
    sources = getattr(_local, "sources", None)
    if sources is not None:
        # The entry holds `result`, so that its id cannot be reused while it is here.
        sources[id(result)] = (result, x, permutation)
    return moved(result, x, lambda y: lax.transpose(y, permutation))


def moved(
    result: jax.Array, source: jax.Array, move: Callable[[jax.Array], jax.Array]
) -> jax.Array:
    """`result`, remembered as ``move(source)``, which moves elements and makes none."""
    moves = getattr(_local, "moves", None)
    if moves is not None and result is not source:
        moves[id(result)] = (result, source, move)
    return result


def origin(x: jax.Array) -> tuple[jax.Array, Callable[[jax.Array], jax.Array]]:
    """What `x` was moved out of, and how it is moved out of that again."""
    entry = (getattr(_local, "moves", None) or {}).get(id(x))
    if entry is None:
        return x, lambda y: y
    move, (root, before) = entry[2], origin(entry[1])
    return root, lambda y: move(before(y))


def widened(result: jax.Array, source: jax.Array) -> jax.Array:
    """`result`, remembered as `source` in a wider dtype."""
    narrow = getattr(_local, "narrow", None)
    if narrow is not None and result.dtype.itemsize > source.dtype.itemsize:
        narrow[id(result)] = (result, source)
    return result


def matrix_of(x: jax.Array) -> jax.Array | None:
    """The matrix `(M, N)` whose rows were split to make `x` `(..., N)`, if they were."""
    entry = (getattr(_local, "moves", None) or {}).get(id(x))
    if entry is None or entry[1].ndim != 2 or x.ndim < 3:
        return None
    return entry[1] if entry[1].shape[-1] == x.shape[-1] else None


def narrow(x: jax.Array) -> jax.Array:
    """What `x` was before it was cast to a wider dtype, or `x`."""
    entry = (getattr(_local, "narrow", None) or {}).get(id(x))
    return x if entry is None else entry[1]


def source_of(x: jax.Array) -> tuple[jax.Array, tuple[int, ...]] | None:
    """The value and permutation that `x` was transposed from, if it was."""
    sources = getattr(_local, "sources", None)
    entry = sources.get(id(x)) if sources else None
    return None if entry is None else (entry[1], entry[2])


def reshaped(x: jax.Array, shape: Sequence[int]) -> jax.Array:
    """``lax.reshape``, remembered where it joins dimensions to the rows or batch of matrices."""
    shape = tuple(shape)
    if x.shape == shape:
        return x
    if mxu.lowers_for("tpu") and images.lies_like_one(x) is None:
        if _are_windows_of(x.shape, shape):
            return moved(behind_barrier(lax.reshape(x, shape)), x, lambda y: lax.reshape(y, shape))
        if _are_windows_of(shape, x.shape):
            return moved(lax.reshape(behind_barrier(x), shape), x, lambda y: lax.reshape(y, shape))
    source = rows_of(x)
    if source is not None:
        x = source
        if x.shape == shape:
            return x
    joined = getattr(_local, "joined", None)
    lead = _leading(x.shape, shape) if joined is not None else 0
    if lead < 2:
        return _split(x, shape)
    x = images.reshaped(lax.reshape(x, (*x.shape[:lead], *shape[1:])), x)
    result = images.reshaped(lax.reshape(x, shape), x)
    assert joined is not None
    joined[id(result)] = (result, x)
    return moved(result, x, lambda y: lax.reshape(y, shape))


def _are_windows_of(parts: Sequence[int], shape: Sequence[int]) -> bool:
    """Whether `parts` are tokens of `shape` `[B, T, D]` by rows and columns that fill no tiles.

    Where an image's tokens become windows, and back. XLA:TPU would compute all layers between in
    the shape of the windows, each row of which it pads to a tile, or in that of the tokens, and
    move what these read and keep: a step of Swin-T (autocast, 32 images) takes 27.4 instead of
    26.3 ms, and 2,209 instead of 1,967 MiB (libtpu's schedule for v5e, simulated).
    """
    if len(shape) != 3 or not parts or (parts[0], parts[-1]) != (shape[0], shape[-1]):
        return False
    grid = [size for size in parts[1:-1] if size != 1]
    return len(grid) > 1 and grid[-1] % SUBLANES != 0 and shape[1] % SUBLANES == 0


def _split(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """``lax.reshape``, remembered where it splits a last dimension that fills lanes."""
    result = images.reshaped(lax.reshape(x, shape), x)
    split = getattr(_local, "split", None)
    if split is not None and x.ndim and shape and shape[-1] < LANES <= x.shape[-1]:
        parts = itertools.accumulate(reversed(shape), operator.mul)
        if x.shape[-1] in parts:
            split[id(result)] = (result, x)
    return moved(result, x, lambda y: lax.reshape(y, shape))


def split_from(x: jax.Array) -> jax.Array | None:
    """The tensor whose last dimension was split into the last ones of `x`, if it was."""
    split = getattr(_local, "split", None)
    entry = split.get(id(x)) if split else None
    return None if entry is None else entry[1]


def _leading(sizes: Sequence[int], shape: Sequence[int]) -> int:
    """How many of `sizes` are the rows or batch of the matrices `shape`; 0 if none are."""
    if not math.prod(sizes):
        return 0
    if len(shape) == 3 and list(sizes[-2:]) == list(shape[1:]):
        return len(sizes) - 2
    if len(shape) != 2 or len(sizes) < 3:
        return 0
    ends = (lead for lead in range(2, len(sizes)) if math.prod(sizes[lead:]) == shape[1])
    return next(ends, 0)


def summed(x: jax.Array) -> jax.Array:
    """`x`, remembered as a sum of two tensors of its shape."""
    return _marked("sums", x)


def is_sum(x: object) -> bool:
    """Whether `x` is remembered as such a sum."""
    return _is_marked("sums", x)


def of_all_keys(log_sums: jax.Array) -> jax.Array:
    """The logarithm of a softmax's sums, remembered as that of all keys, not of one rank's."""
    return _marked("all_keys", log_sums)


def is_of_all_keys(log_sums: object) -> bool:
    """Whether `log_sums` is remembered as such."""
    return _is_marked("all_keys", log_sums)


def _marked(kind: str, x: jax.Array) -> jax.Array:
    marked = getattr(_local, kind, None)
    if marked is not None:
        marked[id(x)] = x
    return x


def _is_marked(kind: str, x: object) -> bool:
    return id(x) in (getattr(_local, kind, None) or ())


def rows_of(x: jax.Array) -> jax.Array | None:
    """The tensor `(..., K)` whose leading dimensions were joined to the first of `x`, if any."""
    joined = getattr(_local, "joined", None)
    entry = joined.get(id(x)) if joined else None
    return None if entry is None else entry[1]


def fills_tiles(x: jax.Array) -> bool:
    """Whether `x` is `[B, T, D]` and its rows fill whole tiles."""
    return x.ndim == 3 and x.shape[1] % SUBLANES == 0


def tile_padding(rows: int, columns: int) -> float:
    """Padded over plain elements of two dimensions, the better one along the lanes.

    >>> tile_padding(8, 16), tile_padding(64, 16)
    (8.0, 2.0)
    """
    if not rows * columns:
        return 1.0
    least = min(padded_elements(rows, columns), padded_elements(columns, rows))
    return least / (rows * columns)


def padded_elements(lanes: int, sublanes: int) -> int:
    """Elements of a matrix with its padding, by what lies along the lanes and the sublanes.

    >>> padded_elements(64, 16), padded_elements(16, 64), padded_elements(128, 3)
    (2048, 8192, 512)
    """
    # Fewer than a tile's sublanes have tiles of 1, 2 or 4.
    height = min(SUBLANES, 1 << (sublanes - 1).bit_length())
    return -(-lanes // LANES) * LANES * -(-sublanes // height) * height


def as_rows(x: jax.Array) -> jax.Array:
    """Tokens `[B, T, D]` of which rows fill tiles, as rows `[B * T, D]`; other values as they are.

    For barriers: XLA:TPU does not change the shape of what goes through one, and products have
    these rows. Around one in the shape of the tokens it moves all that products make.
    """
    return x if images.is_wave(x) else _joined(x)


def _joined(x: jax.Array) -> jax.Array:
    return lax.reshape(x, (x.shape[0] * x.shape[1], x.shape[2])) if fills_tiles(x) else x


def in_order(x: jax.Array, order: Sequence[int]) -> jax.Array:
    """The same value, its dimensions in memory from major to minor as `order` says.

    The barrier is for JAX, which would give a result of the program this order, not its own.
    """
    layout = Layout(major_to_minor=tuple(order))
    return lax.optimization_barrier(with_layout_constraint(x, layout))


def _apart(x: jax.Array) -> jax.Array:
    """Tokens that a wave is made into, or that are made into one, in an order of their own.

    XLA:TPU would give all of them the order that the convolution has, batch along the sublanes or
    time along the lanes, and move what each product reads and makes: a perceptron of four blocks
    over 8 x 1,536 tokens of 512 features (autocast) takes 6.2 instead of 3.7 ms, and 815 instead of
    372 MiB (libtpu's schedule for v5e, simulated). Rows are for what `as_rows` says.
    """
    rows = _joined(x)
    return lax.reshape(in_order(rows, range(rows.ndim)), x.shape)


def behind_barrier(x: jax.Array) -> jax.Array:
    """The same value, which XLA does not compute anew for who reads it here."""
    return lax.reshape(lax.optimization_barrier(as_rows(x)), x.shape)


def by_rows(x: jax.Array, function: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """`function` of a matrix, elementwise along its rows, before these were cut and joined."""
    source = rows_of(x)
    if source is not None:
        return reshaped(by_rows(source, function), x.shape)
    before = cut_from(x)
    if before is not None:
        return cut(function(before[0]), before[1], x.shape)
    return images.follow(function(x), x)


def cut(x: jax.Array, starts: Starts, sizes: Sequence[int]) -> jax.Array:
    """The part of `x` that starts there, remembered where it leaves nearly all rows."""
    if x.shape == tuple(sizes):
        return x

    def part(whole: jax.Array) -> jax.Array:
        if all(isinstance(start, _KNOWN) for start in starts):
            known = [int(start) for start in starts]
            ends = [start + size for start, size in zip(known, sizes, strict=True)]
            return lax.slice(whole, known, ends)
        return lax.dynamic_slice(whole, starts, sizes, allow_negative_indices=False)

    result = moved(part(x), x, part)
    cuts = getattr(_local, "cuts", None)
    rows = x.ndim > 2 and x.shape[-1] == sizes[-1] and NEARLY_ALL * x.size <= result.size
    if cuts is not None and rows:
        cuts[id(result)] = (result, x, tuple(starts))
    return result


def cut_from(x: jax.Array) -> tuple[jax.Array, Starts] | None:
    """What `x` was cut out of, and where it starts there, if it is nearly all of its rows."""
    cuts = getattr(_local, "cuts", None)
    entry = cuts.get(id(x)) if cuts else None
    return None if entry is None else (entry[1], entry[2])


def same_starts(a: Starts, b: Starts) -> bool:
    """Whether two parts are known to start alike."""

    def same(x: int | np.integer | jax.Array, y: int | np.integer | jax.Array) -> bool:
        return x is y or (isinstance(x, _KNOWN) and isinstance(y, _KNOWN) and int(x) == int(y))

    return all(same(x, y) for x, y in zip(a, b, strict=True))


def flipped(x: jax.Array, axes: Sequence[int]) -> jax.Array:
    """``lax.rev``, remembered; what was made by the same flip is what that was made of."""
    axes = tuple(sorted(axes))
    before = flipped_from(x, axes)
    if before is not None:
        return before
    result = lax.rev(x, axes)
    entries = getattr(_local, "flipped", None)
    if entries is not None:
        entries[id(result)] = (result, x, axes)
    return result


def flipped_from(x: jax.Array, axes: Sequence[int]) -> jax.Array | None:
    """What `x` was flipped from along just these axes, if it was."""
    entries = getattr(_local, "flipped", None)
    entry = entries.get(id(x)) if entries else None
    return entry[1] if entry is not None and entry[2] == tuple(axes) else None


def ramp(x: jax.Array, start: int, step: int) -> jax.Array:
    """`x`, `(n,)`, remembered as ``start + i * step``."""
    ramps = getattr(_local, "ramps", None)
    if ramps is not None:
        ramps[id(x)] = (x, start, step)
    return x


def ramp_of(x: jax.Array) -> tuple[int, int] | None:
    """Start and step of a value that is known to be a ramp of whole numbers."""
    ramps = getattr(_local, "ramps", None)
    entry = ramps.get(id(x)) if ramps else None
    return None if entry is None else (entry[1], entry[2])
