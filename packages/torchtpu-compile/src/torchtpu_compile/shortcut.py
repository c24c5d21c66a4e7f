# SPDX-License-Identifier: Apache-2.0
"""Calling an inference graph without AOTAutograd's wrappers, where they have nothing to do.

The wrappers restore views, mutations, subclasses and autograd state around a graph. A
graph that has none of these is called directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def direct(
    module: GraphModule,
    example_inputs: Sequence[Any],
    wrapped: Callable[..., Any],
    run: Callable[[list[Any]], list[Any]],
) -> Callable[..., Any]:
    """`run` on the call's arguments if that is all `wrapped` does, else `wrapped`.

    Args:
        module: what Dynamo captured.
        example_inputs: its inputs.
        wrapped: what AOTAutograd made of it.
        run: its compiled inference graph, on a list it empties.
    """
    context = torch._guards.TracingContext.try_get()
    metadata = context.fw_metadata if context is not None else None
    if metadata is None or not _is_plain(metadata) or _has_own_tensors(module):
        return wrapped
    if _returns_a_subclass(module):
        return wrapped
    if any(
        type(x) is not torch.Tensor and not _is_fake(x) and not isinstance(x, (int, torch.SymInt))
        for x in example_inputs
    ):
        return wrapped
    if len(metadata.input_info) != len(example_inputs) or torch.is_autocast_enabled("tpu"):
        return wrapped

    native = getattr(run, "direct", None)
    if native is not None:
        return cast("Callable[..., Any]", native)

    def call(*arguments: Any) -> list[Any]:
        return run(list(arguments))

    return call


def _is_fake(x: Any) -> bool:
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(x, FakeTensor) and not isinstance(x, torch.nn.Parameter)


def _has_own_tensors(module: GraphModule) -> bool:
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _returns_a_subclass(module: GraphModule) -> bool:
    """Whether a result is put together from several of the compiled graph's.

    The metadata is of that graph, which has the parts.
    """
    results = pytree.tree_leaves(module.graph.output_node().args)
    values = (n.meta.get("example_value") for n in results if isinstance(n, Node))
    return any(is_traceable_wrapper_subclass(value) for value in values)


def _is_plain(metadata: Any) -> bool:
    from torch._functorch._aot_autograd.schemas import OutputType

    return (
        not metadata.tokens
        and not metadata.num_graphsafe_rng_states
        and metadata.num_intermediate_bases == 0
        and metadata.grad_enabled_mutation is None
        and not any(
            i.mutates_data or i.mutates_metadata or i.requires_grad for i in metadata.input_info
        )
        and all(
            o.output_type is OutputType.non_alias and not o.requires_grad
            for o in metadata.output_info
        )
        and metadata.traced_tangents == []
    )
