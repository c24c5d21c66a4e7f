# SPDX-License-Identifier: Apache-2.0
"""The simulated time of a training step of a transformer, from its spec.

The work of one chip stands for all. Matrix products run at the fill of the matrix unit
with padded tiles, or at HBM's rate if that is slower; what does not fuse into them
moves through HBM; attention is a flash kernel; the weights' collectives run partly
behind compute; gradients cross the data centre network at the end. Not modelled: the
compiler's schedule, VMEM capacity, power limits, input pipelines.

Legend: ``T`` tokens of a chip, ``d`` width of the residual stream.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from torchtpu_core.hardware.registry import chips
from torchtpu_core.ici import collectives as ici
from torchtpu_core.ici.torus import Torus
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.simulator.rates import Rates
from torchtpu_core.workloads import flops as counted
from torchtpu_core.workloads.layers import Layer, Matrix, layers_of
from torchtpu_core.workloads.meshes import sizes_of, slice_of
from torchtpu_core.workloads.placement import place
from torchtpu_core.workloads.prediction import StepPrediction
from torchtpu_core.workloads.spec import Model, Parallel, Spec, Train

ACTIVATION_BYTES = 2
LOGIT_BYTES = 4
# Both recipes quantise the forward product and both gradients.
_DTYPES = {"none": "bf16", "int8": "int8", "fp8": "fp8"}


@dataclass(slots=True)
class _Ledger:
    """Seconds by part, while a step is added up."""

    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    communication: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    sent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    flops: float = 0.0


def predict_step(spec: Spec, slices: int | None = None) -> StepPrediction:
    """The simulated step of a spec, on another number of slices if given."""
    model, train = spec.model, spec.train
    assert model is not None and train is not None
    where = slice_of(spec)
    torus = where.torus if where else Torus(shape=(1,), wrap=(False,))
    chip = chips().get(spec.hardware.chip)
    slices = slices or spec.hardware.slices
    step = _Step(
        model=model,
        train=train,
        rates=Rates.of(chip),
        sizes=sizes_of(spec.parallel, torus.chips),
        torus=torus,
        link=ici.IciLink.of(chip) if where else None,
        dcn_bytes_per_s=_dcn(chip),
        slices=slices,
    )
    ledger = step.price(spec.parallel)
    return StepPrediction(
        step_s=sum(ledger.parts.values()),
        parts=dict(ledger.parts),
        hidden=dict(ledger.communication),
        chips=torus.chips * slices,
        tokens=step.tokens * torus.chips * slices,
        flops_per_token=counted.flops_per_token(model, train.sequence, spec.metric.attention)
        * (1.0 if train.backward else 1 / 3),
        peak_flops_per_s=spec.metric.peak_tflops_per_chip * 1e12
        or chip.figure("peak_bf16_flops_per_s"),
        hardware_flops=ledger.flops,
        sent_bytes=dict(ledger.sent),
    )


def _dcn(chip: object) -> float:
    figure = getattr(chip, "dcn_bytes_per_s_per_chip", None)
    return float(figure.value) if figure else cal.DCN_UNPUBLISHED_BYTES_PER_S.value


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step, priced part by part."""

    model: Model
    train: Train
    rates: Rates
    sizes: dict[str, int]
    torus: Torus
    link: ici.IciLink | None
    dcn_bytes_per_s: float
    slices: int

    @property
    def tokens(self) -> float:
        """T."""
        return self.train.batch_per_chip * self.train.sequence

    def price(self, parallel: Parallel) -> _Ledger:
        """The whole step."""
        ledger = _Ledger()
        for layer in layers_of(self.model):
            self._layer(layer, ledger)
        self._ends(ledger)
        if parallel.pipeline > 1:
            bubbles = (parallel.pipeline - 1) / max(parallel.microbatches, 1)
            ledger.parts["pipeline bubbles"] = bubbles * sum(ledger.parts.values())
        self._collectives(ledger)
        if self.train.backward:
            self._update(ledger)
        if self.slices > 1:
            loss = cal.MULTISLICE_LOSS.value * math.log2(self.slices)
            ledger.parts["waiting for slices"] = loss * sum(ledger.parts.values())
        return ledger

    # One layer ---------------------------------------------------------------------

    def _layer(self, layer: Layer, ledger: _Ledger) -> None:
        for matrix in layer.matrices:
            self._matrix(layer, matrix, ledger)
        self._attention(layer, ledger)
        self._elementwise(layer, ledger)
        self._weights(layer, ledger)
        self._exchange(layer, ledger)

    def _passes(self, name: str, last: bool) -> int:
        """Forward passes of a result: one, and one more if it is computed again."""
        again = self.train.backward and not last and name not in self.train.kept
        return 2 if again else 1

    def _matrix(self, layer: Layer, matrix: Matrix, ledger: _Ledger) -> None:
        """Products of one weight matrix: forward, again, and both gradients."""
        split = self.sizes["tensor"]
        k = matrix.k // split if matrix.split == "k" else matrix.k
        n = matrix.n // split if matrix.split == "n" else matrix.n
        per_group = self.tokens * matrix.uses * (split if matrix.split else 1)
        copies = max(1, matrix.copies // self.sizes["expert"])
        m = max(1, round(per_group / copies))
        kind = "experts" if matrix.copies > 1 else "matrix products"
        ragged = matrix.copies > 1 and not self._capacity
        runs = [(m, k, n)] * self._passes(matrix.name, matrix.last)
        if self.train.backward:
            runs += [(m, n, k), (k, m, n)]
        for shape in runs:
            seconds = self._product_s(*shape, _DTYPES[self.train.quantization])
            seconds /= cal.GROUPED_MATMUL.value if ragged else 1.0
            ledger.parts[kind] += layer.count * copies * seconds
            ledger.flops += layer.count * copies * 2.0 * math.prod(shape)

    @property
    def _capacity(self) -> float:
        """Room of an expert over an even share; 0 if experts take what comes."""
        return self.model.experts.capacity_factor if self.model.experts else 0.0

    def _product_s(self, m: int, k: int, n: int, dtype: str) -> float:
        """The slower of matrix units and HBM."""
        moved = ACTIVATION_BYTES * (m * k + k * n + m * n)
        return max(self.rates.fused_matmul_s(m, k, n, dtype), self.rates.hbm_s(moved))

    def _attention(self, layer: Layer, ledger: _Ledger) -> None:
        scores = self.train.batch_per_chip * layer.heads * self._scores_per_head(layer.window)
        runs = self._passes("context", last=False)
        forward = self.rates.attention_s(scores, layer.head_dim, layer.value_dim, backward=False)
        total = runs * forward
        products = runs * 2
        if self.train.backward:
            total += self.rates.attention_s(scores, layer.head_dim, layer.value_dim, backward=True)
            products += 5
        ledger.parts["attention"] += layer.count * total
        ledger.flops += layer.count * scores * products * (layer.head_dim + layer.value_dim)

    def _scores_per_head(self, window: int) -> float:
        """Pairs of query and key that the kernel's blocks cover, for one sequence."""
        length = float(self.train.sequence)
        block = min(cal.ATTENTION_BLOCK.value, length)
        if not self.model.causal:
            return length * length
        if window and window < length:
            return length * min(window + block, (length + block) / 2)
        return length * (length + block) / 2

    def _elementwise(self, layer: Layer, ledger: _Ledger) -> None:
        """What does not fuse into products: norms, rotation, activation, routing."""
        d, hidden = self.model.emb, layer.hidden
        rotated = layer.heads * layer.head_dim + layer.kv_heads * (layer.head_dim + layer.value_dim)
        accesses = 3 * self.model.norms * d + 2 * rotated + self.model.mlp_matrices * hidden
        passes = 1 + (3 if self.train.backward else 0)
        if "gate_up" in self.train.kept and self.train.backward:
            passes -= 1
        moved = passes * accesses * ACTIVATION_BYTES * self.tokens
        ledger.parts["elementwise"] += layer.count * self.rates.hbm_s(moved)
        if layer.routed and not self._capacity:
            routed = layer.routed * d * ACTIVATION_BYTES * self.tokens
            moved = cal.EXPERT_ROUTING_PASSES.value * passes / 4 * routed
            ledger.parts["routing"] += layer.count * self.rates.hbm_s(moved)
        elif layer.routed:
            self._dispatch(layer, ledger)

    def _dispatch(self, layer: Layer, ledger: _Ledger) -> None:
        """Tokens to experts with room, and back: products with a mask, sequence by sequence."""
        length = self.train.sequence
        places = round(length * layer.routed * self._capacity)
        runs = 2 * (1 + (2 if self.train.backward else 0))
        seconds = self._product_s(places, length, self.model.emb, "bf16")
        count = layer.count * runs * self.train.batch_per_chip
        ledger.parts["routing"] += count * seconds
        ledger.flops += count * 2.0 * places * length * self.model.emb

    # Communication -----------------------------------------------------------------

    def _weight_bytes(self, layer: Layer) -> float:
        """Bytes of one layer's weights on a chip once they are gathered."""
        element = 1 if self.train.quantized_gather else ACTIVATION_BYTES
        total = 0.0
        for matrix in layer.matrices:
            split = self.sizes["tensor"] if matrix.split else 1
            split *= self.sizes["expert"] if matrix.copies > 1 else 1
            total += element * matrix.parameters / split
        return total

    def _weights(self, layer: Layer, ledger: _Ledger) -> None:
        """Gathering weights, scattering their gradients, and their way through HBM."""
        if self.sizes["fsdp"] == 1:
            return
        gathered = self._weight_bytes(layer)
        runs = 3 if self.train.backward else 1
        self._send("fsdp", "all_gather", gathered, layer.count * runs, ledger)
        ledger.parts["gathered weights in HBM"] += layer.count * self.rates.hbm_s(
            gathered * (runs + 1)
        )

    def _exchange(self, layer: Layer, ledger: _Ledger) -> None:
        """Activations between the chips of tensor, context and expert axes."""
        d = self.model.emb
        again = 1.5 if self.train.backward and not self.train.kept else 1.0
        runs = again + (1 if self.train.backward else 0)
        tensor, context = self.sizes["tensor"], self.sizes["context"]
        if tensor > 1:
            moved = self.tokens * tensor * d * ACTIVATION_BYTES
            self._send("tensor", "all_gather", moved, 4 * runs * layer.count, ledger)
        if context > 1:
            width = layer.kv_heads * (layer.head_dim + layer.value_dim)
            moved = self.tokens * context * width * ACTIVATION_BYTES
            self._send("context", "all_gather", moved, 2 * runs * layer.count, ledger)
        expert = self.sizes["expert"]
        if expert > 1 and layer.routed:
            moved = self.tokens * expert * layer.routed * d * ACTIVATION_BYTES
            self._send("expert", "all_to_all", moved, 2 * runs * layer.count, ledger)

    def _send(self, axis: str, kind: str, moved: float, times: float, ledger: _Ledger) -> None:
        """Adds the time of a collective that runs `times` times over an axis."""
        assert self.link is not None
        torus = place(self.torus, self.sizes)[axis]
        form = ici.all_to_all_s if kind == "all_to_all" else ici.all_gather_s
        once = form(moved, torus, self.link) + cal.COLLECTIVE_START_S.value
        ledger.communication[axis] += times * once
        share = 1 / torus.chips if kind == "all_to_all" else 1 - 1 / torus.chips
        ledger.sent[axis] += times * moved * share

    def _collectives(self, ledger: _Ledger) -> None:
        """Moves what compute cannot hide from `communication` to the parts."""
        room = sum(ledger.parts.values())
        total = sum(ledger.communication.values())
        if not total:
            return
        hidden_most = cal.ICI_HIDDEN.value * total
        exposed = max(total - room, total - hidden_most) / total
        for axis, seconds in ledger.communication.items():
            ledger.parts[f"exposed {axis}"] = exposed * seconds
            ledger.communication[axis] = (1 - exposed) * seconds

    # The ends of a step ------------------------------------------------------------

    def _ends(self, ledger: _Ledger) -> None:
        """Embedding, output projection and loss."""
        d, vocab = self.model.emb, self.model.vocab
        split = self.sizes["tensor"]
        m, n = max(1, round(self.tokens * split)), vocab // split
        shapes = [(m, d, n)]
        if self.train.backward:
            shapes += [(m, n, d), (d, m, n)]
        if self.train.one_hot_embedding:
            shapes.append((m, n, d))
            if self.train.backward:
                shapes.append((n, m, d))
        for shape in shapes:
            ledger.parts["vocabulary"] += self._product_s(*shape, "bf16")
            ledger.flops += 2.0 * math.prod(shape)
        accesses = 4 if self.train.backward else 2
        logits = m * n * LOGIT_BYTES * accesses
        ledger.parts["vocabulary"] += self.rates.hbm_s(logits)
        if self.sizes["fsdp"] > 1:
            gathered = (1 if self.model.tied else 2) * d * n * ACTIVATION_BYTES
            self._send("fsdp", "all_gather", gathered, 3 if self.train.backward else 1, ledger)

    def _update(self, ledger: _Ledger) -> None:
        """The optimizer, and gradients over the data axis and between slices."""
        shards = self.sizes["fsdp"] * self.sizes["tensor"] * self.sizes["pipeline"]
        own = 0.0
        for layer in layers_of(self.model):
            for matrix in layer.matrices:
                expert = self.sizes["expert"] if matrix.copies > 1 else 1
                own += layer.count * matrix.parameters / shards / expert
        own += self.model.vocab * self.model.emb * (1 if self.model.tied else 2) / shards
        moved = own * (2 * self.train.weight_bytes + 2 * self.train.state_bytes + 4)
        ledger.parts["optimizer"] += self.rates.hbm_s(moved)
        if self.sizes["data"] > 1:
            assert self.link is not None
            torus = place(self.torus, self.sizes)["data"]
            reduced = own * ACTIVATION_BYTES
            ledger.parts["exposed data"] += ici.all_reduce_s(reduced, torus, self.link)
            ledger.sent["data"] += 2 * reduced * (1 - 1 / torus.chips)
        if self.slices > 1:
            rate = self.dcn_bytes_per_s * cal.DCN_ACHIEVED.value
            ring = 2 * (self.slices - 1) / self.slices
            ledger.parts["exposed dcn"] += ring * own * self.train.grad_bytes / rate
