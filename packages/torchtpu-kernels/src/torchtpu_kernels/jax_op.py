# SPDX-License-Identifier: Apache-2.0
"""`jax_op`: a JAX function as a named PyTorch op."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from torchtpu_kernels.errors import (
    KernelArgumentError,
    KernelDefinitionError,
    KernelNotSupportedError,
)
from torchtpu_kernels.jax_callable import JaxCallable
from torchtpu_kernels.schemas import schema_of


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


def _define(name: str, function: Callable[..., Any]) -> Any:
    schema = schema_of(name, function)
    parameters = [p for p in _parameter_names(schema.text)]
    static = [p for p in parameters if p not in schema.tensors]
    run = JaxCallable(function, name.replace("::", "."), static_argnames=static)

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise KernelArgumentError(
            f"op {name!r} runs on tensors of device tpu only; move them with .to('tpu')."
        )

    def on_device(*args: Any, **kwargs: Any) -> Any:
        return _as_schema(run(*args, **kwargs))

    op = torch.library.custom_op(name, refuse, mutates_args=(), schema=schema.text)
    # Not an opaque kernel but a composite one: autograd, fake tensors, vmap and compiled
    # graphs see `torchtpu::jax_call`, which knows how to do each.
    op._lib.impl(  # type: ignore[attr-defined]
        op._name.partition("::")[2], on_device, "CompositeImplicitAutograd"
    )
    return op


def _as_schema(result: Any) -> Any:
    return result if isinstance(result, (torch.Tensor, list)) else tuple(result)


def _parameter_names(text: str) -> list[str]:
    inside = text[1 : text.rindex(") ->")]
    return [part.split("=")[0].split()[-1] for part in inside.split(", ") if part not in ("", "*")]
