# SPDX-License-Identifier: Apache-2.0
"""What operators make of shapes, asked of PyTorch once for each kind of operands.

A layer's operators come again with the next layer, microbatch and step. PyTorch's fake mode keeps
what it found as well, but its look-up takes some 500 calls of Python functions, which was half of
the time that a script took on shapes alone; here it takes a few. Whatever is no plain tensor is
left to it.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.parameter import is_lazy

from torchtpu_core.plan import sparse_shapes

_aten = torch.ops.aten
#: Marks operands that were not seen yet.
_UNKNOWN = object()


class _Other(Exception):
    """An operand or a result that is left to the fake mode."""


class _Makes(enum.Enum):
    """What becomes of an operator's first operand."""

    NEW = enum.auto()
    VIEW = enum.auto()
    SAME = enum.auto()


class Shapes:
    """Runs operators on fake tensors.

    Attributes:
        mode: of the fake tensors.
    """

    def __init__(self) -> None:
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        # By operator and operands: a result, a list of them, or None if the mode has to be asked.
        self._known: dict[Any, Any] = {}

    def result(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        inputs: Sequence[torch.Tensor],
    ) -> Any:
        """The result of any operator of a script.

        Args:
            func: the operator.
            types: of the operands that are subclasses of tensors.
            args: its positional arguments.
            kwargs: its named ones.
            inputs: the tensors among both, and in lists among them.
        """
        if func is _aten._to_copy.default and not isinstance(args[0], FakeTensor):
            return self._uploaded(args[0], kwargs)
        if func is _aten.bincount.default:
            counts = self._counted(args, kwargs)
            if counts is not None:
                return counts
        out = self.run(func, types, args, kwargs)
        if any(map(sparse_shapes.is_sparse, inputs)):
            with self.mode:
                return sparse_shapes.filled(func, inputs, out)
        return out

    def run(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The result of an operator on fake tensors."""
        makes = _makes(func)
        if makes is None or not args:
            return self._ask(func, types, args, kwargs)
        try:
            operands = self._kind(args), self._kind(kwargs.items())
            key: Any = (func, operands, torch.get_default_dtype())
            if makes is _Makes.VIEW:
                key = (*key, args[0].storage_offset())
            known = self._known.get(key, _UNKNOWN)
        except (_Other, TypeError):  # or an operand that has no hash
            return self._ask(func, types, args, kwargs)
        if known is _UNKNOWN:
            out = self._ask(func, types, args, kwargs)
            self._known[key] = _described(makes, args, out)
            return out
        if known is None:
            return self._ask(func, types, args, kwargs)
        if makes is _Makes.SAME:
            return args[0]
        storage = args[0].untyped_storage() if makes is _Makes.VIEW else None
        inference = storage is not None and torch.is_inference_mode_enabled()
        if inference and not args[0].is_inference():  # a view of a parameter is none either
            with torch.inference_mode(False):
                return self._made_again(known, storage)
        return self._made_again(known, storage)

    def _made_again(self, known: Any, storage: Any) -> Any:
        with torch._C._DisableTorchDispatch():
            if type(known) is list:
                return [self._make(one, storage) for one in known]
            return self._make(known, storage)

    def _ask(self, func: Any, types: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.mode.__torch_dispatch__(func, types, args, kwargs)

    def _uploaded(self, source: torch.Tensor, kwargs: Mapping[str, Any]) -> Any:
        """The fake copy of a host tensor with values.

        Made by hand: PyTorch's conversion keeps a weak reference to the host tensor, and then it
        can no longer be swapped for the copy, as moving a module does.
        """
        if is_lazy(source):
            raise RuntimeError(
                "a lazy module has no shapes before its first call, so a plan cannot move it. Call "
                "it once on the CPU, with an input of the right size, and then .to('tpu')."
            )
        dtype = kwargs.get("dtype") or source.dtype
        with self.mode:
            return torch.empty_strided(
                source.shape, source.stride(), dtype=dtype, device=kwargs.get("device")
            )

    def _counted(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The fake counts of a bincount that states its bins; None if it does not.

        Values beyond `minlength` would add bins; scripts that state it have none.
        """
        weights, bins = [*args[1:], None, 0][:2]
        weights, bins = kwargs.get("weights", weights), kwargs.get("minlength", bins)
        if not bins:
            return None
        dtype = torch.int64 if weights is None else weights.dtype
        with self.mode:
            return torch.empty(bins, dtype=dtype, device=args[0].device)

    def _kind(self, values: Iterable[Any]) -> tuple[Any, ...]:
        """All that a result's shape can depend on; numbers with their types, since 1 is True."""
        found: list[Any] = []
        for value in values:
            kind = type(value)
            if kind is FakeTensor:
                if value.fake_mode is not self.mode or not _is_plain(value):
                    raise _Other
                found.append((value.dtype, value.fake_device, value.shape, value.stride()))
            elif isinstance(value, torch.Tensor):
                raise _Other
            elif isinstance(value, (list, tuple)):
                found.append(self._kind(value))
            else:
                found += (kind, value)
        return tuple(found)

    def _make(self, result: tuple[Any, ...], storage: Any) -> FakeTensor:
        size, stride, offset, dtype, device = result
        tensor = torch.empty_strided(size, stride, dtype=dtype, device="meta")
        if storage is not None:
            tensor.set_(storage, offset, size, stride)
        return FakeTensor(self.mode, tensor, device)


def _is_plain(tensor: FakeTensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.constant is None
        and not tensor.is_conj()
        and not tensor.is_neg()
    )


def _described(makes: _Makes, args: Sequence[Any], out: Any) -> Any:
    """How to make a result again; None if it cannot be."""
    if makes is _Makes.SAME:
        return () if out is args[0] else None
    outs = out if isinstance(out, (list, tuple)) else [out]
    for tensor in outs:
        if type(tensor) is not FakeTensor or not _is_plain(tensor) or tensor.requires_grad:
            return None
        if makes is _Makes.NEW and tensor.storage_offset():
            return None
    results = [
        (tuple(t.shape), t.stride(), t.storage_offset(), t.dtype, t.fake_device) for t in outs
    ]
    return results if outs is out else results[0]


@functools.cache
def _makes(func: Any) -> _Makes | None:
    """What an operator makes, if it depends on its operands' shapes alone."""
    results, arguments = func._schema.returns, func._schema.arguments
    if (
        func.namespace != "aten"
        or not _DECIDED_OTHERWISE.isdisjoint(func.tags)
        or func._schema.name in _SHARING
        or not results
        or not all(isinstance(one.type, (torch.TensorType, torch.ListType)) for one in results)
    ):
        return None
    if func is _aten._unsafe_view.default:  # a view that nobody shall know of
        return _Makes.VIEW
    aliases = [one.alias_info for one in (*results, *arguments) if one.alias_info is not None]
    if not aliases:
        return _Makes.NEW
    if len(results) > 1 or len(aliases) != 2 or arguments[0].alias_info is None:
        return None
    if all(one.is_write for one in aliases):
        return _Makes.SAME
    return None if any(one.is_write for one in aliases) else _Makes.VIEW


_DECIDED_OTHERWISE = {
    torch.Tag.data_dependent_output,
    torch.Tag.dynamic_output_shape,
    torch.Tag.inplace_view,
}
#: Operators that may share memory between tensors, or change a shape, though nothing says so.
_SHARING = frozenset(
    f"aten::{name}"
    for name in (
        *("_reshape_alias", "contiguous", "reshape", "lift", "lift_fresh"),
        *("resize_", "resize_as_", "set_"),
    )
)
