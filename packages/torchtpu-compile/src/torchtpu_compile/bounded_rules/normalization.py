# SPDX-License-Identifier: Apache-2.0
"""Rules for softmax and normalisation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torchtpu_core.lowering import dtypes
from torchtpu_core.lowering.promotion import cast

from torchtpu_compile.aligned import align, joint_dims
from torchtpu_compile.bounded_call import Call, Rule
from torchtpu_compile.bounded_rules.common import dim_of, has_argument, refuse, require_plain
from torchtpu_compile.bounded_rules.reductions import count_of, moments
from torchtpu_compile.padded import Dim, Padded, is_padded, padded_size, same_dim, true_size


def _softmax(call: Call) -> Padded:
    x = call.args[0]
    dim = dim_of(x, call.args[1])
    call.args[0] = call.sizes.filled(x, -jnp.inf, [dim])
    return Padded(call.run(), x.dims)


def _softmax_backward(call: Call) -> Padded:
    grad, output = align(call.sizes, call.args[:2])
    dim = dim_of(output, call.args[2])
    call.args[:2] = [call.sizes.filled(x, 0, [dim]) for x in (grad, output)]
    return Padded(call.run(), _slope_dims(call, grad, output))


def _slope_dims(call: Call, grad: Padded, x: Padded) -> tuple[Dim, ...]:
    """The dimensions of the gradient of `x`: each states its size as the tracer saw it."""
    value = call.node.meta["val"]
    several = isinstance(value, (list, tuple))
    if several and value[0] is None:
        return x.dims
    return joint_dims([grad, x], call.exprs(0 if several else None))


def _layer_norm(call: Call) -> Any:
    x = call.args[0]
    lead = len(x.dims) - len(call.args[1])
    own = range(lead, len(x.dims))
    if any(is_padded(x.dims[d]) for d in own):
        x = call.args[0] = call.sizes.compact(x)
        variance, mean = moments(call, x, list(own), 0.0)
        rstd = lax.rsqrt(variance + cast(call.arg("eps"), variance.dtype))
        out = (cast(x.array, mean.dtype) - mean) * rstd
        weight, bias = (_for_each(call, name, x, lead, mean.dtype) for name in ("weight", "bias"))
        out = out * (1 if weight is None else weight) + (0 if bias is None else bias)
    else:
        out, mean, rstd = call.run()
    statistics = (*x.dims[:lead], *((),) * len(own))
    return [Padded(out, x.dims), Padded(mean, statistics), Padded(rstd, statistics)]


def _for_each(call: Call, name: str, x: Padded, lead: int, dtype: np.dtype) -> jax.Array | None:
    """A parameter of layer norm with a number for each element of what is normalised."""
    value = call.arg(name)
    if value is None:
        return None
    value = call.sizes.compact(value)
    if not all(map(same_dim, value.dims, x.dims[lead:])):
        raise refuse(call, f"has a {name} whose padding differs from that of its input")
    return cast(value.array, dtype)


def _layer_norm_backward(call: Call) -> Any:
    # aten::native_layer_norm_backward(grad_out, input, normalized_shape, mean, rstd, ...)
    x = call.args[1]
    lead = len(x.dims) - len(call.args[2])
    is_open = any(is_padded(x.dims[d]) for d in range(lead, len(x.dims)))
    operands = [call.args[i] for i in (0, 1, 3, 4)]
    if is_open:
        operands = [call.sizes.compact(value) for value in operands]
    grad, x, mean, rstd = align(call.sizes, operands)
    for i, value in zip((0, 1, 3, 4), (grad, x, mean, rstd), strict=True):
        call.args[i] = call.sizes.filled(value, 0)
    results = _layer_gradients(call, lead) if is_open else call.run()
    own = x.dims[lead:]
    dims = (_slope_dims(call, grad, x), own, own)
    return [None if r is None else Padded(r, d) for r, d in zip(results, dims, strict=True)]


def _layer_gradients(call: Call, lead: int) -> list[jax.Array | None]:
    """Gradients of layer norm along open dimensions; the operands are zero in all padding."""
    x = call.args[1]
    dtype = np.dtype(dtypes.opmath(x.array.dtype))
    slope, values, mean, rstd = (cast(call.args[i].array, dtype) for i in (0, 1, 3, 4))
    own, batch = tuple(range(lead, len(x.dims))), tuple(range(lead))
    if call.arg("weight") is not None:
        call.set("weight", call.sizes.filled(call.sizes.compact(call.arg("weight")), 0))
    weight = _for_each(call, "weight", x, lead, dtype)
    hat = (values - mean) * rstd
    each = slope if weight is None else slope * weight
    share = 1 / count_of(call, x, list(own)).astype(dtype)
    total = jnp.sum(each, axis=own, keepdims=True) * share
    inner = jnp.sum(each * hat, axis=own, keepdims=True) * share
    gradients = (
        (each - total - hat * inner) * rstd,
        jnp.sum(slope * hat, axis=batch),
        jnp.sum(slope, axis=batch),
    )
    return [g if m else None for g, m in zip(gradients, call.arg("output_mask"), strict=True)]


def _rms_norm(call: Call) -> Any:
    x = call.args[0]
    lead = len(x.dims) - len(call.args[1])
    require_plain(call, x, range(lead, len(x.dims)))
    out, rstd = call.run()
    return [Padded(out, x.dims), Padded(rstd, (*x.dims[:lead], *((),) * (len(x.dims) - lead)))]


def _evaluated_batch_norm(call: Call) -> Any:
    """Batch norm with running statistics: each element on its own."""
    x = call.args[0]
    channel = is_padded(x.dims[1])
    if channel:
        require_plain(call, x, [1])
    results = list(call.run())
    return [Padded(results[0], x.dims), *results[1:]]


def _trained_batch_norm(call: Call) -> Any:
    """Batch norm with the statistics of the batch: moments of what is true."""
    x = call.args[0]
    if call.arg("training") is False:
        return _evaluated_batch_norm(call)
    _require_plain_channels(call, x)
    along = [0, *range(2, len(x.dims))]
    variance, mean = moments(call, x, along, 0.0)
    dtype = variance.dtype
    invstd = lax.rsqrt(variance + cast(call.arg("eps"), dtype))
    out = (cast(x.array, dtype) - mean) * invstd
    lane = [1, -1] + [1] * (len(x.dims) - 2)
    weight, bias = call.arg("weight"), call.arg("bias")
    if weight is not None:
        out = out * cast(weight.array, dtype).reshape(lane)
    if bias is not None:
        out = out + cast(bias.array, dtype).reshape(lane)
    channel = (x.dims[1],)
    statistics = [Padded(s.reshape(-1), channel) for s in (mean, invstd)]
    results = [Padded(out, x.dims), *statistics]
    running = _moved(call, mean.reshape(-1), variance.reshape(-1), count_of(call, x, along))
    return results + running


def _require_plain_channels(call: Call, x: Padded) -> None:
    """Refuse channels of open number, unless all that is given for each of them lies as they do."""
    given = [call.arg(name) for name in _PER_CHANNEL if has_argument(call, name)]
    if not all(value is None or same_dim(value.dims[0], x.dims[1]) for value in given):
        require_plain(call, x, [1])


def _moved(call: Call, mean: jax.Array, variance: jax.Array, count: jax.Array) -> list[jax.Array]:
    """The running statistics after this batch, if the op keeps them."""
    if not has_argument(call, "running_mean"):
        return []
    rate = cast(call.arg("momentum"), mean.dtype)
    count = count.astype(mean.dtype)
    unbiased = variance * count / jnp.maximum(count - 1, 1)
    new = []
    for name, value in (("running_mean", mean), ("running_var", unbiased)):
        old = call.arg(name)
        if old is None:
            raise refuse(call, "keeps running statistics that it was not given")
        new.append(rate * value + (1 - rate) * cast(old.array, mean.dtype))
    return new


def _batch_norm_backward(call: Call) -> Any:
    # aten::native_batch_norm_backward(grad_out, input, weight, running_mean, running_var, ...)
    if call.arg("train"):
        grad, x, *lanes = _aligned_channels(call)
        results = _batch_gradients(call, grad, x, lanes)
    else:
        grad, x = align(call.sizes, call.args[:2])
        require_plain(call, x, [1])
        call.args[:2] = [call.sizes.filled(value, 0) for value in (grad, x)]
        results = call.run()
    channel = (x.dims[1],)
    dims = (_slope_dims(call, grad, x), channel, channel)
    return [None if r is None else Padded(r, d) for r, d in zip(results, dims, strict=True)]


def _aligned_channels(call: Call) -> list[Padded]:
    """Slope and input of batch norm, and the numbers of each channel broadcast against them."""
    x = call.args[1]
    values = [call.arg(name) for name in (*_SAVED, "weight")]
    behind = len(x.dims) - 2
    lanes = [
        Padded(value.array.reshape(1, -1, *[1] * behind), ((), *value.dims, *((),) * behind))
        for value in values
        if value is not None
    ]
    return align(call.sizes, [call.args[0], x, *lanes])


def _batch_gradients(call: Call, grad: Padded, x: Padded, lanes: list[Padded]) -> list[Any]:
    """Gradients by the batch's own mean and 1 / deviation, which lead `lanes`; then a weight."""
    along = [0, *range(2, len(x.dims))]
    dtype = np.dtype(dtypes.opmath(x.array.dtype))
    mean, invstd, *weight = (cast(lane.array, dtype) for lane in lanes)
    slope = cast(call.sizes.filled(grad, 0).array, dtype)
    hat = (cast(call.sizes.filled(x, 0).array, dtype) - mean) * invstd
    total = jnp.sum(slope, axis=tuple(along), keepdims=True)
    inner = jnp.sum(slope * hat, axis=tuple(along), keepdims=True)
    share = 1 / count_of(call, x, along).astype(dtype)
    scale = invstd * weight[0] if weight else invstd
    gradients = (slope - total * share - hat * inner * share) * scale, inner, total
    shapes = x.array.shape, (-1,), (-1,)
    return [
        value.reshape(shape) if wanted else None
        for value, shape, wanted in zip(gradients, shapes, call.arg("output_mask"), strict=True)
    ]


def _group_norm(call: Call) -> Any:
    # aten::native_group_norm(input, weight, bias, N, C, HxW, group, eps)
    x, *affine = _with_affine(call, [call.args[0]])
    out, mean, rstd = _grouped(call, x)(*(value.array for value in (x, *affine)))
    group = call.sizes.dim(call.arg("group"))
    return [Padded(out, x.dims), *(Padded(s, (x.dims[0], group)) for s in (mean, rstd))]


def _group_norm_backward(call: Call) -> Any:
    # aten::native_group_norm_backward(grad_out, input, mean, rstd, weight, N, C, HxW, group, ...)
    grad, x, *affine = _with_affine(call, call.args[:2])
    grad, x = (call.sizes.filled(value, 0) for value in (grad, x))
    function = _grouped(call, x)
    operands = (value.array for value in (x, *affine))
    _, pull = jax.vjp(lambda *arrays: function(*arrays)[0], *operands)
    slope, *lanes = pull(grad.array)
    gradients = (slope, *(lane.reshape(-1) for lane in lanes))
    dims = (_slope_dims(call, grad, x), (x.dims[1],), (x.dims[1],))
    wanted = call.arg("output_mask")
    return [Padded(g, d) if w else None for g, d, w in zip(gradients, dims, wanted, strict=True)]


def _with_affine(call: Call, images: Sequence[Padded]) -> list[Padded]:
    """Images `(N, C, ...)` of one factor per dimension; weight and bias `(1, C, 1, ...)`."""
    images = [call.sizes.compact(x) for x in images]
    behind = len(images[0].dims) - 2
    channels, dtype = images[-1].dims[1], images[-1].array.dtype
    lanes = []
    for name, neutral in (("weight", 1), ("bias", 0)):
        value = call.arg(name) if has_argument(call, name) else None
        if value is None:
            value = Padded(jnp.full(padded_size(channels), neutral, dtype), (channels,))
        value = call.sizes.compact(value)
        lanes.append(Padded(value.array.reshape(1, -1, *[1] * behind), _lane(value.dims, behind)))
    return align(call.sizes, [*images, *lanes])


def _lane(channels: tuple[Dim, ...], behind: int) -> tuple[Dim, ...]:
    return ((), *channels, *((),) * behind)


def _grouped(call: Call, x: Padded) -> Callable[..., tuple[jax.Array, jax.Array, jax.Array]]:
    """Group norm of arrays like that of `x`: result, mean and 1 / deviation, `(N, groups)`."""
    groups, behind = int(call.arg("group")), tuple(range(2, len(x.dims)))
    ok = call.sizes.valid(x, range(1, len(x.dims)))
    count = count_of(call, x, [1, *behind]) // groups
    width = jnp.maximum(call.sizes.true(true_size(x.dims[1])) // groups, 1)
    group = jnp.minimum(lax.iota(np.int64, x.array.shape[1]) // width, groups - 1)
    is_own = group[:, None] == lax.iota(np.int64, groups)
    dtype = np.dtype(dtypes.opmath(x.array.dtype))

    def mean_of(values: jax.Array) -> jax.Array:
        """`(N, groups)`: a channel at a time, since groups of open width do not lie in rows."""
        each = jnp.sum(values if ok is None else jnp.where(ok, values, 0), axis=behind)
        return jnp.sum(jnp.where(is_own, each[..., None], 0), axis=1) / count.astype(dtype)

    def spread(values: jax.Array) -> jax.Array:
        """`(N, groups)` -> `(N, C, 1, ...)`."""
        return jnp.expand_dims(values[:, group], behind)

    def slack(variance: jax.Array) -> jax.Array:
        """What is added to the variance; the gradient's op has it only in the saved result."""
        if has_argument(call, "eps"):
            return cast(call.arg("eps"), dtype)
        saved = cast(call.sizes.filled(call.sizes.compact(call.arg("rstd")), 1).array, dtype)
        return lax.stop_gradient(1 / jnp.square(saved) - variance)

    def function(array: jax.Array, weight: jax.Array, bias: jax.Array) -> Any:
        values = cast(array, dtype)
        mean = mean_of(values)
        centred = values - spread(mean)
        variance = mean_of(jnp.square(centred))
        rstd = lax.rsqrt(variance + slack(variance))
        out = centred * spread(rstd) * cast(weight, dtype) + cast(bias, dtype)
        return out.astype(array.dtype), mean, rstd

    return function


_SAVED = ("save_mean", "save_invstd")
#: Arguments of batch norm with a number for each channel.
_PER_CHANNEL = ("weight", "bias", "running_mean", "running_var")

RULES: Mapping[str, Rule] = {
    "aten::_safe_softmax": _softmax,
    **dict.fromkeys(
        ("aten::_native_batch_norm_legit_functional", "aten::_native_batch_norm_legit.no_stats"),
        _trained_batch_norm,
    ),
    "aten::native_batch_norm_backward": _batch_norm_backward,
    "aten::native_group_norm": _group_norm,
    "aten::native_group_norm_backward": _group_norm_backward,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::native_layer_norm": _layer_norm,
    "aten::native_layer_norm_backward": _layer_norm_backward,
    "aten::_fused_rms_norm": _rms_norm,
    "aten::_native_batch_norm_legit_no_training": _evaluated_batch_norm,
}
