# SPDX-License-Identifier: Apache-2.0
"""Samples of PyTorch's operator database: on the device, called, and differentiated.

A sample is called in a *form*: as it is, with non-contiguous operands, of no elements, in place,
or with ``out=``. Each form is a function of an entry and a sample that returns all that is
compared, or None where the entry has no such form.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torchtpu_core.testing import op_rules, op_sources


def to_tpu(value: Any) -> Any:
    """`value` with its CPU tensors copied to the device, leaves requiring grad as before."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return _moved(x)
        return torch.device("tpu") if isinstance(x, torch.device) else x

    moved = pytree.tree_map(move, value)
    return "tpu" if isinstance(moved, str) and moved == "cpu" else moved


def _moved(x: torch.Tensor) -> torch.Tensor:
    """A copy on the device; a view of a larger storage stays such a view."""
    source = x.detach()
    is_plain = source.layout == torch.strided and not source.is_conj() and not source.is_neg()
    if not is_plain or _fills_storage(source):
        return source.to("tpu").requires_grad_(x.requires_grad)
    stored = source.untyped_storage().nbytes() // source.itemsize
    whole = torch.as_strided(source, (stored,), (1,), 0).to("tpu")
    view = torch.as_strided(whole, source.shape, source.stride(), source.storage_offset())
    return view.detach().requires_grad_(x.requires_grad)


def _fills_storage(x: torch.Tensor) -> bool:
    if x.layout != torch.strided or x.is_conj() or x.is_neg():
        return False
    return x.untyped_storage().nbytes() == x.nbytes and x.is_contiguous()


def with_leaves(sample: Any) -> Any:
    """The sample with operands that are not results of one another.

    Samples of one entry share tensors, and some entries write theirs (running statistics): what
    fills its storage is copied.
    """

    def leaf(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        own = x.detach()
        return (own.clone() if _fills_storage(own) else own).requires_grad_(x.requires_grad)

    made = sample.transform(leaf)
    made.output_process_fn_grad = sample.output_process_fn_grad
    made.broadcasts_input = sample.broadcasts_input
    return made


def emptied(sample: Any) -> Any:
    """The sample of an empty batch: nothing along its first dimension, nor in operands as long.

    Raises:
        ValueError: its input has no such dimension.
    """
    tensors = [x for x in pytree.tree_leaves(sample.input) if isinstance(x, torch.Tensor)]
    if not tensors or not tensors[0].ndim or tensors[0].layout != torch.strided:
        raise ValueError("the input has no dimension to leave empty")
    length = len(tensors[0])

    def cut(x: Any) -> Any:
        if not isinstance(x, torch.Tensor) or not x.ndim or len(x) != length:
            return x
        return x.detach()[:0].clone().requires_grad_(x.requires_grad)

    made = sample.transform(cut)
    made.output_process_fn_grad = sample.output_process_fn_grad
    made.broadcasts_input = sample.broadcasts_input
    return made


def on_device(op: Any, sample: Any) -> Any:
    """A copy of a sample on the device."""
    stay = op_rules.ON_CPU.get(op_rules.known_name(op), frozenset())
    args = [a if i in stay else to_tpu(a) for i, a in enumerate(sample.args)]
    kwargs = {k: "tpu" if k == "device" else to_tpu(v) for k, v in sample.kwargs.items()}
    moved = type(sample)(to_tpu(sample.input), args=tuple(args), kwargs=kwargs)
    moved.output_process_fn_grad = sample.output_process_fn_grad
    moved.broadcasts_input = sample.broadcasts_input
    return moved


def has_values(op: Any, sample: Any) -> bool:
    """Whether the results are a function of the operands."""
    name = op_rules.known_name(op)
    sometimes = op_rules.SOMETIMES_VALUE_FREE.get(name)
    return name not in op_rules.VALUE_FREE and not (sometimes and sometimes(sample))


def plain(op: Any, sample: Any) -> Any:
    """The functional form."""
    return op(sample.input, *sample.args, **sample.kwargs)


def inplace(op: Any, sample: Any) -> Any:
    """The in-place form on a copy of the input: what it returns and what it left there."""
    if op.inplace_variant is None or sample.broadcasts_input:
        return None
    written = pytree.tree_map(
        lambda x: x.clone() if isinstance(x, torch.Tensor) else x, sample.input
    )
    returned = op.inplace_variant(written, *sample.args, **sample.kwargs)
    return [returned, written]


@dataclass(frozen=True, slots=True)
class Outs:
    """What a call left in its ``out=``.

    Attributes:
        results: the outputs.
        strides: of the outputs that were not resized.
        warned: whether a call that resized said so; CPU's older kernels do not, the device
            always does.
    """

    results: list[torch.Tensor]
    strides: list[tuple[int, ...]]
    warned: list[bool]


def out(op: Any, sample: Any) -> Outs | None:
    """The out= form: outputs that fit, that have other strides, and that must be resized."""
    if not op.supports_out:
        return None
    with torch.no_grad():
        return _out_forms(op, sample.transform(_without_grad))


def _out_forms(op: Any, sample: Any) -> Outs:
    made = op(sample.input, *sample.args, **sample.kwargs)
    results = [r for r in pytree.tree_leaves(made) if isinstance(r, torch.Tensor)]
    collected = Outs([], [], [])
    for prepare in (_fitting, _transposed, _empty, _longer):
        outs = [prepare(r) for r in results]
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            given = outs[0] if isinstance(made, torch.Tensor) else tuple(outs)
            op(sample.input, *sample.args, **sample.kwargs, out=given)
        collected.results.extend(outs)
        if prepare in (_fitting, _transposed):
            collected.strides.extend(o.stride() for o in outs)
        else:
            collected.warned.append(any("resized" in str(w.message) for w in caught))
    return collected


def _copied(x: Any) -> Any:
    return x.clone() if isinstance(x, torch.Tensor) else x


def _without_grad(x: Any) -> Any:
    return x.detach() if isinstance(x, torch.Tensor) else x


def _fitting(result: torch.Tensor) -> torch.Tensor:
    return torch.zeros(result.shape, dtype=result.dtype, device=result.device)


def _transposed(result: torch.Tensor) -> torch.Tensor:
    turned = torch.zeros(tuple(reversed(result.shape)), dtype=result.dtype, device=result.device)
    return turned.permute(*reversed(range(result.ndim)))


def _empty(result: torch.Tensor) -> torch.Tensor:
    return torch.zeros(0, dtype=result.dtype, device=result.device)


def _longer(result: torch.Tensor) -> torch.Tensor:
    return torch.zeros((2, *result.shape), dtype=result.dtype, device=result.device)


Form = Callable[[Any, Any], Any]
FORMS: Mapping[str, Form] = {
    "plain": plain,
    "noncontiguous": plain,  # the samples differ, not the call
    "empty": plain,
    "inplace": inplace,
    "out": out,
    **dict.fromkeys(op_sources.SAMPLERS, plain),  # the samples differ, not the call
}


def gradients(sample: Any, result: Any) -> list[Any]:
    """Gradients of the operands that require them, for a fixed random seed of the outputs."""
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    tensors = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
    outputs = [t for t in tensors if t.requires_grad]
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    inputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs or not inputs:
        return []
    seeds = [_seed_like(o) for o in outputs]
    return list(torch.autograd.grad(outputs, inputs, seeds, allow_unused=True))


def _seed_like(tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tensor.numel())
    seed = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    return seed.to(tensor.dtype).to(tensor.device)
