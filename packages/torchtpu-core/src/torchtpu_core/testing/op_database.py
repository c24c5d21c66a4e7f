# SPDX-License-Identifier: Apache-2.0
"""Sweep PyTorch's own operator database over the device and compare with the CPU.

Used by the test with the shrinking allow-list and, over all samples and dtypes, by
the nox session that writes the coverage table.

    python -m torchtpu_core.testing.op_database --samples 1 --json sweep.json

Samples are recorded several at a time and launched together, because a program costs
far more to compile than an operator: a batch that fails is repeated sample by sample in
the mode in force, and only what fails there, or fails in a batch alone, counts.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from torchtpu_core import _C
from torchtpu_core.runtime import modes
from torchtpu_core.testing import op_rules, op_samples, op_sources
from torchtpu_core.testing.op_compare import compare, compare_tied_gradients, compare_ties, widened
from torchtpu_core.testing.op_samples import to_tpu

__all__ = ["Outcome", "compare", "entry_name", "raw", "sweep_entry", "sweep_sample", "to_tpu"]

#: Forms that are called without gradients: PyTorch has none of ``out=``, and those of
#: sparse operands are tested by themselves.
_NO_GRADIENTS = frozenset({"out", *op_sources.SAMPLERS} - {"reference"})
#: Samples whose programs are launched together.
BATCH = 16
#: Environment variables that decide how programs are compiled and rounded.
_CONDITIONS = ("TORCH_TPU_TARGET", "TORCH_TPU_EAGER_MODE", "TORCH_TPU_NUMERICS", "XLA_FLAGS")


@dataclass(slots=True)
class Outcome:
    """What one entry of the database did.

    Attributes:
        name: the entry's name and variant.
        dtype: of the samples.
        form: how the samples were called, see `torchtpu_core.testing.op_samples`.
        status: ``pass``, ``wrong``, ``error`` or ``skip``.
        samples: how many were tried.
        failed: how many of them failed.
        sample: the first that failed.
        detail: the first difference or error, or why the entry was skipped.
        fallbacks: overloads that ran on the host.
    """

    name: str
    dtype: str
    form: str = "plain"
    status: str = "pass"
    samples: int = 0
    failed: int = 0
    sample: str = ""
    detail: str = ""
    fallbacks: list[str] = field(default_factory=list)


class _RefusedByCpuError(Exception):
    """The CPU refuses the sample, so there is nothing to compare with."""


class _Trial:
    """One sample, called on both devices."""

    def __init__(self, op: Any, sample: Any, form: str, differentiate: bool) -> None:
        self.op, self.sample, self.form, self.call = op, sample, form, op_samples.FORMS[form]
        self.name = op_rules.known_name(op)
        self.values = op_samples.has_values(op, sample)
        self.differentiate = differentiate and self.values and form not in _NO_GRADIENTS
        try:
            self.expected = self._results(sample)
        except Exception as error:
            raise _RefusedByCpuError(f"{type(error).__name__}: {error}") from error

    def run(self) -> None:
        """Call it on the device; its programs may run later."""
        self.moved = op_samples.on_device(self.op, self.sample)
        self.actual = self._results(self.moved)

    def _results(self, sample: Any) -> tuple[Any, Any]:
        result = self.call(self.op, sample)
        return result, op_samples.gradients(sample, result) if self.differentiate else []

    def check(self) -> None:
        """Compare what the devices gave."""
        (actual, gradient), (expected, expected_gradient) = self.actual, self.expected
        if self.form == "out":
            self._check_outs(actual, expected)
        elif self.name in op_rules.TIES:
            compare_ties(self.op, (self.moved, actual), expected)
        else:
            compare(
                self._specified(actual),
                self._specified(expected),
                values=self.values,
                exact=lambda: self._specified(self._exact()[0]),
            )
        if self.name in op_rules.TIES:
            compare_tied_gradients(gradient, expected_gradient)
        else:
            compare(gradient, expected_gradient, exact=lambda: self._exact()[1])

    def _check_outs(self, actual: op_samples.Outs, expected: op_samples.Outs) -> None:
        if self.name in op_rules.UP_TO_PHASE:
            compare([abs(r) for r in actual.results], [abs(r) for r in expected.results])
        elif self.name not in op_rules.CPU_IGNORES_OUT_STRIDES:
            compare(actual.results, expected.results, values=self.values)
        if actual.strides != expected.strides:
            raise AssertionError(f"out= has strides {actual.strides}, CPU {expected.strides}")
        if any(e and not a for a, e in zip(actual.warned, expected.warned, strict=True)):
            raise AssertionError("out= was resized without the warning that CPU gives")

    def _specified(self, result: Any) -> Any:
        """The part of a result that PyTorch specifies."""
        if self.name in op_rules.UP_TO_PHASE:
            return self.sample.output_process_fn_grad(result)
        if self.name in op_rules.WIDE_STATISTICS and self.form != "out":
            first, *statistics = result
            result = (first, *(s.to(first.dtype) for s in statistics))
        if self.name in op_rules.UNSPECIFIED:
            unspecified = op_rules.UNSPECIFIED[self.name](self.sample)
            return [r for i, r in enumerate(result) if i not in unspecified]
        return result

    def _exact(self) -> tuple[Any, Any]:
        wide = self.sample.transform(widened)
        wide.kwargs = {k: widened(v) for k, v in wide.kwargs.items()}  # records of options too
        wide.output_process_fn_grad = self.sample.output_process_fn_grad
        return self._results(wide)


@contextlib.contextmanager
def _recording() -> Iterator[None]:
    """Nothing is launched before a result is read."""
    # A stream is compiled when it is first met, and the script waits for it.
    _C.set_fusion_policy(
        background=False,
        sightings=0,
        at_first_sight=0,
        patience=1,
        max_ops=4096,
        max_held_bytes=1 << 30,
    )
    _C.set_mode(present=True, flush_each=False, synchronous=False)
    try:
        yield
    finally:
        modes.enter(modes.current())


def _batch_agrees(trials: Sequence[_Trial]) -> bool:
    try:
        with _recording():
            for trial in trials:
                trial.run()
            for trial in trials:
                trial.check()
    except Exception:
        with contextlib.suppress(Exception):
            torch.tpu.synchronize()
        return False
    return True


def _try_alone(trial: _Trial, outcome: Outcome) -> bool:
    """Repeat one sample by itself and note what it does; whether it agrees."""
    status = "error"
    try:
        trial.run()
        torch.tpu.synchronize()
        trial.check()
        return True
    except AssertionError as error:
        status, detail = "wrong", str(error)
    except Exception as error:
        detail = f"{type(error).__name__}: {error}"
    with contextlib.suppress(Exception):  # what else it recorded is not the next sample's
        torch.tpu.synchronize()
    outcome.failed += 1
    if not outcome.detail:
        outcome.status = status
        outcome.sample, outcome.detail = trial.sample.summary()[:300], detail[:500]
    return False


def entry_name(op: Any) -> str:
    """Name and variant of an entry."""
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


def _is_differentiable(op: Any, dtype: torch.dtype) -> bool:
    return op.supports_autograd and dtype in op.supported_backward_dtypes("cpu")


def sweep_sample(op: Any, dtype: torch.dtype, index: int, form: str = "plain") -> Outcome:
    """One sample of one entry, with gradients where it has them."""
    outcome = Outcome(entry_name(op), str(dtype), form, samples=1)
    gradients = form not in _NO_GRADIENTS and _is_differentiable(op, dtype)
    every = op_sources.samples(op, dtype, form, gradients)
    chosen = itertools.islice(every, index, index + 1)
    trials = list(_trials(op, chosen, form, gradients, outcome))
    if not trials:
        outcome.status = "skip"
    for trial in trials:
        _try_alone(trial, outcome)
    return outcome


def sweep_entry(
    op: Any,
    dtype: torch.dtype,
    *,
    samples: int | None,
    backward: bool,
    form: str = "plain",
    batch: int = BATCH,
) -> Outcome:
    """All samples of one entry in one dtype, or `samples` of them, spread evenly."""
    outcome = Outcome(entry_name(op), str(dtype), form)
    name = op_rules.known_name(op)
    not_tried = {**op_rules.NOT_TRIED, **(op_rules.NOT_TRIED_EMPTY if form == "empty" else {})}
    if dtype not in op.supported_dtypes("cpu") or name in not_tried:
        outcome.status = "skip"
        outcome.detail = not_tried.get(name, "not a dtype of the entry on CPU")
        return outcome
    before = torch.tpu.counters()["fallbacks"]
    gradients = backward and form not in _NO_GRADIENTS and _is_differentiable(op, dtype)
    made = _spread(op_sources.samples(op, dtype, form, gradients), samples)
    trials = _trials(op, made, form, gradients, outcome)
    while chunk := list(itertools.islice(trials, batch)):
        outcome.samples += len(chunk)
        if _batch_agrees(chunk):
            continue
        alone = [_try_alone(trial, outcome) for trial in chunk]
        if all(alone):
            outcome.status, outcome.failed = "wrong", outcome.failed + 1
            outcome.detail = outcome.detail or "agrees sample by sample, not when launched together"
    if outcome.samples == 0:
        outcome.status = "skip"
    after = torch.tpu.counters()["fallbacks"]
    outcome.fallbacks = sorted(k for k, v in after.items() if v > before.get(k, 0))
    return outcome


def _spread(made: Iterable[Any], count: int | None) -> Iterable[Any]:
    """All, or `count` samples from the first to the last, as an entry's kinds follow another."""
    every = list(made)
    if count is None or count >= len(every):
        return every
    step = (len(every) - 1) / max(count - 1, 1)
    return [every[round(i * step)] for i in range(count)]


def _prepared(sample: Any, form: str) -> Any:
    if form == "empty":
        try:
            sample = op_samples.emptied(sample)
        except ValueError as error:
            raise _RefusedByCpuError(str(error)) from error
    if form == "noncontiguous":
        try:
            sample = sample.noncontiguous()
        except Exception as error:  # compressed sparse operands have no such form
            raise _RefusedByCpuError(str(error)) from error
    return op_samples.with_leaves(sample)


def _trials(
    op: Any, samples: Iterable[Any], form: str, gradients: bool, outcome: Outcome
) -> Iterator[_Trial]:
    for sample in samples:
        try:
            trial = _Trial(op, _prepared(sample, form), form, gradients)
        except _RefusedByCpuError as error:
            outcome.detail = outcome.detail or f"CPU refuses: {error}"[:300]
            continue
        if trial.expected[0] is not None:
            yield trial


def main() -> None:
    """Sweep from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", default="op_db", choices=op_sources.DATABASES)
    parser.add_argument("--samples", type=int, default=None, help="per entry; all by default")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--forms", default="plain", help=f"of {', '.join(op_samples.FORMS)}")
    parser.add_argument("--names", default="", help="comma list; all by default")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th entry from i")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--batch", type=int, default=BATCH, help="samples launched together")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("highest")
    outcomes = []
    for op, dtype, form in _chosen(args):
        began = time.perf_counter()
        outcome = sweep_entry(
            op,
            getattr(torch, dtype),
            samples=args.samples,
            backward=not args.no_backward,
            form=form,
            batch=args.batch,
        )
        outcome.form = op_sources.label(args.database, form)
        outcomes.append(outcome)
        if outcome.status in ("wrong", "error"):
            took = time.perf_counter() - began
            print(
                f"{outcome.status:6} {outcome.name} {dtype} {form} {took:.1f}s "
                f"{outcome.failed}/{outcome.samples} {outcome.sample}: {outcome.detail}",
                flush=True,
            )
        if args.json:
            args.json.write_text(json.dumps(raw(args.samples, outcomes), indent=1))
    _print_summary(outcomes)


def raw(samples: int | None, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """What `torchtpu_core.testing.op_coverage` reads: outcomes, and what they hold under."""
    conditions = {name: os.environ[name] for name in _CONDITIONS if name in os.environ}
    return {
        "samples": samples,
        "conditions": conditions,
        "outcomes": [asdict(o) for o in outcomes],
    }


def _chosen(args: argparse.Namespace) -> Iterator[tuple[Any, str, str]]:
    names = set(filter(None, args.names.split(",")))
    shard, count = (int(part) for part in args.shard.split("/"))
    for i, op in enumerate(op_sources.DATABASES[args.database]()):
        if i % count == shard and (not names or op.name in names):
            for dtype, form in itertools.product(args.dtypes.split(","), args.forms.split(",")):
                yield op, dtype, form


def _print_summary(outcomes: Sequence[Outcome]) -> None:
    tried = [o for o in outcomes if o.status != "skip"]
    passed = [o for o in tried if o.status == "pass"]
    native = [o for o in passed if not o.fallbacks]
    samples = sum(o.samples for o in tried)
    print(
        f"{len(passed)} of {len(tried)} entries pass ({samples} samples), "
        f"{len(native)} of them natively"
    )


if __name__ == "__main__":
    main()
