# SPDX-License-Identifier: Apache-2.0
"""The placeholder of a value that the host reads while a script runs on shapes alone.

It is 1 unless the operators tell more. What they tell: a tensor was filled with a number; values
are finite, so `isnan` is false and `GradScaler` has found no infinity; two computed values are not
equal, so no sequence has ended early; what is counted falls into all bins alike, as tokens of a
balanced router do; a factorisation succeeds. And so on through what a script makes of these
before it reads them. Otherwise it would take the branch of a failed step, or of a finished one.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

_KNOWN = "_torchtpu_plan_value"
#: What is assumed of values that nobody computed.
_ASSUMED = {
    "isfinite": True,
    **dict.fromkeys(("isnan", "isinf", "isposinf", "isneginf", "eq", "isin"), False),
}
_FILLED = {
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros"), 0),
    **dict.fromkeys(("ones", "ones_like", "new_ones"), 1),
}
_FILLED_WITH = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0, "fill_": 1}
_SAME = frozenset(
    {"any", "all", "amax", "amin", "max", "min", "mean", "clone", "detach", "alias", "_to_copy"}
    | {"copy_", "view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "select"}
    | {"slice", "stack", "cat", "all_to_all_single", "unbind"}
    | {"split", "split_with_sizes", "permute", "transpose", "t", "flip", "roll", "repeat"}
)
#: Those of `|=` and `&=`; other operators in place have the name of theirs and an underscore.
_IN_PLACE = {"__ior__": "bitwise_or", "__iand__": "bitwise_and"}
#: Operators that count their operand's elements.
_COUNTS = frozenset(["histc", "bincount"])
#: Operators that add their last operand to elements of their first.
_ADDS = frozenset(["scatter_add", "scatter_add_", "index_add", "index_add_"])
#: Factorisations whose last result says what went wrong: 0 for nothing.
_FACTORISE = frozenset(
    ["linalg_cholesky_ex", "linalg_inv_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex"]
) | {"_linalg_solve_ex"}
_COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")
}


def follow(
    name: str, args: Sequence[Any], inputs: Sequence[torch.Tensor], outputs: Sequence[Any]
) -> None:
    """Keeps what is known of an operator's results.

    Args:
        name: of the operator, without its overload.
        args: its positional arguments.
        inputs: the tensors among them, and in lists among them.
        outputs: its results.
    """
    if name == "_amp_foreach_non_finite_check_and_unscale_":
        _know(inputs[-2], 0)  # found_inf; the last is the scale
        return
    if name == "alltoall_base_":
        _know(args[0], _known(args[1]))
        return
    if name in _FACTORISE:
        _know(outputs[-1], 0)
        return
    value = _value(name, args, inputs)
    if value is None and name.endswith("_"):
        value = _value(_IN_PLACE.get(name, name[:-1]), args, inputs)
    if name in _COUNTS:
        value = inputs[0].numel() / max(outputs[0].numel(), 1)
    if name in ("sum", "count_nonzero") and value is not None:
        value = value * inputs[0].numel() / max(outputs[0].numel(), 1)
    for tensor in outputs:
        if value is not None or _known(tensor) is not None:
            _know(tensor, value)


def of(tensor: torch.Tensor) -> float | bool:
    """What the host gets for one element of a tensor: a float or an int, bool for bool."""
    known = _known(tensor)
    value = 1 if known is None else known
    if tensor.dtype.is_floating_point:
        return float(value)
    if not math.isfinite(value):
        return 1  # an infinity that was cast: a whole number of the device's choice
    return bool(value) if tensor.dtype is torch.bool else int(value)


def is_known(tensor: torch.Tensor) -> bool:
    """Whether operators told the value of a tensor's elements."""
    return _known(tensor) is not None


def _value(name: str, args: Sequence[Any], inputs: Sequence[torch.Tensor]) -> Any:
    if name in _FILLED:
        return _FILLED[name]
    if name in _FILLED_WITH:
        return _number(args[_FILLED_WITH[name]])
    values = [_known(tensor) for tensor in inputs]
    if name in _ADDS and None not in (values[0], values[-1]):
        return values[0] + values[-1] * inputs[-1].numel() / max(inputs[0].numel(), 1)
    if name == "copy_":
        return values[-1] if values else None
    first = [_number(arg) for arg in args[:2]]
    if name in _COMPARED and None not in first and len(first) == 2:
        return _COMPARED[name](*first)
    if name in _ASSUMED:
        return _ASSUMED[name]
    if name in ("logical_not", "bitwise_not"):
        return None if values[0] is None else not values[0]
    if name in ("logical_or", "bitwise_or"):
        return _decided(first, decisive=True)
    if name in ("logical_and", "bitwise_and"):
        return _decided(first, decisive=False)
    if name in ("sum", "count_nonzero"):
        return values[0]
    if name in _SAME and values and len(set(values)) == 1:
        return values[0]
    return None


def _decided(operands: Sequence[Any], *, decisive: bool) -> bool | None:
    """The result of an or (and): one true (false) operand decides."""
    if any(value is not None and bool(value) is decisive for value in operands):
        return decisive
    return None if None in operands else not decisive


def _number(value: Any) -> Any:
    """An operand's value if it is a number or a tensor of one known value."""
    if isinstance(value, torch.Tensor):
        return _known(value)
    return value if isinstance(value, (bool, int, float)) else None


def _know(tensor: torch.Tensor, value: Any) -> None:
    setattr(tensor, _KNOWN, (value, _version(tensor)))


def _known(tensor: torch.Tensor) -> Any:
    value, version = getattr(tensor, _KNOWN, (None, 0))
    # An operator in place is counted after it has come here, one through a view later.
    return value if _version(tensor) - version <= 1 else None


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else int(tensor._version)
