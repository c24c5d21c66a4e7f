# SPDX-License-Identifier: Apache-2.0
"""Connectionist temporal classification: the loss and its gradient.

The recursions over time are scans, vectorised over batch and labels. Lengths are
run-time values: the overload that takes them as Python lists hands them on as
tensors, so that a new batch of lengths compiles nothing.

Legend: T time steps, N batch, C classes, S longest target, L = 2 * S + 1 labels with
blanks between them.
Reference: Graves et al., "Connectionist temporal classification", ICML 2006.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax

from torchtpu_core.lowering import checks, dtypes
from torchtpu_core.lowering.table import Lowering, composite, native

_INF = np.inf


def _rows_of_targets(targets: jax.Array, lengths: jax.Array) -> jax.Array:
    """Targets as `(N, S)`; concatenated ones `(sum,)` are cut by their lengths."""
    if targets.ndim == 2:
        return targets.astype(np.int32)
    starts = jnp.cumsum(lengths) - lengths
    places = starts[:, None] + lax.iota(lengths.dtype, targets.shape[0])[None, :]
    last = max(targets.shape[0] - 1, 0)
    rows = targets.at[jnp.minimum(places, last)].get(mode="promise_in_bounds")
    return rows.astype(np.int32)


def _labels(targets: jax.Array, blank: int) -> tuple[jax.Array, jax.Array]:
    """`(N, L)` labels with blanks between them, and where a path may skip one before."""
    batch, longest = targets.shape
    labels = jnp.full((batch, 2 * longest + 1), blank, np.int32)
    labels = labels.at[:, 1::2].set(targets)
    two_before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    return labels, (labels != blank) & (labels != two_before)


def _log_sum(*terms: jax.Array) -> jax.Array:
    """log of the sum of exp(terms), -inf where all are -inf."""
    top = terms[0]
    for term in terms[1:]:
        top = jnp.maximum(top, term)
    safe = jnp.where(top == -_INF, top.dtype.type(0), top)
    return safe + lax.log(sum(lax.exp(term - safe) for term in terms))  # type: ignore[arg-type]


def _shifted(x: jax.Array, by: int) -> jax.Array:
    """`x` moved to the right by `by` places (left if negative), filled with -inf."""
    width = x.shape[1]
    pads = ((0, 0), (by, 0)) if by > 0 else ((0, 0), (0, -by))
    wide = jnp.pad(x, pads, constant_values=-_INF)
    return wide[:, :width] if by > 0 else wide[:, -by:]


def _at_labels(log_probs: jax.Array, labels: jax.Array) -> jax.Array:
    """`(T, N, C)`, `(N, L)` -> `(T, N, L)`."""
    index = jnp.broadcast_to(labels[None], (log_probs.shape[0], *labels.shape))
    return jnp.take_along_axis(log_probs, index, axis=2, mode="promise_in_bounds")


def _forward(emitted: jax.Array, skip: jax.Array) -> jax.Array:
    """`(T, N, L)`: log of the probability of all ways to be at a label at a time."""
    start = jnp.where(lax.iota(np.int32, emitted.shape[2]) < 2, emitted[0], -_INF)

    def step(alpha: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        leap = jnp.where(skip, _shifted(alpha, 2), -_INF)
        alpha = _log_sum(alpha, _shifted(alpha, 1), leap) + now
        return alpha, alpha

    _, rest = lax.scan(step, start, emitted[1:])
    return jnp.concatenate([start[None], rest])


def _backward(
    emitted: jax.Array, skip: jax.Array, steps: jax.Array, lengths: jax.Array
) -> jax.Array:
    """`(T, N, L)`: log of the probability of all ways to go on from a label to the end."""
    place = lax.iota(np.int32, emitted.shape[2])[None, :]
    last = (2 * lengths)[:, None].astype(np.int32)
    final = (place == last) | (place == last - 1)
    onward = jnp.pad(skip, ((0, 0), (0, 2)))[:, 2:]

    def step(beta: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        value, time = now
        leap = jnp.where(onward, _shifted(beta, -2), -_INF)
        moved = _log_sum(beta, _shifted(beta, -1), leap) + value
        ends = (time == steps - 1)[:, None]
        beta = jnp.where(ends, jnp.where(final, value, -_INF), moved)
        return beta, beta

    start = jnp.full(emitted.shape[1:], -_INF, emitted.dtype)
    times = lax.iota(steps.dtype, emitted.shape[0])
    _, betas = lax.scan(step, start, (emitted, times), reverse=True)
    return betas


def _loss(alphas: jax.Array, steps: jax.Array, lengths: jax.Array) -> jax.Array:
    """`(N,)` negative log-likelihoods; no time steps fit only an empty target."""
    batch = lax.iota(np.int32, alphas.shape[1])
    end = alphas[jnp.maximum(steps - 1, 0), batch]
    last = 2 * lengths
    final = end[batch, last]
    before = jnp.where(lengths > 0, end[batch, jnp.maximum(last - 1, 0)], -_INF)
    nothing = jnp.where(lengths == 0, alphas.dtype.type(0), alphas.dtype.type(_INF))
    return jnp.where(steps == 0, nothing, -_log_sum(final, before))


def _check(
    log_probs: jax.Array, targets: jax.Array, input_lengths: jax.Array, target_lengths: jax.Array
) -> None:
    """A length is at least 0 and at most what there is."""
    time, room = log_probs.shape[0], targets.shape[-1]
    needed = target_lengths if targets.ndim == 2 else jnp.sum(target_lengths)
    for legal, what in (
        (input_lengths <= time, f"input_lengths to have value at most {time}"),
        (input_lengths >= 0, "input_lengths to have value at least 0"),
        (target_lengths >= 0, "target_lengths to have value at least 0"),
        (needed <= room, f"target_lengths to need no more than the {room} targets there are"),
    ):
        checks.require(legal, RuntimeError, f"ctc_loss: Expected {what}")


def ctc_loss(
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """`(T, N, C)`, `(N, S)`, `(N,)`, `(N,)` -> losses `(N,)` and alphas `(N, T, L)`."""
    _check(log_probs, targets, input_lengths, target_lengths)
    x = log_probs.astype(dtypes.opmath(log_probs.dtype))
    rows = _rows_of_targets(targets, target_lengths)
    labels, skip = _labels(rows, blank)
    alphas = _forward(_at_labels(x, labels), skip)
    loss = _loss(alphas, input_lengths, target_lengths)
    return loss.astype(log_probs.dtype), jnp.swapaxes(alphas, 0, 1).astype(log_probs.dtype)


def ctc_loss_backward(
    grad: jax.Array,
    log_probs: jax.Array,
    targets: jax.Array,
    input_lengths: jax.Array,
    target_lengths: jax.Array,
    neg_log_likelihood: jax.Array,
    log_alpha: jax.Array,
    blank: int,
    zero_infinity: bool = False,
) -> jax.Array:
    """`(N,)` -> `(T, N, C)`: probabilities less how often the target passes each class."""
    x = log_probs.astype(dtypes.opmath(log_probs.dtype))
    rows = _rows_of_targets(targets, target_lengths)
    labels, skip = _labels(rows, blank)
    emitted = _at_labels(x, labels)
    betas = _backward(emitted, skip, input_lengths, target_lengths)
    loss = neg_log_likelihood.astype(x.dtype)
    joint = jnp.swapaxes(log_alpha, 0, 1).astype(x.dtype) + betas
    used = (joint > -_INF) & (emitted > -_INF)
    passed = jnp.where(used, lax.exp(joint - emitted + loss[None, :, None]), 0)
    time = x.shape[0]
    where = (
        lax.broadcasted_iota(np.int32, passed.shape, 0),
        lax.broadcasted_iota(np.int32, passed.shape, 1),
        jnp.broadcast_to(labels[None], (time, *labels.shape)),
    )
    posterior = jnp.zeros_like(x).at[where].add(passed)
    out = (lax.exp(x) - posterior) * grad.astype(x.dtype)[None, :, None]
    running = lax.iota(input_lengths.dtype, time)[:, None] < input_lengths[None, :]
    if zero_infinity:
        running &= (loss != _INF)[None, :]
    return jnp.where(running[:, :, None], out, x.dtype.type(0)).astype(log_probs.dtype)


def _as_tensors(
    targets: torch.Tensor, input_lengths: Sequence[int], target_lengths: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Targets as `(N, longest)` and the lengths as tensors on the device."""
    device = targets.device
    steps = torch.tensor(list(input_lengths), dtype=torch.int64).to(device)
    lengths = torch.tensor(list(target_lengths), dtype=torch.int64).to(device)
    longest = max(target_lengths, default=0)
    if targets.dim() == 2:
        return targets[:, :longest], steps, lengths
    if targets.shape[0] != sum(target_lengths):
        raise RuntimeError(
            f"Expected tensor to have size {sum(target_lengths)} at dimension 0, but got size "
            f"{targets.shape[0]} for argument #2 'targets'"
        )
    starts = torch.tensor([sum(target_lengths[:i]) for i in range(len(target_lengths))])
    places = starts[:, None] + torch.arange(longest)[None, :]
    places = places.clamp_max(max(targets.shape[0] - 1, 0)).to(device)
    if targets.shape[0] == 0:
        return targets.new_zeros((len(target_lengths), longest)), steps, lengths
    return targets[places], steps, lengths


def _from_lists(
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    blank: int = 0,
    zero_infinity: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    tensors = _as_tensors(targets, input_lengths, target_lengths)
    return torch.ops.aten._ctc_loss.Tensor(log_probs, *tensors, blank, zero_infinity)


def _backward_from_lists(
    grad: torch.Tensor,
    log_probs: torch.Tensor,
    targets: torch.Tensor,
    input_lengths: Sequence[int],
    target_lengths: Sequence[int],
    neg_log_likelihood: torch.Tensor,
    log_alpha: torch.Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> torch.Tensor:
    tensors = _as_tensors(targets, input_lengths, target_lengths)
    return torch.ops.aten._ctc_loss_backward.Tensor(
        grad, log_probs, *tensors, neg_log_likelihood, log_alpha, blank, zero_infinity
    )


TABLE: tuple[Lowering, ...] = (
    native("aten::_ctc_loss.Tensor", ctc_loss),
    native("aten::_ctc_loss_backward.Tensor", ctc_loss_backward),
    composite("aten::_ctc_loss", _from_lists),
    composite("aten::_ctc_loss_backward", _backward_from_lists),
)
