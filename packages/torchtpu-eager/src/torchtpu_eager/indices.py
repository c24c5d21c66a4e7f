# SPDX-License-Identifier: Apache-2.0
"""Checking index operands before an op runs, to name the offending value.

The device's own check says that some index was out of range; here the host looks at
the values first. Ops not in the table keep the device's check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torchtpu_core.errors import TorchTPUError

from torchtpu_eager.operands import Call, to_host


class IndexOperandError(TorchTPUError, IndexError):
    """An index operand holds a value outside its dimension.

    Fix: correct the index that the message names.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Values that one index tensor may hold.

    Attributes:
        name: of the argument.
        index: the tensor.
        low: the least value allowed.
        size: one more than the greatest.
        what: what is indexed, for the message.
        ignored: a value that is always allowed, or None.
    """

    name: str
    index: torch.Tensor
    low: int
    size: int
    what: str
    ignored: int | None = None


Arguments = Mapping[str, Any]


def _along_dim(arguments: Arguments) -> Iterator[Range]:
    self, dim = arguments["self"], arguments["dim"]
    size = self.shape[dim] if self.ndim else 1
    what = f"dimension {dim} of self, which has size {size}"
    yield Range(name="index", index=arguments["index"], low=0, size=size, what=what)


def _along_dim_wrapped(arguments: Arguments) -> Iterator[Range]:
    for item in _along_dim(arguments):
        yield Range(
            name=item.name, index=item.index, low=-item.size, size=item.size, what=item.what
        )


def _flat(arguments: Arguments) -> Iterator[Range]:
    count = arguments["self"].numel()
    what = f"self, which has {count} elements"
    yield Range(name="index", index=arguments["index"], low=-count, size=count, what=what)


def _advanced(arguments: Arguments) -> Iterator[Range]:
    self, dim = arguments["self"], 0
    for i, index in enumerate(arguments["indices"]):
        if index is not None and index.dtype in (torch.bool, torch.uint8):
            dim += index.ndim
            continue
        if index is not None:
            size = self.shape[dim]
            what = f"dimension {dim} of self, which has size {size}"
            yield Range(name=f"indices[{i}]", index=index, low=-size, size=size, what=what)
        dim += 1


def _rows(arguments: Arguments) -> Iterator[Range]:
    rows = arguments["weight"].shape[0]
    what = f"weight, which has {rows} rows"
    yield Range(name="indices", index=arguments["indices"], low=0, size=rows, what=what)


def _classes(arguments: Arguments) -> Iterator[Range]:
    self = arguments["self"]
    classes = self.shape[0 if self.ndim == 1 else 1]
    yield Range(
        name="target",
        index=arguments["target"],
        low=0,
        size=classes,
        what=f"self, which has {classes} classes",
        ignored=arguments["ignore_index"],
    )


#: Which arguments of an op are indices, by its name without the overload.
INDEX_ARGUMENTS: dict[str, Callable[[Arguments], Iterator[Range]]] = {
    "aten::gather": _along_dim,
    "aten::scatter": _along_dim,
    "aten::scatter_add": _along_dim,
    "aten::scatter_reduce": _along_dim,
    "aten::index_select": _along_dim,
    "aten::index_add": _along_dim,
    "aten::index_copy": _along_dim,
    "aten::index_reduce": _along_dim,
    "aten::index_fill": _along_dim_wrapped,
    "aten::take": _flat,
    "aten::put": _flat,
    "aten::index": _advanced,
    "aten::index_put": _advanced,
    "aten::_index_put_impl": _advanced,
    "aten::embedding": _rows,
    "aten::_embedding_bag": _rows,
    "aten::_embedding_bag_forward_only": _rows,
    "aten::nll_loss_forward": _classes,
    "aten::nll_loss2d_forward": _classes,
}


def before(call: Call) -> None:
    """Check the index operands of a call.

    Raises:
        IndexOperandError: a value is out of range; nothing has been changed.
    """
    find = INDEX_ARGUMENTS.get(call.op.partition(".")[0].rstrip("_"))
    if find is None:
        return
    for item in find(dict(zip(call.names, call.args, strict=False))):
        _check(call, item)


def _check(call: Call, item: Range) -> None:
    values = to_host(item.index)
    bad = (values < item.low) | (values >= item.size)
    if item.ignored is not None:
        bad &= values != item.ignored
    if not bool(bad.any()):
        return
    place = bad.nonzero()[0].tolist()
    value = int(values[tuple(place)])
    allowed = f"{item.low} to {item.size - 1}" if item.size > item.low else "none"
    raise IndexOperandError(
        f"{call.where}: {item.name}{place or ''} is {value}, out of range for {item.what} "
        f"(allowed: {allowed}); {int(bad.sum())} of {bad.numel()} values are out of range."
    )
