# SPDX-License-Identifier: Apache-2.0
"""Forms that are torch calls: the result first, then written where the caller wants it.

The recorder resizes an ``out=`` by what PyTorch's meta kernel states. These forms have none,
a shape that depends on data, or (in place) a second operand that is written too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._prims_common.wrappers import _maybe_resize_out

from torchtpu_core.lowering.refused_shapes import dtype_name
from torchtpu_core.lowering.table import Lowering, composite


def into(out: torch.Tensor, made: torch.Tensor) -> torch.Tensor:
    """Resize `out`, with PyTorch's warning, and write `made` to it.

    Raises:
        RuntimeError: `out` is on another device.
    """
    if out.device != made.device:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but the result is on "
            f"{made.device} and its out= tensor on {out.device}"
        )
    resized: torch.Tensor = _maybe_resize_out(out, made.shape)
    return resized.copy_(made)


def _same_dtype(op: str, out: torch.Tensor, dtype: torch.dtype) -> None:
    if out.dtype != dtype:
        wanted, got = (dtype_name(d).lower() for d in (dtype, out.dtype))
        raise RuntimeError(
            f"Expected out tensor to have dtype {wanted}, but got {got} instead (in {op})"
        )


def _extent(tensor: torch.Tensor) -> range:
    """The bytes of its storage between the first and the last element."""
    if tensor.numel() == 0:
        return range(0)
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    start = tensor.storage_offset()
    return range(start * tensor.itemsize, (start + last + 1) * tensor.itemsize)


def _require_separate(out: torch.Tensor, *operands: torch.Tensor) -> None:
    """`out` is written while the operands are read, on CPU at least.

    Raises:
        RuntimeError: it shares memory with one of them.
    """
    written = _extent(out)
    for operand in operands:
        read = _extent(operand)
        common = range(max(written.start, read.start), min(written.stop, read.stop))
        if torch._C._overlaps(out, operand) and common:
            raise RuntimeError(
                "unsupported operation: some elements of the input tensor and the written-to "
                "tensor refer to a single memory location. Please clone() the tensor before "
                "performing the operation."
            )


def _nonzero_out(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
    if out.dtype != torch.int64:
        raise RuntimeError(
            "nonzero: Expected out tensor to have scalar type Long but got scalar type"
            f"{dtype_name(out.dtype)}"
        )
    return into(out, torch.nonzero(self))


def _masked_select_out(
    self: torch.Tensor, mask: torch.Tensor, *, out: torch.Tensor
) -> torch.Tensor:
    _same_dtype("masked_select", out, self.dtype)
    _require_separate(out, self, mask)
    return into(out, torch.masked_select(self, mask))


def require_castable(result: torch.Tensor, out: torch.Tensor) -> None:
    """Refuses, in PyTorch's words, a result of a wider category than the tensor it is written to.

    Raises:
        RuntimeError: such as a fraction for whole numbers.
    """
    if not torch.can_cast(result.dtype, out.dtype):
        wanted, got = dtype_name(result.dtype), dtype_name(out.dtype)
        raise RuntimeError(f"result type {wanted} can't be cast to the desired output type {got}")


def _cast_into_out(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A form whose meta kernel takes only one dtype of ``out=``, or none."""

    def write(self: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        made = function(self)
        require_castable(made, out)
        return into(out, made)

    return write


def _histogram_out(
    self: torch.Tensor,
    bins: int | torch.Tensor = 100,
    *,
    hist: torch.Tensor,
    bin_edges: torch.Tensor,
    **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    made = torch.histogram(self, bins, **options)
    return into(hist, made.hist), into(bin_edges, made.bin_edges)


def _as_strided_copy(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
) -> torch.Tensor:
    """Strides count the storage's elements, which only the view knows."""
    view = torch.as_strided(self, size, stride, storage_offset)
    return view.clone(memory_format=torch.contiguous_format)


def _as_strided_copy_out(
    self: torch.Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    storage_offset: int | None = None,
    *,
    out: torch.Tensor,
) -> torch.Tensor:
    _same_dtype("as_strided_copy", out, self.dtype)
    return into(out, torch.as_strided(self, size, stride, storage_offset))


def _bernoulli_out(
    self: torch.Tensor, *, generator: torch.Generator | None = None, out: torch.Tensor
) -> torch.Tensor:
    """Coins fit any dtype, whatever that of the probabilities."""
    return into(out, torch.bernoulli(self, generator=generator))


def _rrelu_with_noise_(
    self: torch.Tensor,
    noise: torch.Tensor,
    lower: float = 0.125,
    upper: float = 0.3333333333333333,
    training: bool = False,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    made = torch.ops.aten.rrelu_with_noise(self, noise, lower, upper, training, generator)
    return self.copy_(made)


def _conj_physical_(self: torch.Tensor) -> torch.Tensor:
    return self.copy_(torch.conj_physical(self)) if self.is_complex() else self


TABLE: tuple[Lowering, ...] = (
    composite("aten::as_strided_copy", _as_strided_copy),
    composite("aten::as_strided_copy.out", _as_strided_copy_out),
    composite("aten::bernoulli.out", _bernoulli_out),
    composite("aten::rrelu_with_noise_", _rrelu_with_noise_),
    composite("aten::nonzero.out", _nonzero_out),
    composite("aten::masked_select.out", _masked_select_out),
    composite("aten::conj_physical.out", _cast_into_out(torch.conj_physical)),
    composite("aten::conj_physical_", _conj_physical_),
    composite("aten::abs.out", _cast_into_out(torch.abs)),
    composite("aten::angle.out", _cast_into_out(torch.angle)),
    composite("aten::histogram.bin_ct_out", _histogram_out),
    composite("aten::histogram.bins_tensor_out", _histogram_out),
)
