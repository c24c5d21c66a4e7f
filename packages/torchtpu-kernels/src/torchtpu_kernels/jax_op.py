# SPDX-License-Identifier: Apache-2.0
"""`jax_op`: a JAX function as a named PyTorch op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import jax
import torch
from torchtpu_core.lowering.table import native

from torchtpu_kernels import call_op, registry
from torchtpu_kernels.errors import (
    KernelArgumentError,
    KernelDefinitionError,
    KernelNotSupportedError,
)
from torchtpu_kernels.jax_callable import JaxCallable
from torchtpu_kernels.rows import serve
from torchtpu_kernels.schemas import OpSchema, schema_of


def jax_op(
    name: str,
    fn: Callable[..., Any] | None = None,
    /,
    *,
    donate_argnums: int | Sequence[int] | None = None,
    mesh: Any = None,
    input_partition_specs: Any = None,
    output_partition_specs: Any = None,
) -> Any:
    """Define a PyTorch op from a JAX function.

    The schema comes from the annotations; every parameter that is not a tensor is
    compiled in. Gradients come from ``jax.vjp`` and batching from ``jax.vmap``; the
    result is a `torch.library.CustomOpDef`, so each can be replaced with its
    ``register_autograd``, ``register_vmap`` and ``register_fake``.

    Args:
        name: ``namespace::op``.
        fn: the annotated function; without it, a decorator is returned.
        donate_argnums: not supported for named ops yet.
        mesh: not supported yet.
        input_partition_specs: not supported yet.
        output_partition_specs: not supported yet.

    Raises:
        KernelDefinitionError: the name or an annotation cannot be used.
        KernelNotSupportedError: an argument that is not supported yet.
    """
    if name.count("::") != 1 or not all(name.split("::")):
        raise KernelDefinitionError(f"op name {name!r} is not of the form 'namespace::op'.")
    given: Mapping[str, Any] = {
        "donate_argnums": donate_argnums or None,
        "mesh": mesh,
        "input_partition_specs": input_partition_specs,
        "output_partition_specs": output_partition_specs,
    }
    for argument, value in given.items():
        if value is not None:
            raise KernelNotSupportedError(
                f"jax_op({argument}=...) is not supported yet; leave it out. custom_jax_kernel "
                "supports donate_argnums."
            )
    return _define(name, fn) if fn is not None else lambda function: _define(name, function)


def _define(name: str, function: Callable[..., Any]) -> torch.library.CustomOpDef:
    schema = schema_of(name, function)
    run = JaxCallable(function, name.replace("::", "."), static_argnames=schema.static)

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise KernelArgumentError(
            f"op {name!r} runs on tensors of device tpu only; move them with .to('tpu')."
        )

    op = torch.library.custom_op(name, refuse, mutates_args=(), schema=schema.text)
    serve(native(name, _lowering(run, schema), true_sizes=True))
    _register_derived(op, run, schema)
    return op


def _lowering(run: JaxCallable, schema: OpSchema) -> Callable[..., Any]:
    """The op's row: the function itself, its constants prepared as in a call."""

    def lower(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(schema.positional, args, strict=False)) | kwargs
        arrays, plan, _ = run.parameters.bind((), named, kind=jax.Array)
        results = run.kernel(plan).run(arrays)
        if schema.returns_list:
            return results
        return results[0] if len(results) == 1 else tuple(results)

    return lower


def _register_derived(op: torch.library.CustomOpDef, run: JaxCallable, schema: OpSchema) -> None:
    """Fake tensors, gradients and batching; each may be registered anew by the user."""

    def split(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[torch.Tensor], Any]:
        named = dict(zip(schema.positional, args, strict=False)) | dict(kwargs)
        tensors, plan, _ = run.parameters.bind((), named)
        return tensors, plan

    def packed(results: list[torch.Tensor]) -> Any:
        if schema.returns_list:
            return results
        return results[0] if len(results) == 1 else tuple(results)

    def fake(*args: Any, **kwargs: Any) -> Any:
        tensors, plan = split(args, kwargs)
        return packed(call_op.empty_results(run.kernel(plan).name, tensors))

    def setup_context(ctx: Any, inputs: Any, output: Any, keyword_only_inputs: Any = None) -> None:
        tensors, plan = split(inputs, keyword_only_inputs or {})
        call_op.save_operands(ctx, tensors, run.kernel(plan).name)
        ctx.layout = [
            len(v) if isinstance(v, (list, tuple)) else isinstance(v, torch.Tensor) for v in inputs
        ]
        ctx.is_tensor = [name in schema.tensors for name in schema.positional]

    def backward(ctx: Any, *gradients: Any) -> Any:
        flat = gradients[0] if schema.returns_list else gradients
        found = iter(call_op.gradients_of(ctx, flat))
        back: list[Any] = []
        for size, holds_tensors in zip(ctx.layout, ctx.is_tensor, strict=True):
            if not holds_tensors or size is False:
                back.append(None)
            elif size is True:
                back.append(next(found))
            else:
                back.append([next(found) for _ in range(size)])
        # The dispatcher drops trailing arguments that equal their defaults; torch 2.13 wants
        # gradients for the rest only where a list of tensors is among them.
        back = back[: len(ctx.needs_input_grad)]
        return tuple(back) if len(back) > 1 else back[0]

    def vmap(info: Any, in_dims: Any, *args: Any, **kwargs: Any) -> Any:
        tensors, plan = split(args, kwargs)
        named = dict(zip(schema.positional, in_dims, strict=False))
        dims: list[int | None] = []
        for label in schema.positional:
            if label in schema.tensors and label in named:
                dim = named[label]
                dims.extend(dim if isinstance(dim, (list, tuple)) else [dim])
        over = registry.batched(run.kernel(plan).name, dims[: len(tensors)])
        results = call_op.run(tensors, over.name)
        return packed(results), packed([0] * len(results))  # type: ignore[arg-type]

    op.register_fake(fake)
    op.register_autograd(backward, setup_context=setup_context)
    op.register_vmap(vmap)
