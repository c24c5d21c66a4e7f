# SPDX-License-Identifier: Apache-2.0
"""Attention on DTensors: by batch and head alone, along the sequence by PyTorch's ring.

`scaled_dot_product_attention` of the device is `aten::_scaled_dot_product_fused_attention_
overrideable`, for which torch 2.13 has neither a sharding rule nor a place in
`context_parallel`. The handler here adds both; the ring itself is PyTorch's. An axis of
the mesh may shard query, key and value alike by dim 0, 1 or 2; anything else is
replicated first. Heads of keys that several query heads share are sharded in whole groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor.experimental._context_parallel import _attention
from torch.distributed.tensor.placement_types import Placement

_FORWARD = torch.ops.aten._scaled_dot_product_fused_attention_overrideable.default
_BACKWARD = torch.ops.aten._scaled_dot_product_fused_attention_overrideable_backward.default
_HEADS_DIM, _SEQUENCE_DIM = 1, 2
_FORWARD_NAMES = ("attn_bias", "dropout_p", "is_causal", "return_debug_mask")
_BACKWARD_NAMES = (
    *("attn_bias", "grad_input_mask", "out", "logsumexp", "cum_seq_q", "cum_seq_k", "max_q"),
    *("max_k", "dropout_p", "is_causal", "philox_seed", "philox_offset"),
)


def register() -> None:
    """Let DTensor call the functions here; rules of other ops and devices stay as they are."""
    handlers = DTensor._op_dispatcher._custom_op_handlers
    handlers.setdefault(_FORWARD, _forward)
    handlers.setdefault(_BACKWARD, _backward)


def _forward(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    query, key, value, *rest = args
    named = dict(zip(_FORWARD_NAMES, rest, strict=False)) | kwargs
    query, key, value, bias = _aligned(query, key, value, named.pop("attn_bias", None))
    named["attn_bias"] = _local(bias)
    local = [_local(t) for t in (query, key, value)]
    axis = _sequence_axis(query.placements)
    if axis is None:
        out, logsumexp, *others = _FORWARD(*local, **named)
    else:
        _refuse_bias(bias)
        out, logsumexp, *others = _attention._templated_ring_attention(
            query.device_mesh.get_group(axis),
            _SEQUENCE_DIM,
            _FORWARD,
            *local,
            **named,
        )
    shape = (*query.shape[:-1], value.shape[-1])
    return like(query, out, shape), like(query, logsumexp, query.shape[:-1]), *others


def _backward(_op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    gradient, query, key, value, *rest = args
    named = dict(zip(_BACKWARD_NAMES, rest, strict=False)) | kwargs
    query, key, value, bias = _aligned(query, key, value, named.pop("attn_bias"))
    for name in ("out", "logsumexp"):
        named[name] = _local(_placed(named[name], query))
    named["attn_bias"] = _local(bias)
    local = [_local(t) for t in (_placed(gradient, query), query, key, value)]
    axis = _sequence_axis(query.placements)
    wanted = named["grad_input_mask"]
    if axis is None:
        grads = _BACKWARD(*local, **named)
    else:
        _refuse_bias(bias)
        named["grad_input_mask"] = [True, True, True, False]  # the ring adds all of them up
        grads = _attention._templated_ring_attention_backward(
            query.device_mesh.get_group(axis),
            _SEQUENCE_DIM,
            _BACKWARD,
            local[0],
            "grad_out",
            *local[1:],
            **named,
        )
    wrapped = [
        like(t, g, t.shape) if is_wanted else None
        for t, g, is_wanted in zip((query, key, value), grads, wanted, strict=False)
    ]
    if bias is not None and grads[3] is not None:
        return *wrapped, like(bias, grads[3], bias.shape)
    return *wrapped, None


def _aligned(query: Any, key: Any, value: Any, bias: Any) -> tuple[Any, Any, Any, Any]:
    """The operands, on each axis of the mesh sharded alike or replicated."""
    mesh = next(t for t in (query, key, value) if isinstance(t, DTensor)).device_mesh
    whole = [Replicate()] * mesh.ndim
    operands = [
        t if isinstance(t, DTensor) else DTensor.from_local(t, mesh, whole, run_check=False)
        for t in (query, key, value)
    ]
    chosen = [_common([t.placements[axis] for t in operands]) for axis in range(mesh.ndim)]
    if len({t.shape[_HEADS_DIM] for t in operands}) > 1:
        chosen = _whole_groups(chosen, operands, mesh)
    if bias is not None and any(p.is_shard() for p in chosen):
        chosen, bias = whole, _replicated(bias, mesh)
    query, key, value = (_placed(t, chosen) for t in operands)
    return query, key, value, bias


def _whole_groups(chosen: Sequence[Placement], operands: Any, mesh: Any) -> list[Placement]:
    """The placements, heads replicated if a rank's query heads were to find no key of theirs."""
    over = [axis for axis, p in enumerate(chosen) if p == Shard(_HEADS_DIM)]
    ranks = math.prod(mesh.size(axis) for axis in over)
    if all(t.shape[_HEADS_DIM] % ranks == 0 for t in operands):
        return list(chosen)
    return [Replicate() if axis in over else p for axis, p in enumerate(chosen)]


def _common(placements: Sequence[Placement]) -> Placement:
    first = placements[0]
    may = isinstance(first, Shard) and first.dim <= _SEQUENCE_DIM
    return first if may and all(p == first for p in placements) else Replicate()


def _sequence_axis(placements: Sequence[Placement]) -> int | None:
    """The axis of the mesh along which the sequence is sharded."""
    axes = [i for i, p in enumerate(placements) if p == Shard(_SEQUENCE_DIM)]
    if len(axes) > 1:
        raise NotImplementedError(
            f"the sequence of attention is sharded over {len(axes)} axes of the mesh: flatten them "
            "into one with DeviceMesh._flatten()."
        )
    return axes[0] if axes else None


def _placed(tensor: Any, like: Any) -> Any:
    placements = like.placements if isinstance(like, DTensor) else like
    if not isinstance(tensor, DTensor) or list(tensor.placements) == list(placements):
        return tensor
    return tensor.redistribute(tensor.device_mesh, placements)


def _replicated(bias: Any, mesh: Any) -> Any:
    return _placed(bias, [Replicate()] * mesh.ndim)


def _refuse_bias(bias: Any) -> None:
    if bias is not None:
        raise NotImplementedError(
            "attention with a mask cannot run along a sharded sequence: use is_causal=True, or "
            "shard batch or heads instead."
        )


def _local(tensor: Any) -> Any:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def like(model: DTensor, local: torch.Tensor, shape: Sequence[int]) -> DTensor:
    """A result with the placements of an operand."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    meta = TensorMeta(torch.Size(shape), tuple(reversed(strides)), local.dtype)
    spec = DTensorSpec(model.device_mesh, tuple(model.placements), tensor_meta=meta)
    return DTensor(local, spec, requires_grad=False)
