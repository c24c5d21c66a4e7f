# SPDX-License-Identifier: Apache-2.0
"""The ops `torchtpu::jax_call` and `torchtpu::jax_call_`: run a kernel of the registry.

As ops with rows in the lowering tables they take the way of any other op: recorded
without Python, part of one program in a compiled graph, differentiable and batchable
through PyTorch's own registrations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import torch
from torchtpu_core.lowering.table import Lowering, native

from torchtpu_kernels import registry, transforms
from torchtpu_kernels.errors import KernelArgumentError

NAMESPACE = "torchtpu"
_library = torch.library.Library(NAMESPACE, "FRAGMENT")
_library.define("jax_call(Tensor[] operands, str kernel) -> Tensor[]")
_library.define(
    "jax_call_(Tensor(a!)[] written, Tensor[] operands, str kernel, int[] positions, "
    "int[] results) -> Tensor[]"
)


def call(operands: Sequence[torch.Tensor], kernel: str) -> list[torch.Tensor]:
    """The results of a kernel, under the transforms in force."""
    if transforms.active():
        return transforms.call(operands, kernel)
    return run(operands, kernel)


def run(operands: Sequence[torch.Tensor], kernel: str) -> list[torch.Tensor]:
    """The results of a kernel, where PyTorch has taken the transforms off the operands."""
    return torch.ops.torchtpu.jax_call(list(operands), kernel)


def call_writing(
    operands: Sequence[torch.Tensor], kernel: str, aliases: Sequence[tuple[int, int]]
) -> list[torch.Tensor]:
    """The results of a kernel, some of them in the storage of operands.

    Args:
        operands: of the kernel.
        kernel: its name.
        aliases: (operand, result) pairs of one shape and dtype.

    Returns:
        All results; an aliased one is the operand itself.

    Raises:
        KernelArgumentError: a transform of `torch.func` or forward mode is in force.
    """
    if transforms.active():
        raise KernelArgumentError(
            f"kernel {kernel!r} writes into its operands, which no transform of torch.func and no "
            "forward-mode derivative can follow. Leave out donate_argnums and "
            "input_output_aliases, or call it outside the transform."
        )
    into = {result: operand for operand, result in aliases}
    written = [operands[operand] for operand in into.values()]
    rest = [t for i, t in enumerate(operands) if i not in into.values()]
    fresh = iter(
        torch.ops.torchtpu.jax_call_(written, rest, kernel, list(into.values()), list(into))
    )
    count = len(registry.find(kernel).results(operands))
    return [operands[into[i]] if i in into else next(fresh) for i in range(count)]


def _merged(written: Sequence[Any], operands: Sequence[Any], positions: Sequence[int]) -> list[Any]:
    """All operands in the kernel's order."""
    placed = dict(zip(positions, written, strict=True))
    rest = iter(operands)
    total = len(written) + len(operands)
    return [placed[i] if i in placed else next(rest) for i in range(total)]


def _lower_call(operands: list[jax.Array], kernel: str) -> list[jax.Array]:
    return registry.find(kernel).run(operands)


def _lower_call_writing(
    written: list[jax.Array],
    operands: list[jax.Array],
    kernel: str,
    positions: Sequence[int],
    results: Sequence[int],
) -> tuple[list[jax.Array], list[jax.Array]]:
    values = registry.find(kernel).run(_merged(written, operands, positions))
    fresh = [v for i, v in enumerate(values) if i not in results]
    return fresh, [values[i] for i in results]


#: The rows of both ops.
TABLE: tuple[Lowering, ...] = (
    native("torchtpu::jax_call", _lower_call, true_sizes=True),
    native("torchtpu::jax_call_", _lower_call_writing, true_sizes=True),
)


def empty_results(kernel: str, operands: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Uninitialised tensors shaped as a kernel's results, on the operands' device."""
    device = operands[0].device if operands else torch.device("tpu", torch.tpu.current_device())
    return [
        torch.empty(shape, dtype=dtype, device=device)
        for shape, dtype in registry.find(kernel).results(operands)
    ]


@torch.library.register_fake("torchtpu::jax_call", lib=_library)
def _fake_call(operands: Sequence[torch.Tensor], kernel: str) -> list[torch.Tensor]:
    return empty_results(kernel, operands)


@torch.library.register_fake("torchtpu::jax_call_", lib=_library)
def _fake_call_writing(
    written: Sequence[torch.Tensor],
    operands: Sequence[torch.Tensor],
    kernel: str,
    positions: Sequence[int],
    results: Sequence[int],
) -> list[torch.Tensor]:
    made = empty_results(kernel, _merged(written, operands, positions))
    return [t for i, t in enumerate(made) if i not in results]


def save_operands(ctx: Any, operands: Sequence[torch.Tensor], kernel: str) -> None:
    """Keep in an autograd context what `gradients_of` needs."""
    ctx.save_for_backward(*operands)
    ctx.kernel = kernel
    ctx.wanted = [i for i, t in enumerate(operands) if t.requires_grad and differentiable(t)]


def gradients_of(ctx: Any, cotangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The gradient of each operand of a kernel; None where there is none."""
    operands, wanted = ctx.saved_tensors, ctx.wanted
    given = {i: g for i, g in enumerate(cotangents) if g is not None and differentiable(g)}
    back: list[torch.Tensor | None] = [None] * len(operands)
    if wanted and given:
        kernel = registry.vjp(ctx.kernel, len(operands), wanted, list(given))
        kernel.results([*operands, *given.values()])  # JAX's errors, before PyTorch words them
        results = call([*operands, *given.values()], kernel.name)
        for index, gradient in zip(wanted, results, strict=True):
            back[index] = gradient
    return back


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    save_operands(ctx, *inputs)


def _backward(ctx: Any, gradients: Sequence[torch.Tensor | None]) -> tuple[Any, None]:
    return gradients_of(ctx, gradients), None


def differentiable(tensor: torch.Tensor) -> bool:
    """Whether a tensor may have a derivative."""
    return tensor.dtype.is_floating_point or tensor.dtype.is_complex


torch.library.register_autograd(
    "torchtpu::jax_call", _backward, setup_context=_setup_context, lib=_library
)


def _vmap(
    info: Any, in_dims: tuple[Any, ...], operands: Sequence[torch.Tensor], kernel: str
) -> tuple[list[torch.Tensor], list[int]]:
    dims = list(in_dims[0])
    results = run(operands, registry.batched(kernel, dims).name)
    return results, [0] * len(results)


torch.library.register_vmap("torchtpu::jax_call", _vmap, lib=_library)
