# SPDX-License-Identifier: Apache-2.0
"""One program of an ahead-of-time file, callable on tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import torch
from torchtpu_core.calls import OutSpec, device_call
from torchtpu_core.lowering import checks
from torchtpu_core.lowering.promotion import Scalar
from torchtpu_core.lowering.rng import Rng

from torchtpu_compile import ahead_call, ahead_sizes, numbers
from torchtpu_compile.ahead_sizes import Form
from torchtpu_compile.bounded_program import with_padding
from torchtpu_compile.result_layout import sharing

#: Sizes and strides of a result, and its dtype.
Output = tuple[Sequence[Form], Sequence[Form], torch.dtype]


def is_fixed(sizes: Sequence[Form]) -> bool:
    """Whether no size is open."""
    return all(isinstance(size, int) for size in sizes)


class FileProgram:
    """A program for sizes up to some padded ones.

    Args:
        manifest: of the file.
        exported: the program.
        operands: sizes of its tensor operands.
        outputs: its results.
        kept: indices of the results that are returned.
        written: operands that it writes, and the results that are their new values.

    Raises:
        ValueError: the manifest does not fit the program.
    """

    def __init__(
        self,
        manifest: Mapping[str, Any],
        exported: Any,
        operands: Sequence[Sequence[Form]],
        outputs: Sequence[Output],
        kept: Sequence[int],
        written: Sequence[tuple[int, int]],
    ) -> None:
        required = ahead_call.errors_of(manifest["checks"])
        _refuse_other_signature(manifest, exported, operands, outputs, bool(required))
        self._symbols = manifest["symbols"]
        self._outputs = [outputs[i] for i in kept]
        self._shapes = [
            None if is_fixed(sizes) else tuple(aval.shape)
            for sizes, aval in zip(operands, exported.in_avals, strict=False)
        ]
        self._specs: list[OutSpec] = [_spec(outputs[i], exported.out_avals[i].shape) for i in kept]
        self._written = [operand for operand, _ in written]
        chosen = [*kept, *(result for _, result in written)]

        def run(
            arrays: Sequence[jax.Array], *scalars: Scalar, rng: Rng | None = None
        ) -> tuple[jax.Array, ...]:
            stream = [] if rng is None else [rng.seed, rng.offset]
            made = exported.call(*arrays, *(scalar.words for scalar in scalars), *stream)
            for i, (error, message) in enumerate(required):
                checks.require(~made[len(outputs)][i], error, message)
            return tuple(made[i] for i in chosen)

        self._call = device_call(
            f"torchtpu::{manifest['name']}",
            run,
            random=manifest["random"],
            alone=bool(self._symbols),
        )

    def __call__(
        self, operands: Sequence[torch.Tensor], known: Mapping[str, int]
    ) -> list[torch.Tensor]:
        """The results that are kept, at their true sizes."""
        padded = [
            x if sizes is None else with_padding(x, sizes)
            for x, sizes in zip(operands, self._shapes, strict=True)
        ]
        true = [known[name] for name in self._symbols]
        results = self._call(padded, true, self._written, self._specs.copy)
        return [
            x if is_fixed(sizes) else _cut(x, sizes, strides, known)
            for x, (sizes, strides, _) in zip(results, self._outputs, strict=True)
        ]


def _spec(output: Output, shape: Sequence[int]) -> OutSpec:
    sizes, strides, dtype = output
    if is_fixed(sizes):
        return [*sizes], [*strides], dtype  # type: ignore[list-item]
    return list(shape), list(numbers.contiguous(shape)), dtype


def _cut(
    x: torch.Tensor, sizes: Sequence[Form], strides: Sequence[Form], known: Mapping[str, int]
) -> torch.Tensor:
    size, stride = ([ahead_sizes.value(f, known) for f in forms] for forms in (sizes, strides))
    return sharing(x, size, stride)


def _refuse_other_signature(
    manifest: Mapping[str, Any],
    exported: Any,
    operands: Sequence[Sequence[Form]],
    outputs: Sequence[Output],
    has_checks: bool,
) -> None:
    """Compare what the manifest says with the program."""
    taken = [list(aval.shape) for aval in exported.in_avals]
    made = [list(aval.shape) for aval in exported.out_avals]
    more = len(manifest["symbols"]) + (2 if manifest["random"] else 0)
    if len(taken) != len(operands) + more or not all(map(_fit, operands, taken)):
        raise ValueError("its inputs are not those of its program")
    fixed = [sizes if is_fixed(sizes) else ["open"] for sizes, _, _ in outputs]
    if len(made) != len(outputs) + has_checks or not all(map(_fit, fixed, made)):
        raise ValueError("its outputs are not those of its program")


def _fit(sizes: Sequence[Form], shape: Sequence[int]) -> bool:
    """Whether a program's array can hold a tensor of these sizes."""
    if not is_fixed(sizes):
        return True
    return list(sizes) == shape
