# SPDX-License-Identifier: Apache-2.0
"""Ops that compute each element on its own without PyTorch's tag `pointwise`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from torchtpu_compile.aligned import elementwise
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import refuse
from torchtpu_compile.padded import Padded

_NAMES = (
    "_conj",
    "_fake_quantize_per_tensor_affine_cachemask_tensor_qparams",
    "_neg_view",
    "_prelu_kernel",
    "_prelu_kernel_backward",
    "_standard_gamma_grad",
    "bernoulli.Tensor",
    "complex",
    "detach_copy",
    "elu_backward",
    "fill.Scalar",
    "fill.Tensor",
    "floor_divide.Scalar",
    "hardshrink_backward",
    "hardsigmoid_backward",
    "hardswish",
    "hardswish_backward",
    "hardtanh_backward",
    "leaky_relu_backward",
    "lift",
    "lift_fresh",
    "log_sigmoid_backward",
    "masked_fill.Tensor",
    "mish_backward",
    "normal.Tensor_Tensor",
    "normal.Tensor_float",
    "normal.float_Tensor",
    "polar",
    "rrelu_with_noise_backward",
    "rsub.Tensor",
    "softplus_backward",
    "softshrink_backward",
    "zero",
)

_DIVISIONS = (
    "div.Tensor_mode",
    "floor_divide",
    "fmod.Tensor",
    "remainder.Scalar_Tensor",
    "remainder.Tensor",
)


def _divided(call: Call) -> Any:
    """Whole numbers are divided by one in the padding: by zero it would be an error."""
    divisor = call.arg("other")
    if isinstance(divisor, Padded) and jnp.issubdtype(divisor.array.dtype, jnp.integer):
        call.set("other", call.sizes.filled(divisor, 1))
    return elementwise(call)


def _observed(call: Call) -> Any:
    """Padding repeats a value of the tensor, so that it has no least or most of its own."""
    x = call.sizes.compact(call.arg("self"))
    if x.padded_dims and call.arg("per_row_fake_quant"):
        raise refuse(call, "observes the range of each channel")
    call.set("self", call.sizes.filled(x, x.array.reshape(-1)[0]))
    value, within, *state = call.run()
    return [Padded(value, x.dims), Padded(within, x.dims), *map(call.sizes.static, state)]


def _asserted(call: Call) -> Any:
    """What passes through a check of one element stays as it is."""
    call.set("self", call.sizes.filled(call.arg("self"), 1))
    return Padded(call.run(), call.arg("dep_token").dims)


RULES: Mapping[str, Rule] = {
    **{f"aten::{name}": elementwise for name in _NAMES},
    **{f"aten::{name}": _divided for name in _DIVISIONS},
    "aten::_functional_assert_async.msg": _asserted,
    "aten::_fused_moving_avg_obs_fq_helper_functional": _observed,
}
