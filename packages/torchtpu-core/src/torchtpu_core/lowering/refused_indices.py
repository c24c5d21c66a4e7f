# SPDX-License-Identifier: Apache-2.0
"""Shapes of indices and of what is written through them, which PyTorch's meta kernels let through.

As `torchtpu_core.lowering.refused_shapes`, whose table takes these checks in. How many elements
a mask chooses is known on the device only, and checked there.

Shape letters: ``B`` the common shape of the index tensors, ``n`` the true elements of a mask.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from torchtpu_core.lowering.masks import MASKS


def _common_shape(indices: Sequence[torch.Tensor]) -> torch.Size:
    """`B`."""
    try:
        return torch.broadcast_shapes(*(index.shape for index in indices))
    except RuntimeError:
        shapes = ", ".join(str(list(index.shape)) for index in indices)
        raise IndexError(
            f"shape mismatch: indexing tensors could not be broadcast together with shapes {shapes}"
        ) from None


def _indexed_shape(arguments: Mapping[str, Any]) -> list[int | None] | None:
    """The shape of ``self[indices]``, None in it for `n`; None where masks are mixed with others.

    Raises:
        IndexError: the indices do not fit each other or `self`.
    """
    tensor, indices = arguments["self"], arguments["indices"]
    axes = [axis for axis, index in enumerate(indices) if index is not None]
    if any(indices[axis].dtype in MASKS for axis in axes):
        return _masked_shape(tensor, axes[0], indices[axes[0]]) if len(axes) == 1 else None
    if len(indices) > tensor.ndim:
        raise IndexError(
            f"too many indices for tensor of dimension {tensor.ndim} (got {len(indices)})"
        )
    if not axes:
        return list(tensor.shape)
    common = _common_shape([indices[axis] for axis in axes])
    if common.numel() and 0 in (tensor.shape[axis] for axis in axes):
        raise IndexError("index is out of bounds for dimension with size 0")
    adjacent = axes[-1] - axes[0] + 1 == len(axes)
    place = axes[0] if adjacent else 0
    rest = [size for axis, size in enumerate(tensor.shape) if axis not in axes]
    return [*rest[:place], *common, *rest[place:]]


def _masked_shape(tensor: torch.Tensor, axis: int, mask: torch.Tensor) -> list[int | None]:
    return [*tensor.shape[:axis], None, *tensor.shape[axis + mask.ndim :]]


def _read(arguments: Mapping[str, Any]) -> None:
    _indexed_shape(arguments)


def _written(arguments: Mapping[str, Any]) -> None:
    """Values broadcast to what they replace; nothing is broadcast to them."""
    indexed, values = _indexed_shape(arguments), list(arguments["values"].shape)
    if indexed is None:
        return
    missing = len(indexed) - len(values)
    pairs = zip(values, indexed[max(missing, 0) :], strict=False)
    if missing < 0 or any(size not in (value, None) and value != 1 for value, size in pairs):
        shape = ", ".join("n" if size is None else str(size) for size in indexed)
        told = " (n: the true elements of the mask)" if None in indexed else ""
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {values} cannot be broadcast to indexing "
            f"result of shape [{shape}]{told}"
        )


def _put(arguments: Mapping[str, Any]) -> None:
    """`put_` writes one value for each index."""
    given, indices = arguments["source"].numel(), arguments["index"].numel()
    if given != indices:
        raise IndexError(
            "put_(): Expected source and index to have the same number of elements, but got "
            f"source.numel() = {given}, index.numel() = {indices}"
        )


#: Checks by the op's name, for all its overloads.
CHECKS = {
    "aten::index": _read,
    "aten::index_put": _written,
    "aten::_index_put_impl": _written,
    "aten::put": _put,
}
