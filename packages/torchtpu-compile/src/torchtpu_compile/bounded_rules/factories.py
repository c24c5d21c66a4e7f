# SPDX-License-Identifier: Apache-2.0
"""Rules for tensors made from sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from torchtpu_core.lowering import dtypes

from torchtpu_compile import rng_states
from torchtpu_compile.bounded_call import Call, Number, Rule
from torchtpu_compile.bounded_rules.common import number
from torchtpu_compile.errors import describe
from torchtpu_compile.padded import Padded, padded_size
from torchtpu_compile.symbols import Unbounded, is_static
from torchtpu_compile.true_rng import TrueRng


def _filled(call: Call) -> Padded:
    """An op whose result has the sizes it was asked for, or those of its operand."""
    dims = tuple(call.sizes.dim(e) for e in call.exprs())
    for i, value in enumerate(call.args):
        if isinstance(value, Padded):
            call.args[i] = Padded(
                jnp.zeros([padded_size(d) for d in dims], value.array.dtype), dims
            )
    return Padded(call.run(), dims)


def _arange(call: Call) -> Padded:
    schema = [a.name for a in call.node.target._schema.arguments]  # type: ignore[union-attr]
    start = call.arg("start") if "start" in schema else 0
    step = call.arg("step") if "step" in schema else 1
    (expr,) = call.exprs()
    numbers = (start, step)
    if is_static(expr) and not any(_is_open(v) for v in numbers):
        return call.result(call.run())
    dtype = dtypes.to_numpy(call.node.meta["val"].dtype)
    dim = call.sizes.dim(expr)
    kind = np.int64 if all(_is_whole(v) for v in numbers) else np.float64
    first, by = (number(call, v, kind) for v in numbers)
    count = jnp.arange(padded_size(dim), dtype=np.int64).astype(kind)
    return Padded((first + count * by).astype(dtype), (dim,))


def _is_open(value: Any) -> bool:
    return isinstance(value, Number) or hasattr(value, "free_symbols")


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) or hasattr(value, "free_symbols")


_FILLED = (
    "full",
    "zeros",
    "ones",
    "empty.memory_format",
    "empty_strided",
    "full_like",
    "zeros_like",
    "ones_like",
    "empty_like",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "new_empty_strided",
    "rand",
    "randn",
    "rand_like",
    "randn_like",
    "randint",
    "randint.low",
    "randint_like",
    "randint_like.low_dtype",
)


_COUNTED = ("aten::arange", "aten::arange.start", "aten::arange.start_step", "prims::iota")

_DRAWN_LIKE = (
    "native_dropout",
    "bernoulli.p",
    "bernoulli_.float",
    "random",
    "random.to",
    "random.from",
    "uniform",
    "normal_",
    "normal_functional",
    "exponential",
    "geometric",
    "log_normal",
    "cauchy",
    "rrelu_with_noise_functional",
)


#: Their parameters are tensors; 0 is a legal one, with which no loop goes on.
_SAMPLED = ("bernoulli", "poisson", "binomial", "_standard_gamma", "_sample_dirichlet")


def _sampled(call: Call) -> object:
    """Random ops with a parameter for each element, and 0 for what is no element.

    Parts of a Dirichlet sample whose parameter is 0 add nothing to its sum.
    """
    call.args[:] = [
        call.sizes.filled(call.sizes.compact(a), 0) if isinstance(a, Padded) else a
        for a in call.args
    ]
    if len({a.dims for a in call.args if isinstance(a, Padded)}) > 1:
        raise Unbounded(f"{describe(call.node)} broadcasts its parameters")
    return _same_draws(call)


def _same_draws(call: Call) -> object:
    """Random ops whose results have the sizes of their operands."""
    call.args[:] = [call.sizes.compact(a) if isinstance(a, Padded) else a for a in call.args]
    x = call.args[0]
    values = call.run()
    if isinstance(values, (list, tuple)):
        return [Padded(v, x.dims) for v in values]
    return Padded(values, x.dims)


def _drawn(call: Call) -> Padded:
    """A draw from a state, by places in the true tensor."""
    at = rng_states.unpack(call.sizes.compact(call.args[0]).array)
    call.args[0] = TrueRng.of(at, call.sizes, call.exprs())
    return _filled(call)


RULES: Mapping[str, Rule] = {
    **dict.fromkeys((f"aten::{name}" for name in _FILLED), _filled),
    **dict.fromkeys(_COUNTED, _arange),
    **dict.fromkeys(("torchtpu_inductor::draw", "torchtpu_inductor::draw_whole"), _drawn),
    **dict.fromkeys((f"aten::{name}" for name in _DRAWN_LIKE), _same_draws),
    **dict.fromkeys((f"aten::{name}" for name in _SAMPLED), _sampled),
    "aten::scalar_tensor": lambda call: Padded(jnp.asarray(call.run()), ()),
}
