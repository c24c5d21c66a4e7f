# SPDX-License-Identifier: Apache-2.0
"""JaxCallable: a JAX function that takes and returns tensors of the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

from torchtpu_kernels import call_op, open_sizes, registry, traceable
from torchtpu_kernels.arguments import Parameters, plan_key, rebuild
from torchtpu_kernels.errors import KernelArgumentError, KernelDefinitionError
from torchtpu_kernels.registry import Kernel


@dataclass(slots=True)
class _Variant:
    """The function with its constants and the structure of its arguments fixed.

    Attributes:
        kernel: on flat operands.
        structure: how results are put together, by the operands' shapes: a tree and
            leaves, each an index of a result or a constant.
    """

    kernel: Kernel
    structure: dict[Any, tuple[Any, list[Any]]]


class JaxCallable:
    """A JAX function on tensors of device tpu; made by `custom_jax_kernel`.

    Gradients come from ``jax.vjp`` and batching from ``jax.vmap``, at first use.

    Attributes:
        name: in errors, graphs and profiles.
        function: the JAX callable.
        donate_argnums: arguments whose storage results may take.
        input_output_aliases: argument to result that is written into it.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        *,
        static_argnums: int | Sequence[int] | None = (),
        static_argnames: str | Sequence[str] | None = (),
        donate_argnums: Sequence[int] = (),
        input_output_aliases: Mapping[int, int] | None = None,
    ) -> None:
        self.name = name
        self.function = function
        self.donate_argnums = tuple(donate_argnums)
        self.input_output_aliases = dict(input_output_aliases or {})
        self.parameters = Parameters(name, function, static_argnums, static_argnames)
        self.__name__ = name
        self.__doc__ = getattr(function, "__doc__", None)
        self.__wrapped__ = function
        self._variants: dict[Any, _Variant] = {}

    def __repr__(self) -> str:
        return f"JaxCallable({self.name!r})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run on tensors.

        Raises:
            KernelArgumentError: an argument is neither static nor a tensor of device tpu.
        """
        if torch.compiler.is_dynamo_compiling():
            return traceable.call(self, args, kwargs)
        tensors, plan, owners = self.parameters.bind(args, kwargs)
        self._check(tensors)
        kernel = self.kernel(plan)
        tree, leaves = self._structure(plan, tensors)
        aliases = self.aliases(plan, tensors, owners)
        if aliases:
            results = call_op.call_writing(tensors, kernel.name, aliases)
        else:
            results = call_op.call(tensors, kernel.name)
        filled = [results[leaf.index] if isinstance(leaf, _Result) else leaf for leaf in leaves]
        return jax.tree.unflatten(tree, filled)

    def results_like(self, plan: Any, tensors: Sequence[torch.Tensor]) -> Any:
        """The results of a call, with numbered `_Result` leaves in place of tensors."""
        return jax.tree.unflatten(*self._structure(plan, tensors))

    def _check(self, tensors: Sequence[torch.Tensor]) -> None:
        for position, tensor in enumerate(tensors):
            if tensor.device.type != "tpu":
                raise KernelArgumentError(
                    f"kernel {self.name!r}: tensor {position} is on {tensor.device}. Kernels run "
                    "on tensors of device tpu; move it with .to('tpu')."
                )

    def kernel(self, plan: Any) -> Kernel:
        """The kernel on flat operands for a plan of `Parameters.bind`."""
        return self._variant(plan).kernel

    def _variant(self, plan: Any) -> _Variant:
        key = plan_key(plan)
        variant = self._variants.get(key)
        if variant is None:
            structure: dict[Any, tuple[Any, list[Any]]] = {}

            def flat(*arrays: jax.Array) -> list[jax.Array]:
                args, kwargs = rebuild(plan, arrays)
                found = jax.tree.flatten(self.function(*args, **kwargs))
                arrays_out, leaves = _split(*found)
                structure[_shapes(arrays)] = (found[1], leaves)
                return arrays_out

            variant = _Variant(registry.add(self.name, flat), structure)
            self._variants[key] = variant
        return variant

    def _structure(self, plan: Any, tensors: Sequence[torch.Tensor]) -> tuple[Any, list[Any]]:
        variant = self._variant(plan)
        variant.kernel.results(tensors)  # traces at the first call with these shapes
        return variant.structure[_shapes(tensors)]

    def aliases(
        self, plan: Any, tensors: Sequence[torch.Tensor], owners: Sequence[int]
    ) -> list[tuple[int, int]]:
        """(operand, result) pairs that share storage, from the aliases or the donations."""
        if not self.donate_argnums and not self.input_output_aliases:
            return []
        results = self.kernel(plan).results(tensors)
        if self.input_output_aliases:
            pairs = [
                (self._operand_of(argument, owners), result)
                for argument, result in self.input_output_aliases.items()
            ]
        else:
            pairs = _matching(tensors, owners, self.donate_argnums, results)
        for operand, result in pairs:
            self._check_alias(tensors[operand], results, operand, result)
        return pairs

    def _operand_of(self, argument: int, owners: Sequence[int]) -> int:
        found = [i for i, owner in enumerate(owners) if owner == argument]
        if len(found) != 1:
            raise KernelDefinitionError(
                f"kernel {self.name!r}: input_output_aliases names argument {argument}, which "
                f"holds {len(found)} tensors in this call; an alias is between one tensor and one "
                "result."
            )
        return found[0]

    def _check_alias(
        self, tensor: torch.Tensor, results: Sequence[registry.Shape], operand: int, result: int
    ) -> None:
        if not 0 <= result < len(results):
            raise KernelDefinitionError(
                f"kernel {self.name!r}: input_output_aliases names result {result}, but there are "
                f"{len(results)}."
            )
        if results[result] != (tuple(tensor.shape), tensor.dtype):
            raise KernelDefinitionError(
                f"kernel {self.name!r}: result {result} has shape {results[result][0]} and dtype "
                f"{results[result][1]}, but the tensor it is written into has "
                f"{tuple(tensor.shape)} and {tensor.dtype}."
            )
        if tensor.requires_grad and torch.is_grad_enabled():
            raise KernelArgumentError(
                f"kernel {self.name!r}: operand {operand} is donated, but it requires grad "
                "and would be overwritten. Call under torch.no_grad(), or do not donate it."
            )


@dataclass(frozen=True, slots=True)
class _Result:
    """A leaf of the results that is a tensor."""

    index: int


def _split(leaves: Sequence[Any], tree: Any) -> tuple[list[Any], list[Any]]:
    """Arrays among the leaves, and the leaves with arrays replaced by their numbers."""
    arrays: list[Any] = []
    marked: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, (jax.Array, np.ndarray)):
            marked.append(_Result(len(arrays)))
            arrays.append(leaf)
        else:
            marked.append(leaf)
    return arrays, marked


def _shapes(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(
        (tuple(open_sizes.plain(s) for s in v.shape), str(v.dtype).removeprefix("torch."))
        for v in values
    )


def _matching(
    tensors: Sequence[torch.Tensor],
    owners: Sequence[int],
    donated: Sequence[int],
    results: Sequence[registry.Shape],
) -> list[tuple[int, int]]:
    """Pairs each donated operand with the first free result of its shape and dtype."""
    free = list(range(len(results)))
    pairs = []
    for operand, tensor in enumerate(tensors):
        if owners[operand] not in donated:
            continue
        shape = (tuple(tensor.shape), tensor.dtype)
        match = next((r for r in free if results[r] == shape), None)
        if match is not None:
            free.remove(match)
            pairs.append((operand, match))
    return pairs
