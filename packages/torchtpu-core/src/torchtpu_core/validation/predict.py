# SPDX-License-Identifier: Apache-2.0
"""The simulated value of a metric, from a spec.

One table says which metrics there are and how they follow from a prediction; a metric
that is not in it is reported, not guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from torchtpu_core.errors import SpecError
from torchtpu_core.hardware.registry import chips
from torchtpu_core.ici import collectives as ici
from torchtpu_core.ici.groups import whole
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.model import network_model
from torchtpu_core.ici.slices import Slice, parse_slice
from torchtpu_core.ici.torus import Torus
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.simulator.rates import Rates
from torchtpu_core.units import GB
from torchtpu_core.workloads.prediction import StepPrediction
from torchtpu_core.workloads.spec import CollectiveRun, Spec
from torchtpu_core.workloads.training import predict_step

_SECONDS = {"s": 1.0, "ms": 1e3, "us": 1e6, "min": 1 / 60, "h": 1 / 3600}
_RATES = {"GB/s": 1 / GB, "MB/s": 1e-6, "TB/s": 1e-12, "B/s": 1.0}
_AXIS = re.compile(r"(\d+)(w?)")
_FORMS: dict[str, Callable[[float, Torus, ici.IciLink], float]] = {
    "all_gather": ici.all_gather_s,
    "reduce_scatter": ici.reduce_scatter_s,
    "all_reduce": ici.all_reduce_s,
    "all_to_all": ici.all_to_all_s,
    "broadcast": ici.broadcast_s,
}


class NotModelledError(SpecError):
    """A row that the model does not cover, with the reason."""


def predict(spec: Spec, metric: str, unit: str) -> float:
    """The simulated value of a metric in a unit.

    Raises:
        NotModelledError: the spec says so, or the metric is not known.
    """
    if spec.unmodelled:
        raise NotModelledError(spec.unmodelled)
    if spec.train is not None:
        return _training(spec, metric, unit)
    if metric == "speedup" and spec.compare_topology:
        other = replace(spec, hardware=replace(spec.hardware, topology=spec.compare_topology))
        return _micro(other)[0] / _micro(spec)[0]
    seconds, moved = _micro(spec)
    if metric == "time" or metric.endswith("_time"):
        return seconds * _unit(_SECONDS, unit, metric)
    if "bw" in metric or "bandwidth" in metric:
        return moved / seconds * _unit(_RATES, unit, metric)
    if metric in ("tflops", "tflops_per_chip") and spec.matmul is not None:
        return 2 * spec.matmul.m * spec.matmul.k * spec.matmul.n / seconds / 1e12
    raise NotModelledError(f"the metric {metric!r} is not one the model computes")


def _unit(table: dict[str, float], unit: str, metric: str) -> float:
    if unit not in table:
        raise NotModelledError(f"{metric} is in {unit!r}; known units: {', '.join(table)}")
    return table[unit]


def _training(spec: Spec, metric: str, unit: str) -> float:
    step = predict_step(spec)
    direct: dict[str, Callable[[StepPrediction], float]] = {
        "tflops_per_chip": lambda s: s.tflops_per_chip,
        "tflops": lambda s: s.tflops_per_chip,
        "mfu": lambda s: s.mfu * (100 if "%" in unit else 1),
        "hfu": lambda s: s.hfu * (100 if "%" in unit else 1),
        "tokens_per_s": lambda s: s.tokens_per_s,
        "tokens_per_s_per_chip": lambda s: s.tokens_per_s / s.chips,
    }
    if metric in direct:
        return direct[metric](step)
    if metric == "step_time":
        return step.step_s * _unit(_SECONDS, unit, metric)
    if metric == "speedup":
        if not spec.compare_slices:
            raise NotModelledError("a speed-up needs compare_slices in its spec")
        return step.tokens_per_s / predict_step(spec, spec.compare_slices).tokens_per_s
    if metric in ("median_block_time", "block_time"):
        return _block_s(spec, step) * _unit(_SECONDS, unit, metric)
    if metric == "time_to_train":
        if spec.benchmark is None:
            raise NotModelledError("time_to_train needs a [benchmark] table in its spec")
        return spec.benchmark.blocks * _block_s(spec, step) * _unit(_SECONDS, unit, metric)
    raise NotModelledError(f"the metric {metric!r} is not one the model computes")


def _block_s(spec: Spec, step: StepPrediction) -> float:
    """Seconds of a block: its training steps and its evaluation."""
    benchmark, train = spec.benchmark, spec.train
    if benchmark is None or train is None:
        raise NotModelledError("a block time needs a [benchmark] table in its spec")
    total = benchmark.steps * step.step_s
    if benchmark.eval_samples:
        forward = replace(spec, train=replace(train, backward=False))
        evaluated = predict_step(forward)
        per_step = train.batch_per_chip * evaluated.chips
        total += evaluated.step_s * benchmark.eval_samples / per_step
    return total


def _micro(spec: Spec) -> tuple[float, float]:
    """Seconds of a microbenchmark, and the bytes that its bandwidth counts."""
    chip = chips().get(spec.hardware.chip)
    if spec.copy is not None:
        rates = Rates.of(chip, per_core=spec.copy.per_core)
        return rates.copy_s(spec.copy.bytes), 2 * spec.copy.bytes
    if spec.matmul is not None:
        product = spec.matmul
        rates = Rates.of(chip, per_core=product.per_core)
        element = 1 if product.dtype in ("int8", "fp8") else 2
        m, k, n = product.m, product.k, product.n
        start = cal.HOST_START_S if product.host_timed else cal.KERNEL_START_S
        matrix = rates.matmul_s(m, k, n, product.dtype)
        memory = rates.hbm_s(element * (m * k + k * n + m * n))
        return start.value + max(matrix, memory), element * (m * k + k * n + m * n)
    assert spec.collective is not None
    return _collective(spec, spec.collective)


def _collective(spec: Spec, run: CollectiveRun) -> tuple[float, float]:
    counted = run.bandwidth_bytes or run.bytes
    chip = chips().get(spec.hardware.chip)
    if run.dcn:
        figure = chip.dcn_bytes_per_s_per_chip
        rate = figure.value if figure else cal.DCN_UNPUBLISHED_BYTES_PER_S.value
        slices = max(2, spec.hardware.slices)
        ring = 2 * (slices - 1) / slices * (1.0 if run.kind == "all_reduce" else 0.5)
        return ring * run.bytes / (rate * cal.DCN_ACHIEVED.value), counted
    link = ici.IciLink.of(chip)
    slice_ = parse_slice(f"{spec.hardware.chip}:{spec.hardware.topology}")
    if slice_.torus.twisted:
        return _on_twisted(slice_, run), counted
    torus = _span(run.span) if run.span else slice_.torus
    moved = run.bytes * run.devices_share_links
    if run.kind == "permute":
        return cal.COLLECTIVE_START_S.value + ici.permute_s(moved, 1, link), counted
    if run.kind not in _FORMS:
        raise NotModelledError(f"the collective {run.kind!r} is not one of {', '.join(_FORMS)}")
    seconds = _FORMS[run.kind](moved, torus, link)
    return cal.COLLECTIVE_START_S.value + seconds, counted


def _on_twisted(slice_: Slice, run: CollectiveRun) -> float:
    """Seconds of a collective of all chips of a twisted torus."""
    if run.kind not in _FORMS or run.span:
        raise NotModelledError(f"{run.kind} over {run.span or 'a twisted torus'} is not modelled")
    kind = CollectiveKind(run.kind) if run.kind != "broadcast" else CollectiveKind.BROADCAST
    model, span = network_model(slice_), whole(slice_)
    share = span.devices if kind in (CollectiveKind.ALL_GATHER, CollectiveKind.ALL_TO_ALL) else 1
    found = model.collective_time(kind, run.bytes / share, span)
    return cal.COLLECTIVE_START_S.value + found.time_s


def _span(text: str) -> Torus:
    """A torus as specs write it: ``4x8w`` is a line of 4 by a ring of 8."""
    parts = [_AXIS.fullmatch(part) for part in text.split("x")]
    if not all(parts):
        raise SpecError(f"span = {text!r} is not of the form 4x8 or 4wx8w.")
    found = [part for part in parts if part]
    return Torus(
        shape=tuple(int(part[1]) for part in found),
        wrap=tuple(bool(part[2]) for part in found),
    )
