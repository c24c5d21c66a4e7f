# SPDX-License-Identifier: Apache-2.0
"""Numbers that PyTorch refuses by their value.

A call's numbers are operands of its program, so that a second call with other numbers is not
looked at again. ``csrc/number_range.cpp`` looks at each call by the rules of this table, and where
one does not hold the numbers count as a new kind of call: CPU PyTorch is asked once, and it raises
its own error or takes them. A rule may thus be stricter than the CPU, never laxer.

Not here: what is computed with (`x + 300` takes what is left of it, there as here).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_FACTORS = ("alpha fits", "beta fits")
_ALPHA, _LAMBDA, _MARGIN, _VALUE = (
    ("alpha fits",),
    ("lambd fits",),
    ("margin fits",),
    ("value fits",),
)
_SCALAR, _SCALARS = ("scalar fits",), ("scalars fits",)
_LIMITS = ("min_val fits", "max_val fits", "min_val >= 0 if whole", "max_val >= 0 if whole")
_DIVISOR = ("other != 0 if whole",)
_EXPONENT = ("exponent fits", "exponent >= 0 if whole")
_ELU = ("alpha fits", "scale fits", "input_scale fits")

#: By an operator's name, with an overload or for all of them: what holds of its numbers, as
#: ``<argument> fits``: the dtype of the result holds it;
#: ``<argument> counts``: that dtype holds each whole number up to it;
#: ``<argument> halves``: that dtype holds twice as much;
#: ``<argument> <relation> <number or other argument>``.
#: With ``if whole`` at its end a rule is for integers and truth values alone.
NUMBERS: Mapping[str, tuple[str, ...]] = {
    "aten::_foreach_add": _ALPHA,
    "aten::_foreach_addcdiv": (*_VALUE, *_SCALARS),
    "aten::_foreach_addcmul": (*_VALUE, *_SCALARS),
    "aten::_foreach_clamp_max": (*_SCALAR, *_SCALARS),
    "aten::_foreach_clamp_min": (*_SCALAR, *_SCALARS),
    "aten::_foreach_maximum": (*_SCALAR, *_SCALARS),
    "aten::_foreach_minimum": (*_SCALAR, *_SCALARS),
    "aten::_foreach_sub": _ALPHA,
    "aten::_unsafe_masked_index": ("fill fits",),
    "aten::add": _ALPHA,
    "aten::addbmm": _FACTORS,
    "aten::addcdiv": _VALUE,
    "aten::addcmul": _VALUE,
    "aten::addmm": _FACTORS,
    "aten::addmv": _FACTORS,
    "aten::addr": _FACTORS,
    "aten::baddbmm": _FACTORS,
    "aten::bernoulli": ("p >= 0", "p <= 1"),
    "aten::cauchy": ("sigma > 0",),
    "aten::celu": ("alpha != 0", *_ALPHA),
    "aten::clamp": ("min fits", "max fits"),
    "aten::clamp_max": ("max fits",),
    "aten::clamp_min": ("min fits",),
    "aten::constant_pad_nd": _VALUE,
    "aten::div.Scalar_mode": _DIVISOR,
    "aten::div.Tensor_mode": _DIVISOR,
    "aten::elu": _ELU,
    "aten::elu_backward": _ELU,
    "aten::exponential": ("lambd > 0",),
    "aten::fake_quantize_per_tensor_affine_cachemask": (
        "zero_point >= quant_min",
        "zero_point <= quant_max",
    ),
    "aten::fill": _VALUE,
    "aten::fill_diagonal": ("fill_value fits",),
    "aten::floor_divide": _DIVISOR,
    "aten::fmod": _DIVISOR,
    "aten::full": ("fill_value fits",),
    "aten::full_like": ("fill_value fits",),
    "aten::geometric": ("p > 0", "p < 1"),
    "aten::hardshrink": _LAMBDA,
    "aten::hardshrink_backward": _LAMBDA,
    "aten::hardtanh": _LIMITS,
    "aten::hardtanh_backward": _LIMITS,
    "aten::histc": ("min <= max", "min fits", "max fits"),
    "aten::huber_loss": ("delta > 0",),
    "aten::index_add": _ALPHA,
    "aten::index_fill": _VALUE,
    "aten::leaky_relu": ("negative_slope fits",),
    "aten::leaky_relu_backward": ("negative_slope fits",),
    "aten::lerp": ("weight fits",),
    "aten::log_normal": ("std > 0",),
    "aten::masked_fill": _VALUE,
    "aten::multi_margin_loss": _MARGIN,
    "aten::multi_margin_loss_backward": _MARGIN,
    "aten::native_dropout": ("p >= 0", "p <= 1"),
    "aten::new_full": ("fill_value fits",),
    "aten::normal": ("std >= 0", "mean fits"),
    "aten::normal_functional": ("std >= 0",),
    "aten::pow": _EXPONENT,
    "aten::random.from": ("from < to", "from counts", "to counts"),
    "aten::random.to": ("to > 0", "to counts"),
    "aten::remainder": _DIVISOR,
    "aten::renorm": ("maxnorm >= 0",),
    "aten::rrelu_with_noise": ("lower <= upper", "lower halves", "upper halves"),
    "aten::rsub": _ALPHA,
    "aten::scatter": _VALUE,
    "aten::segment_reduce": ("initial fits",),
    "aten::smooth_l1_loss": ("beta >= 0",),
    "aten::softplus": ("beta fits", "threshold fits"),
    "aten::softplus_backward": ("beta fits", "threshold fits"),
    "aten::softshrink": ("lambd >= 0", "lambd halves"),
    "aten::softshrink_backward": _LAMBDA,
    "aten::sub": _ALPHA,
    "aten::threshold": ("threshold fits", "value fits"),
    "aten::threshold_backward": ("threshold fits",),
    "aten::uniform": ("from <= to", "from halves", "to halves"),
}


class Rule(NamedTuple):
    """What holds of a number: see `NUMBERS`. `other` is a number or an argument's name."""

    argument: str
    relation: str
    other: float | str
    whole: bool


def rules_of(overload: str) -> list[Rule]:
    """The rules of an overload, in place or not."""
    base, _, variant = overload.partition(".")
    base = base.removesuffix("_")
    return [
        _rule(words.split())
        for key in (base, f"{base}.{variant}")
        for words in NUMBERS.get(key, ())
    ]


def _rule(words: list[str]) -> Rule:
    whole = words[-2:] == ["if", "whole"]
    argument, relation, *other = words[:-2] if whole else words
    last = other[0] if other else "0"
    return Rule(argument, relation, last if last.isidentifier() else float(last), whole)
