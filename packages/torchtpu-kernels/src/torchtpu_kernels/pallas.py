# SPDX-License-Identifier: Apache-2.0
"""`custom_jax_kernel` and `jax_op`: JAX functions and Pallas kernels as PyTorch functions.

Both take any JAX callable. `custom_jax_kernel` gives a plain callable; `jax_op`
defines a named op in `torch.ops`, with a schema from the function's annotations.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torchtpu_kernels.errors import KernelDefinitionError, KernelNotSupportedError
from torchtpu_kernels.jax_callable import JaxCallable
from torchtpu_kernels.jax_op import jax_op


def custom_jax_kernel(
    jax_fn: Callable[..., Any] | None = None,
    name: str | None = None,
    static_argnums: int | Sequence[int] | None = (),
    donate_argnums: int | Sequence[int] | None = None,
    input_output_aliases: Mapping[int, int] | None = None,
    mesh: Any = None,
    input_partition_specs: Any = None,
    output_partition_specs: Any = None,
    *,
    static_argnames: str | Sequence[str] | None = (),
    warn_deprecated: bool = True,
) -> Any:
    """Make a JAX function callable on tensors of device tpu, with gradients.

    Usable as ``custom_jax_kernel(fn)``, ``@custom_jax_kernel`` and
    ``@custom_jax_kernel(name=..., static_argnums=...)``. Pallas kernels are interpreted
    when the target is not a real TPU. The function sees JAX's 32-bit defaults unless an
    operand has 64 bits.

    Args:
        jax_fn: any JAX callable: plain, jitted, partial, or one that calls Pallas. Its
            operands are arrays, None, and lists or tuples of them.
        name: shown in errors, graphs and profiles; default the function's name.
        static_argnums: positions of arguments that are compiled in.
        donate_argnums: positions of arguments whose storage results may take; such a
            tensor's content is not its own afterwards.
        input_output_aliases: argument position to index of the result that is written
            into it; that result is the argument's tensor.
        mesh: not supported yet.
        input_partition_specs: not supported yet.
        output_partition_specs: not supported yet.
        static_argnames: names of arguments that are compiled in.
        warn_deprecated: accepted for compatibility; nothing here is deprecated.

    Returns:
        A `JaxCallable`, or a decorator that makes one.

    Raises:
        KernelDefinitionError: arguments that contradict each other or the signature.
        KernelNotSupportedError: a mesh or partition specs.
    """
    for argument, value in (
        ("mesh", mesh),
        ("input_partition_specs", input_partition_specs),
        ("output_partition_specs", output_partition_specs),
    ):
        if value is not None:
            raise KernelNotSupportedError(
                f"custom_jax_kernel({argument}=...) is not supported yet: a kernel runs on one "
                "device. Leave it out, and move data with torch.distributed."
            )
    aliases = dict(input_output_aliases or {})
    donated = _donated(donate_argnums, aliases)

    def make(function: Callable[..., Any]) -> JaxCallable:
        return JaxCallable(
            function,
            name or _name_of(function),
            static_argnums=static_argnums,
            static_argnames=static_argnames,
            donate_argnums=donated,
            input_output_aliases=aliases,
        )

    return make if jax_fn is None else make(jax_fn)


def _donated(
    donate_argnums: int | Sequence[int] | None, aliases: Mapping[int, int]
) -> tuple[int, ...]:
    given = (donate_argnums,) if isinstance(donate_argnums, int) else tuple(donate_argnums or ())
    if aliases and given and set(given) != set(aliases):
        raise KernelDefinitionError(
            f"donate_argnums={given} and input_output_aliases={dict(aliases)} name different "
            "arguments. Give one of the two, or the same arguments in both."
        )
    if len(set(aliases.values())) != len(aliases):
        raise KernelDefinitionError(
            f"input_output_aliases={dict(aliases)} writes one result into two arguments."
        )
    return given or tuple(aliases)


def _name_of(function: Callable[..., Any]) -> str:
    inner = getattr(function, "func", function)  # functools.partial
    return getattr(inner, "__name__", "kernel")


__all__ = ["JaxCallable", "custom_jax_kernel", "jax_op"]
