# SPDX-License-Identifier: Apache-2.0
"""Shapes under PyTorch's fake tensors of calls that its meta kernels refuse.

Dynamo and AOTAutograd ask a meta kernel what a call gives. One that checks what a GPU needs
refuses calls that have a lowering here; the rules below answer first, for this device alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch._subclasses import fake_impls


@functools.cache
def register() -> None:
    """Tell PyTorch the rules, once for a process."""
    rules = dict(_rules())
    # Before PyTorch's own rule for results whose size values tell, which is asked before ours.
    for packet, rule in (
        (torch.ops.aten._ctc_loss, _ctc_loss),
        (torch.ops.aten._ctc_loss_backward, _ctc_loss_backward),
    ):
        for overload in (packet.Tensor, packet.default):
            fake_impls.register_op_impl(overload)(rule)

    @fake_impls.register_op_impl(rules.__contains__)
    def _by_rule(fake_mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        return rules[func](fake_mode, func, *args, **kwargs)


def _rules() -> Iterator[tuple[torch._ops.OpOverload, Callable[..., Any]]]:
    # Not registered one by one: `torch.export` forgets what is known of interpolations.
    aten = torch.ops.aten
    yield aten._grouped_mm.default, _grouped_mm
    for kind in ("upsample_nearest", "_upsample_nearest_exact"):
        for axes in (1, 2, 3):
            yield getattr(aten, f"{kind}{axes}d").default, _of_no_images


def _of_no_images(
    fake_mode: Any, func: Any, input: torch.Tensor, output_size: Sequence[int], *scales: Any
) -> Any:
    """Interpolation of an empty batch, which the meta kernels take for a mistake (torch 2.13)."""
    batch, *sizes = input.shape
    # A size that a program leaves open is never 0.
    is_empty = isinstance(batch, int) and batch == 0 and all(size != 0 for size in sizes)
    if input.device.type != "tpu" or not is_empty:
        return NotImplemented
    with fake_mode:
        return input.new_empty((0, sizes[0], *output_size))


def _ctc_loss(
    fake_mode: Any,
    func: Any,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Any,
    target_lengths: Any,
    *_: Any,
    **__: Any,
) -> Any:
    """The losses, and what the gradient needs for as many labels as the targets have places.

    The CPU's kernel has only as many as the longest target, which the values of lengths tell.
    """
    if log_probs.device.type != "tpu":
        return NotImplemented
    time, batch, _classes = log_probs.shape
    known = not isinstance(target_lengths, torch.Tensor)
    longest = max(target_lengths, default=0) if known else targets.shape[-1]
    with fake_mode:
        return log_probs.new_empty((batch,)), log_probs.new_empty((batch, time, 2 * longest + 1))


def _ctc_loss_backward(
    fake_mode: Any, func: Any, grad: torch.Tensor, log_probs: torch.Tensor, *_: Any, **__: Any
) -> Any:
    """Without a rule PyTorch would run it, on zeros."""
    if log_probs.device.type != "tpu":
        return NotImplemented
    with fake_mode:
        return torch.empty_like(log_probs)


def _grouped_mm(
    fake_mode: Any,
    func: Any,
    self: torch.Tensor,
    mat2: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:
    """Products of groups, of any floating dtype: `lowering/matmul.py` says the shapes."""
    if self.device.type != "tpu":
        return NotImplemented
    torch._check(
        self.dim() in (2, 3) and mat2.dim() in (2, 3),
        lambda: f"Multiplicands must be 2D or 3D but got {self.dim()}D and {mat2.dim()}D",
    )
    if self.dim() == 3 or mat2.dim() == 3:
        torch._check(
            self.shape[-1] == mat2.shape[-2],
            lambda: "contraction dimension of mat_a and mat_b must match",
        )
    groups: tuple[Any, ...] = ()
    if self.dim() == mat2.dim() == 3:
        groups = (self.shape[0],)
    elif self.dim() == mat2.dim() == 2 and offs is not None:
        groups = (offs.shape[0],)
    sizes = (*groups, self.shape[-2], mat2.shape[-1])
    with fake_mode:
        return self.new_empty(sizes, dtype=out_dtype or self.dtype)
