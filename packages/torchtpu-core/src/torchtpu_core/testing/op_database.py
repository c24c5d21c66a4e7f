# SPDX-License-Identifier: Apache-2.0
"""Sweep PyTorch's own operator database over the device and compare with the CPU.

Used by the test with the shrinking allow-list and, over all samples and dtypes, by
the nox session that writes the coverage table.

    python -m torchtpu_core.testing.op_database --samples 1 --json sweep.json
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

from torchtpu_core.testing.tolerance import TOLERANCE

#: Results that are random or uninitialised: only shape and dtype are compared.
VALUE_FREE = frozenset(
    """bernoulli empty empty_like empty_permuted empty_strided exponential geometric log_normal
    cauchy multinomial new_empty new_empty_strided normal rand_like randint randint_like randn
    randn_like uniform nn.functional.dropout nn.functional.dropout2d nn.functional.dropout3d
    nn.functional.alpha_dropout nn.functional.feature_alpha_dropout nn.functional.rrelu
    nn.functional.fractional_max_pool2d nn.functional.fractional_max_pool3d
    nn.functional.multi_head_attention_forward nn.functional.scaled_dot_product_attention
    svd_lowrank pca_lowrank
    """.split()  # noqa: SIM905 - a word list reads better
)


@dataclass(slots=True)
class Outcome:
    """What one entry of the database did.

    Attributes:
        name: the entry's name and variant.
        dtype: of the samples.
        status: ``pass``, ``wrong``, ``error`` or ``skip``.
        samples: how many were tried.
        detail: the first difference or error.
        fallbacks: overloads that ran on the host.
    """

    name: str
    dtype: str
    status: str = "pass"
    samples: int = 0
    detail: str = ""
    fallbacks: list[str] = field(default_factory=list)


def to_tpu(value: Any) -> Any:
    """`value` with its CPU tensors copied to the device, leaves requiring grad as before."""

    def move(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.detach().to("tpu").requires_grad_(x.requires_grad)
        return torch.device("tpu") if isinstance(x, torch.device) else x

    moved = pytree.tree_map(move, value)
    return "tpu" if isinstance(moved, str) and moved == "cpu" else moved


def _keywords(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {k: ("tpu" if k == "device" else to_tpu(v)) for k, v in kwargs.items()}


def compare(actual: Any, expected: Any, *, values: bool = True) -> None:
    """Raise AssertionError unless the results agree in structure, shape, dtype and value."""
    flat_actual, flat_expected = pytree.tree_leaves(actual), pytree.tree_leaves(expected)
    if len(flat_actual) != len(flat_expected):
        raise AssertionError(f"{len(flat_actual)} results, CPU gives {len(flat_expected)}")
    for a, e in zip(flat_actual, flat_expected, strict=True):
        if not isinstance(e, torch.Tensor):
            if values and a != e and not (a != a and e != e):
                raise AssertionError(f"{a!r} is not {e!r}")
            continue
        if a.dtype != e.dtype or a.shape != e.shape:
            raise AssertionError(f"{a.dtype} {tuple(a.shape)}, CPU {e.dtype} {tuple(e.shape)}")
        if values and e.layout == torch.strided:
            rtol, atol = TOLERANCE.get(e.dtype, (0.0, 0.0))
            torch.testing.assert_close(
                a.detach().cpu(), e.detach(), rtol=10 * rtol, atol=10 * atol, equal_nan=True
            )


def _gradients(op: Any, sample: Any, result: Any) -> list[Any]:
    if sample.output_process_fn_grad is not None:
        result = sample.output_process_fn_grad(result)
    outputs = [
        t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor) and t.requires_grad
    ]
    leaves = pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    inputs = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs or not inputs:
        return []
    seeds = [_seed_like(o) for o in outputs]
    return list(torch.autograd.grad(outputs, inputs, seeds, allow_unused=True))


def _seed_like(tensor: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tensor.numel())
    seed = torch.randn(tensor.shape, generator=generator, dtype=torch.float32)
    return seed.to(tensor.dtype).to(tensor.device)


def check_sample(op: Any, sample: Any, *, gradients: bool) -> None:
    """Run one sample on CPU and on the device and compare results and gradients."""
    values = op.name not in VALUE_FREE
    on_device = type(sample)(
        to_tpu(sample.input),
        args=tuple(to_tpu(a) for a in sample.args),
        kwargs=_keywords(sample.kwargs),
    )
    on_device.output_process_fn_grad = sample.output_process_fn_grad
    expected = op(sample.input, *sample.args, **sample.kwargs)
    actual = op(on_device.input, *on_device.args, **on_device.kwargs)
    compare(actual, expected, values=values)
    if gradients and values:
        compare(_gradients(op, on_device, actual), _gradients(op, sample, expected))


def sweep_entry(op: Any, dtype: torch.dtype, *, samples: int | None, backward: bool) -> Outcome:
    """All, or the first `samples`, samples of one entry in one dtype."""
    outcome = Outcome(f"{op.name}.{op.variant_test_name}".rstrip("."), str(dtype))
    if dtype not in op.supported_dtypes("cpu"):
        outcome.status = "skip"
        return outcome
    gradients = backward and dtype in op.supported_backward_dtypes("cpu") and op.supports_autograd
    before = torch.tpu.counters()["fallbacks"]
    try:
        torch.manual_seed(0)
        for sample in _limited(op.sample_inputs("cpu", dtype, requires_grad=gradients), samples):
            outcome.samples += 1
            check_sample(op, sample, gradients=gradients)
            torch.tpu.synchronize()
    except AssertionError as error:
        outcome.status, outcome.detail = "wrong", str(error)[:400]
    except Exception as error:
        outcome.status, outcome.detail = "error", f"{type(error).__name__}: {error}"[:400]
    after = torch.tpu.counters()["fallbacks"]
    outcome.fallbacks = sorted(k for k, v in after.items() if v > before.get(k, 0))
    return outcome


def _limited(samples: Iterable[Any], limit: int | None) -> Iterator[Any]:
    for i, sample in enumerate(samples):
        if limit is not None and i >= limit:
            return
        yield sample


def main() -> None:
    """Sweep from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=None, help="per entry; all by default")
    parser.add_argument("--dtypes", default="float32")
    parser.add_argument("--names", default="", help="comma list; all by default")
    parser.add_argument("--shard", default="0/1", help="i/n: every n-th entry from i")
    parser.add_argument("--no-backward", action="store_true")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_float32_matmul_precision("highest")
    names = set(filter(None, args.names.split(",")))
    shard, count = (int(part) for part in args.shard.split("/"))
    outcomes = []
    for i, op in enumerate(op_db):
        if i % count != shard or (names and op.name not in names):
            continue
        for dtype in args.dtypes.split(","):
            began = time.perf_counter()
            outcome = sweep_entry(
                op, getattr(torch, dtype), samples=args.samples, backward=not args.no_backward
            )
            outcomes.append(outcome)
            if outcome.status in ("wrong", "error"):
                took = time.perf_counter() - began
                print(
                    f"{outcome.status:6} {outcome.name} {dtype} {took:.1f}s {outcome.detail}",
                    flush=True,
                )
    tried = [o for o in outcomes if o.status != "skip"]
    passed = [o for o in tried if o.status == "pass"]
    native = [o for o in passed if not o.fallbacks]
    print(f"{len(passed)} of {len(tried)} pass, {len(native)} of them natively")
    if args.json:
        args.json.write_text(json.dumps([asdict(o) for o in outcomes], indent=1))


if __name__ == "__main__":
    main()
