# SPDX-License-Identifier: Apache-2.0
"""Numbers that a dtype cannot hold, which PyTorch refuses where it converts them.

``csrc/number_range.cpp`` looks at them when an operator is called. What is computed with a number
(`x + 300`) takes what is left of it instead, there as here.
"""

from __future__ import annotations

from collections.abc import Mapping

_EXACTLY, _IN_OPMATH, _PROMOTED = "exactly", "in opmath", "promoted"
_VALUE, _FILL_VALUE = {"value": _EXACTLY}, {"fill_value": _EXACTLY}
_FACTORS = {"alpha": _IN_OPMATH, "beta": _IN_OPMATH}
_BOUNDS = {"min": _PROMOTED, "max": _PROMOTED}

#: By an operator's name without overload: its numbers, and what each has to fit.
NUMBERS: Mapping[str, Mapping[str, str]] = {
    "aten::addbmm": _FACTORS,
    "aten::addcdiv": {"value": _IN_OPMATH},
    "aten::addcmul": {"value": _IN_OPMATH},
    "aten::addmm": _FACTORS,
    "aten::addmv": _FACTORS,
    "aten::addr": _FACTORS,
    "aten::baddbmm": _FACTORS,
    "aten::clamp": _BOUNDS,
    "aten::clamp_max": _BOUNDS,
    "aten::clamp_min": _BOUNDS,
    "aten::constant_pad_nd": _VALUE,
    "aten::elu": {"alpha": _IN_OPMATH, "scale": _IN_OPMATH, "input_scale": _IN_OPMATH},
    "aten::fill": _VALUE,
    "aten::fill_diagonal": _FILL_VALUE,
    "aten::full": _FILL_VALUE,
    "aten::full_like": _FILL_VALUE,
    "aten::hardshrink": {"lambd": _EXACTLY},
    "aten::hardtanh": {"min_val": _EXACTLY, "max_val": _EXACTLY},
    "aten::index_add": {"alpha": _EXACTLY},
    "aten::index_fill": _VALUE,
    "aten::leaky_relu": {"negative_slope": _IN_OPMATH},
    "aten::lerp": {"weight": _IN_OPMATH},
    "aten::masked_fill": _VALUE,
    "aten::new_full": _FILL_VALUE,
    "aten::scatter": _VALUE,
    "aten::softplus": {"beta": _IN_OPMATH, "threshold": _IN_OPMATH},
    "aten::softshrink": {"lambd": _IN_OPMATH},
    "aten::threshold": {"threshold": _EXACTLY, "value": _EXACTLY},
}
