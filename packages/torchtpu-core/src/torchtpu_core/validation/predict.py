# SPDX-License-Identifier: Apache-2.0
"""The simulated value of a metric, from a spec.

A metric that follows from no kind of spec is reported, not guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torchtpu_core.hardware.chip import Chip
from torchtpu_core.hardware.registry import chips
from torchtpu_core.ici.groups import whole_axes
from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.model import Message, network_model
from torchtpu_core.ici.network import Network
from torchtpu_core.ici.slices import Slice
from torchtpu_core.ici.span import Span, SpanAxis
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.simulator.collective_pricing import start_s
from torchtpu_core.simulator.rates import Rates
from torchtpu_core.validation.metrics import (
    PARTS,
    RATES,
    SECONDS,
    TIMES,
    NotModelledError,
    check_rate_unit,
    chip_share,
    factor,
    unknown_metric,
    utilisation_unit,
)
from torchtpu_core.workloads.meshes import check_group, network_of
from torchtpu_core.workloads.microbenchmarks import ELEMENT_BYTES, AttentionRun, CollectiveRun
from torchtpu_core.workloads.prediction import StepPrediction
from torchtpu_core.workloads.spec import Spec
from torchtpu_core.workloads.training import predict_step, scores_per_head


def predict(spec: Spec, metric: str, unit: str) -> float:
    """The simulated value of a metric in a unit.

    Raises:
        NotModelledError: the spec says so, or the metric is not known.
        RowError: the metric or its unit is misspelt.
    """
    if spec.unmodelled:
        raise NotModelledError(spec.unmodelled)
    check_rate_unit(metric, unit)
    if spec.train is not None:
        return _training(spec, metric, unit)
    if metric == "speedup":
        factor(TIMES, unit, metric)
    if metric == "speedup" and spec.compare_topology:
        other = replace(spec, hardware=replace(spec.hardware, topology=spec.compare_topology))
        return _micro(other)[0] / _micro(spec)[0]
    seconds, moved = _micro(spec)
    if metric == "time" or metric.endswith("_time"):
        return seconds * factor(SECONDS, unit, metric)
    if "bw" in metric or "bandwidth" in metric:
        return moved / seconds * factor(RATES, unit, metric)
    if metric in ("tflops", "tflops_per_chip"):
        if spec.matmul is not None:
            return 2 * spec.matmul.m * spec.matmul.k * spec.matmul.n / seconds / 1e12
        if spec.attention is not None:
            return _attention_flops(spec.attention) / seconds / 1e12
    raise unknown_metric(metric)


def _training(spec: Spec, metric: str, unit: str) -> float:
    step = predict_step(spec)
    share = chip_share(unit, chips().get(spec.hardware.chip))
    direct: dict[str, Callable[[StepPrediction], float]] = {
        "tflops_per_chip": lambda s: s.tflops_per_chip * share,
        "tflops": lambda s: s.tflops_per_chip * share,
        "mfu": lambda s: s.mfu * factor(PARTS, utilisation_unit(unit), metric),
        "hfu": lambda s: s.hfu * factor(PARTS, utilisation_unit(unit), metric),
        "tokens_per_s": lambda s: s.tokens_per_s,
        "tokens_per_s_per_chip": lambda s: s.tokens_per_s / s.chips * share,
    }
    if metric in direct:
        return direct[metric](step)
    if metric == "step_time":
        return step.step_s * factor(SECONDS, unit, metric)
    if metric == "speedup":
        if not spec.compare_slices:
            raise NotModelledError("a speed-up needs compare_slices in its spec")
        return step.tokens_per_s / predict_step(spec, spec.compare_slices).tokens_per_s
    if metric in ("median_block_time", "block_time"):
        return _block_s(spec, step) * factor(SECONDS, unit, metric)
    if metric == "time_to_train":
        if spec.benchmark is None:
            raise NotModelledError("time_to_train needs a [benchmark] table in its spec")
        return spec.benchmark.blocks * _block_s(spec, step) * factor(SECONDS, unit, metric)
    raise unknown_metric(metric)


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
        m, k, n = product.m, product.k, product.n
        moved = ELEMENT_BYTES[product.dtype] * (m * k + k * n + m * n)
        start = cal.HOST_START_S if product.host_timed else cal.KERNEL_START_S
        return start.value + rates.product_s(m, k, n, product.dtype, moved), moved
    if spec.attention is not None:
        return _attention(chip, spec.attention)
    assert spec.collective is not None
    return _collective(spec, spec.collective)


def _attention(chip: Chip, run: AttentionRun) -> tuple[float, float]:
    """Seconds of an attention kernel from its start, and the bytes of its operands."""
    rates = Rates.of(chip, per_core=run.per_core)
    scores = run.batch * run.heads * scores_per_head(run.sequence, run.window, run.causal)
    start = cal.HOST_START_S if run.host_timed else cal.KERNEL_START_S
    heads = 2 * run.heads + 2 * (run.kv_heads or run.heads)
    tensors = 2 * heads if run.backward else heads
    moved = 2 * tensors * run.batch * run.sequence * run.head_dim
    core = rates.attention_s(
        scores, run.head_dim, run.head_dim, backward=run.backward, fused=run.fused
    )
    return start.value + max(core, rates.hbm_s(moved)), moved


def _attention_flops(run: AttentionRun) -> float:
    """Operations as publications count them: two products forward, five backward."""
    reach = min(run.window or run.sequence, run.sequence)
    pairs = run.sequence * reach * (0.5 if run.causal and reach == run.sequence else 1.0)
    return 2.0 * (5 if run.backward else 2) * run.batch * run.heads * pairs * run.head_dim


def _collective(spec: Spec, run: CollectiveRun) -> tuple[float, float]:
    """Seconds of a collective from its start, and the bytes that its bandwidth counts."""
    network = network_of(spec.hardware, max(2, spec.hardware.slices) if run.dcn else 1)
    check_group(run, network.slice_.torus)
    model = network_model(network)
    counted = run.bandwidth_bytes or run.bytes
    if run.kind in ("permute", "send"):
        found = model.messages_time(_messages(network.slice_, run))
        return start_s(found) + found.time_s, counted
    span = _span(network, run)
    own = run.bytes / span.chips if run.kind in ("all_gather", "all_to_all") else run.bytes
    kind = CollectiveKind.BROADCAST if run.kind == "broadcast" else CollectiveKind(run.kind)
    found = model.collective_time(kind, own, span)
    return start_s(found) + found.time_s, counted


def _span(network: Network, run: CollectiveRun) -> Span:
    """What the chips of a group span, one device of each."""
    torus, slices = network.slice_.torus, network.slices
    if run.span:
        axes = tuple(
            SpanAxis(length=int(part.removesuffix("w")), wrap=part.endswith("w"), axis=index)
            for index, part in enumerate(run.span.split("x"))
            if int(part.removesuffix("w")) > 1
        )
    else:
        axes = () if run.dcn else whole_axes(torus)
    twisted = torus.twisted and bool(axes) and not run.span
    return Span(axes=axes, sharing=run.devices_share_links, slices=slices, twisted=twisted)


def _messages(where: Slice, run: CollectiveRun) -> list[Message]:
    """The messages of a shift along the slice's longest axis, or the first of them."""
    torus = where.torus
    axis = max(torus.axes, key=lambda axis: torus.shape[axis])
    length, cores = torus.shape[axis], where.devices_per_chip
    found = []
    for chip in range(torus.chips):
        place = list(torus.coordinates(chip))
        if place[axis] + run.hops >= length and not torus.wrap[axis]:
            continue
        place[axis] = (place[axis] + run.hops) % length
        target = torus.chip_at(tuple(place))
        found.append(Message(chip * cores, target * cores, run.bytes * run.devices_share_links))
    return found[:1] if run.kind == "send" else found
