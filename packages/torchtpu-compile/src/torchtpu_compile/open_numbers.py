# SPDX-License-Identifier: Apache-2.0
"""Ops called with a float that changes, such as a scheduled learning rate.

AOTAutograd makes a 0-d tensor of such a float where it meets a product, sum, difference or
quotient, and otherwise has the graph compiled anew for each value. So an op that takes it in
another place is taken apart into these, or gets a product of one and the float as a tensor;
with plain numbers it stays as it is. Tracing takes it apart before its derivative is made, and so
for Inductor, which has decompositions of its own, too; an op that makes a tensor of a number alone
(`full`) cannot be seen there, and is taken apart by our table of decompositions only. A float that
PyTorch's parser of arguments makes a C++ double (`nan_to_num`, `eps` of a norm) is fixed by then.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torchtpu_core.lowering.out_forms import require_castable

aten = torch.ops.aten
Function = Callable[..., Any]


def _is_open(*numbers: Any) -> bool:
    return any(isinstance(number, torch.SymFloat) for number in numbers)


def _tensor(number: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """A number as `()`."""
    return torch.ones((), dtype=dtype, device=device) * number


def _wide(x: Tensor) -> torch.dtype:
    """What an op of a tensor and a float computes in."""
    if not (x.is_floating_point() or x.is_complex()):
        return torch.get_default_dtype()
    return torch.float32 if x.dtype.itemsize < 4 else x.dtype


def _scaled(sign: int) -> Function:
    def function(x: Tensor, y: Any, *, alpha: Any = 1) -> Any:
        if not _is_open(alpha):
            return NotImplemented
        return x + y * alpha if sign > 0 else x - y * alpha

    return function


def _third(one: Function) -> Function:
    def function(x: Tensor, y: Tensor, z: Tensor, *, value: Any = 1) -> Any:
        return _plus_scaled(one, x, y, z, value) if _is_open(value) else NotImplemented

    return function


def _plus_scaled(one: Function, x: Tensor, y: Tensor, z: Tensor, value: Any) -> Tensor:
    """`x + one(y, z) * value`, rounded once."""
    wide = _wide(x)
    return (x.to(wide) + one(y.to(wide), z.to(wide)) * value).to(x.dtype)


def _fma(x: Tensor, y: Any, z: Tensor) -> Any:
    if not _is_open(y):
        return NotImplemented
    wide = _wide(z)
    return (x.to(wide) * y + z.to(wide)).to(z.dtype)


def _as_tensors(op: Function) -> Function:
    """An op of a tensor, whose numbers may be tensors as well."""

    def function(x: Tensor, *numbers: Any) -> Any:
        if not _is_open(*numbers) or not isinstance(x, Tensor):
            return NotImplemented
        wide = _wide(x)
        given = [n if n is None else _tensor(n, wide, x.device) for n in numbers]
        result = op(x.to(wide), *given)
        return result.to(x.dtype) if x.is_floating_point() or x.is_complex() else result

    return function


_clamped = _as_tensors(torch.clamp)


def _clamp(x: Tensor, min: Any = None, max: Any = None) -> Any:
    return _clamped(x, min, max)


def _lerp(x: Tensor, end: Tensor, weight: Any) -> Any:
    if not _is_open(weight):
        return NotImplemented
    wide = _wide(x)
    return torch.lerp(x.to(wide), end.to(wide), _tensor(weight, wide, x.device)).to(x.dtype)


def _power_of(base: Any, x: Tensor) -> Any:
    if not _is_open(base):
        return NotImplemented
    wide = _wide(x)
    result = torch.pow(_tensor(base, wide, x.device), x.to(wide))
    return result.to(x.dtype) if x.is_floating_point() else result


def _rounded_quotient(x: Tensor, y: Any, *, rounding_mode: str | None) -> Any:
    return _as_tensors(lambda a, b: torch.div(a, b, rounding_mode=rounding_mode))(x, y)


def _fill(x: Tensor, value: Any) -> Any:
    return torch.ones_like(x) * value if _is_open(value) else NotImplemented


def _full_like(x: Tensor, value: Any, **kwargs: Any) -> Any:
    return torch.ones_like(x, **kwargs) * value if _is_open(value) else NotImplemented


def _full(size: Sequence[Any], value: Any, **kwargs: Any) -> Any:
    return torch.ones(size, **kwargs) * value if _is_open(value) else NotImplemented


def _scalar_tensor(value: Any, **kwargs: Any) -> Any:
    return _full((), value, **kwargs)


def _masked_fill(x: Tensor, mask: Tensor, value: Any) -> Any:
    if not _is_open(value):
        return NotImplemented
    return torch.where(mask, _tensor(value, x.dtype, x.device), x)


def _index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Any:
    if not _is_open(value):
        return NotImplemented
    return torch.index_fill(x, dim, index, _tensor(value, _wide(x), x.device).to(x.dtype))


def _where(condition: Tensor, x: Any, y: Any) -> Any:
    """A choice of numbers, or of a tensor and a number."""
    if not _is_open(x, y) or isinstance(x, complex) or isinstance(y, complex):
        return NotImplemented
    tensor = next((v for v in (x, y) if isinstance(v, Tensor)), None)
    dtype = torch.get_default_dtype() if tensor is None else torch.result_type(tensor, 1.0)
    x, y = (v if isinstance(v, Tensor) else _tensor(v, dtype, condition.device) for v in (x, y))
    return torch.where(condition, x, y)


def _leaky_relu(x: Tensor, negative_slope: Any = 0.01) -> Any:
    if not _is_open(negative_slope):
        return NotImplemented
    return torch.where(x > 0, x, x * negative_slope)


def _elu(x: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Any:
    if not _is_open(alpha, scale, input_scale):
        return NotImplemented
    wide = x.to(_wide(x))
    below = torch.expm1(wide * input_scale) * (alpha * scale)
    return torch.where(wide > 0, wide * scale, below).to(x.dtype)


def _celu(x: Tensor, alpha: Any = 1.0) -> Any:
    return aten.elu(x, alpha, 1.0, 1 / alpha) if _is_open(alpha) else NotImplemented


def _apart(op: Any) -> Function:
    """PyTorch's own formula of an activation."""

    def function(*args: Any, **kwargs: Any) -> Any:
        if not _is_open(*args, *kwargs.values()):
            return NotImplemented
        return torch._decomp.decomposition_table[op](*args, **kwargs)

    return function


def _sum_and_product(product: Function) -> Function:
    def function(x: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
        if not _is_open(beta, alpha):
            return NotImplemented
        scaled = product(a, b) * alpha
        if not _is_open(beta):
            return scaled if beta == 0 else x * beta + scaled
        # A factor of 0 hides what is not finite.
        hidden = _tensor(beta, _wide(x), x.device) == 0
        return torch.where(hidden, torch.zeros_like(x), x * beta) + scaled

    return function


def _each(one: Function, lists: int) -> Function:
    """An op for each of several tensors, with a number for all or for each."""

    def function(*args: Any, **kwargs: Any) -> Any:
        given = [*args, *kwargs.values()]
        tensors, numbers = given[:lists], given[lists:]
        number = numbers[0] if numbers else 1
        count = len(tensors[0])
        each = list(number) if isinstance(number, (tuple, list)) else [number] * count
        if not _is_open(*each):
            return NotImplemented
        return [one(*some, n) for *some, n in zip(*tensors, each, strict=True)]

    return function


def _each_power_of(base: Any, exponents: Sequence[Tensor]) -> Any:
    return [_power_of(base, x) for x in exponents] if _is_open(base) else NotImplemented


def _scaled_sum(x: Tensor, y: Tensor, alpha: Any) -> Tensor:
    return x + y * alpha


def _scaled_difference(x: Tensor, y: Tensor, alpha: Any) -> Tensor:
    return x - y * alpha


_ATEN: Mapping[Any, Function] = {
    aten.add.Tensor: _scaled(1),
    aten.sub.Tensor: _scaled(-1),
    aten.addcmul.default: _third(torch.mul),
    aten.addcdiv.default: _third(torch.div),
    aten.addmm.default: _sum_and_product(torch.mm),
    aten.baddbmm.default: _sum_and_product(torch.bmm),
    aten.celu.default: _celu,
    aten.clamp.default: _clamp,
    aten.clamp_max.default: _as_tensors(torch.minimum),
    aten.clamp_min.default: _as_tensors(torch.maximum),
    aten.div.Tensor_mode: _rounded_quotient,
    aten.elu.default: _elu,
    aten.fill.Scalar: _fill,
    aten.fmod.Scalar: _as_tensors(torch.fmod),
    aten.full.default: _full,
    aten.full_like.default: _full_like,
    aten.index_fill.int_Scalar: _index_fill,
    aten.leaky_relu.default: _leaky_relu,
    aten.hardtanh.default: _clamp,
    aten.lerp.Scalar: _lerp,
    aten.masked_fill.Scalar: _masked_fill,
    aten.pow.Scalar: _power_of,
    aten.pow.Tensor_Scalar: _as_tensors(torch.pow),
    aten.remainder.Scalar: _as_tensors(torch.remainder),
    aten.scalar_tensor.default: _scalar_tensor,
    aten._foreach_add.List: _each(_scaled_sum, 2),
    aten._foreach_sub.List: _each(_scaled_difference, 2),
    aten._foreach_pow.ScalarAndTensor: _each_power_of,
    **{
        op: _apart(op)
        for op in (
            aten.elu_backward.default,
            aten.hardtanh_backward.default,
            aten.leaky_relu_backward.default,
            aten.softplus.default,
            aten.softplus_backward.default,
            aten.threshold.default,
            aten.threshold_backward.default,
        )
    },
    **{
        overload: _each(one, lists)
        for packet, one, lists in (
            (aten._foreach_add, torch.add, 1),
            (aten._foreach_sub, torch.sub, 1),
            (aten._foreach_mul, torch.mul, 1),
            (aten._foreach_div, torch.div, 1),
            (aten._foreach_pow, torch.pow, 1),
            (aten._foreach_clamp_max, torch.clamp_max, 1),
            (aten._foreach_clamp_min, torch.clamp_min, 1),
            (aten._foreach_maximum, torch.clamp_min, 1),
            (aten._foreach_minimum, torch.clamp_max, 1),
            (aten._foreach_lerp, torch.lerp, 2),
            (aten._foreach_addcmul, functools.partial(_plus_scaled, torch.mul), 3),
            (aten._foreach_addcdiv, functools.partial(_plus_scaled, torch.div), 3),
        )
        for overload in (packet.Scalar, packet.ScalarList)
    },
}

#: Ops that PyTorch takes apart before any table sees them.
_COMPOSITES: Mapping[Any, Function] = {
    aten.where.Scalar: _where,
    aten.where.ScalarOther: _where,
    aten.where.ScalarSelf: _where,
}


@functools.cache
def register() -> None:
    """Let tracing on the device take them apart, whatever table of decompositions it has.

    It does so before derivatives are taken: PyTorch's formulas ask whether the float is zero or
    one, take its logarithm or its conjugate.
    """
    for op, form in _COMPOSITES.items():
        _let_trace(op, form)
    for op, form in _ATEN.items():
        if any("Tensor" in str(a.type) for a in op._schema.arguments):
            _let_trace(op, form)
            in_place = _in_place(op)
            if in_place is not None:
                _let_trace(in_place, _written(form, casts=op is aten.fill.Scalar))


def register_prims() -> None:
    """The same for the op that Dynamo makes of an in-place addcdiv."""
    _let_trace(torch.ops.prims.fma.default, _fma)


def _let_trace(op: Any, form: Function) -> None:
    op.py_impl(torch._C.DispatchKey.AutogradPrivateUse1)(_or_pytorchs(op, form))


def _in_place(op: Any) -> Any:
    """The overload that writes its first operand; None if there is none."""
    packet = getattr(aten, f"{op._schema.name.removeprefix('aten::')}_", None)
    overload = op._schema.overload_name or "default"
    return getattr(packet, overload, None)


def _written(form: Function, *, casts: bool) -> Function:
    """The form of an op that writes its first operand; `casts`: whatever the operand's dtype."""

    def write(x: Tensor, value: Tensor) -> Tensor:
        if not casts:
            require_castable(value, x)
        return x.copy_(value)

    def function(x: Any, *args: Any, **kwargs: Any) -> Any:
        result = form(x, *args, **kwargs)
        if result is NotImplemented:
            return result
        if isinstance(x, Tensor):
            return write(x, result)
        for tensor, value in zip(x, result, strict=True):
            write(tensor, value)
        return None

    return function


def _or_pytorchs(op: Any, form: Function) -> Function:
    composite = torch._C.DispatchKey.CompositeImplicitAutograd
    is_composite = op.has_kernel_for_dispatch_key(composite)
    key = composite if is_composite else torch._C.DispatchKey.Autograd

    def run(*args: Any, **kwargs: Any) -> Any:
        result = form(*args, **kwargs)
        if result is NotImplemented:
            return op._op_dk(key, *args, **kwargs)
        return result

    return run


def decompositions() -> dict[Any, Function]:
    """For AOTAutograd."""
    import torch._prims  # registers the operator that an in-place addcdiv becomes

    return {**_ATEN, torch.ops.prims.fma.default: _fma}
