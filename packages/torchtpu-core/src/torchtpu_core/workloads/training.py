# SPDX-License-Identifier: Apache-2.0
"""The simulated time of a training step of a transformer, from its spec.

The work of one chip stands for all. Matrix products run at the fill of the matrix unit
with padded tiles, or at HBM's rate if that is slower; what does not fuse into them
moves through HBM; attention is a flash kernel, or products with scores in HBM; the
weights' collectives run partly behind compute; gradients cross the data centre network at
the end. All communication is priced by the closed form of `ici`. A pipeline's chip has its
part of the layers and the tokens of all its stages. Of a step whose gradients are summed over
parts, each part gathers sharded weights and scatters their gradients; the update and what is
reduced over data and slices come once. Not modelled: the compiler's schedule,
VMEM capacity, power limits, input pipelines.

Legend: ``T`` tokens of a chip, ``d`` width of the residual stream.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field, replace

from torchtpu_core.ici.kinds import CollectiveKind
from torchtpu_core.ici.model import Message, NetworkModel, network_model
from torchtpu_core.ici.span import Span
from torchtpu_core.simulator import calibration as cal
from torchtpu_core.simulator.collective_pricing import start_s
from torchtpu_core.simulator.rates import Rates
from torchtpu_core.workloads import flops as counted
from torchtpu_core.workloads.layers import Layer, Matrix, layers_of
from torchtpu_core.workloads.memory import kept_bytes
from torchtpu_core.workloads.meshes import network_of, sizes_of
from torchtpu_core.workloads.placement import place
from torchtpu_core.workloads.prediction import StepPrediction
from torchtpu_core.workloads.spec import Model, Parallel, Spec, Train

# Both recipes quantise the forward product and both gradients.
_DTYPES = {"none": "bf16", "int8": "int8", "fp8": "fp8"}


@dataclass(slots=True)
class _Ledger:
    """Seconds by part, while a step is added up."""

    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    communication: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    sent: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    flops: float = 0.0

    def repeat(self, times: int) -> None:
        """What is added up so far happens so many times."""
        self.flops *= times
        for seconds in (self.parts, self.communication, self.sent):
            for name in seconds:
                seconds[name] *= times


def predict_step(spec: Spec, slices: int | None = None) -> StepPrediction:
    """The simulated step of a spec, on another number of slices if given."""
    model, train = spec.model, spec.train
    assert model is not None and train is not None
    slices = slices or spec.hardware.slices
    network = network_of(spec.hardware, slices)
    torus = network.slice_.torus
    chip = network.slice_.chip
    sizes = sizes_of(spec.parallel, torus.chips)
    step = _Step(
        model=model,
        train=train,
        rates=Rates.of(chip),
        sizes=sizes,
        spans=place(torus, sizes),
        network=network_model(network),
        slices=slices,
    )
    ledger = step.price(spec.parallel)
    return StepPrediction(
        step_s=sum(ledger.parts.values()),
        parts=dict(ledger.parts),
        hidden=dict(ledger.communication),
        chips=torus.chips * slices,
        tokens=train.batch_per_chip * train.sequence * torus.chips * slices,
        flops_per_token=counted.flops_per_token(model, train.sequence, spec.metric.attention)
        * (1.0 if train.backward else 1 / 3),
        peak_flops_per_s=spec.metric.peak_tflops_per_chip * 1e12
        or chip.figure("peak_bf16_flops_per_s"),
        hardware_flops=ledger.flops,
        sent_bytes=dict(ledger.sent),
    )


def scores_per_head(sequence: int, window: int, causal: bool) -> float:
    """Pairs of query and key that a flash kernel's blocks cover, for one sequence.

    Of a window, a block of queries meets its own block of keys and those that the window of
    its first query reaches into.
    """
    length = float(sequence)
    block = min(cal.ATTENTION_BLOCK.value, length)
    if not causal:
        return length * length
    if window and window < length:
        return length * min(block * (1 + math.ceil(window / block)), (length + block) / 2)
    return length * (length + block) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """One step, priced part by part."""

    model: Model
    train: Train
    rates: Rates
    sizes: dict[str, int]
    spans: dict[str, Span]
    network: NetworkModel
    slices: int

    @property
    def _sequences(self) -> float:
        """Sequences that a chip's layers see: those of all stages of its pipeline."""
        return self.train.batch_per_chip * self.sizes["pipeline"]

    @property
    def tokens(self) -> float:
        """T."""
        return self._sequences * self.train.sequence

    def price(self, parallel: Parallel) -> _Ledger:
        """The whole step."""
        ledger = _Ledger()
        replace(self, train=self.train.part)._part(parallel, ledger)
        ledger.repeat(self.train.gradient_accumulation_steps)
        self._collectives(ledger)
        self._offload(ledger)
        if self.train.backward:
            self._update(ledger)
        if self.slices > 1:
            loss = cal.MULTISLICE_LOSS.value * math.log2(self.slices)
            ledger.parts["waiting for slices"] = loss * sum(ledger.parts.values())
        return ledger

    def _part(self, parallel: Parallel, ledger: _Ledger) -> None:
        """Forward and backward pass of what is computed at once."""
        for layer in layers_of(self.model):
            # A stage has its part of the layers of each kind.
            self._layer(replace(layer, count=layer.count / parallel.pipeline), ledger)
        self._ends(ledger)
        if parallel.pipeline > 1:
            bubbles = (parallel.pipeline - 1) / max(parallel.microbatches, 1)
            ledger.parts["pipeline bubbles"] = bubbles * sum(ledger.parts.values())
            self._stages(ledger)

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
            if ragged:
                seconds *= 1 + cal.GROUP_TILE_ROWS.value / m
                seconds /= cal.GROUPED_MATMUL.value
            ledger.parts[kind] += layer.count * copies * seconds
            ledger.flops += layer.count * copies * 2.0 * math.prod(shape)

    @property
    def _capacity(self) -> float:
        """Room of an expert over an even share; 0 if experts take what comes."""
        return self.model.experts.capacity_factor if self.model.experts else 0.0

    def _product_s(self, m: int, k: int, n: int, dtype: str) -> float:
        """The slower of matrix units and HBM."""
        moved = self.train.activation_bytes * (m * k + k * n + m * n)
        return max(self.rates.fused_matmul_s(m, k, n, dtype), self.rates.hbm_s(moved))

    def _attention(self, layer: Layer, ledger: _Ledger) -> None:
        causal = self.model.causal and self.train.flash_attention
        per_head = scores_per_head(self.train.sequence, layer.window, causal)
        scores = self._sequences * layer.heads * per_head
        runs = self._passes("context", last=False)
        forward = self.rates.attention_s(scores, layer.head_dim, layer.value_dim, backward=False)
        total = runs * forward
        products = runs * 2
        if self.train.backward:
            fused = self.train.fused_attention_backward or not self.train.flash_attention
            total += self.rates.attention_s(
                scores, layer.head_dim, layer.value_dim, backward=True, fused=fused
            )
            products += 5 if fused else 7
        if not self.train.flash_attention:
            moved = runs * cal.SCORE_BYTES_FORWARD.value
            moved += cal.SCORE_BYTES_BACKWARD.value if self.train.backward else 0
            total += self.rates.hbm_s(scores * moved)
        ledger.parts["attention"] += layer.count * total
        ledger.flops += layer.count * scores * products * (layer.head_dim + layer.value_dim)

    def _elementwise(self, layer: Layer, ledger: _Ledger) -> None:
        """What does not fuse into products: norms, rotation, activation, routing."""
        d, hidden = self.model.emb, layer.hidden
        rotated = layer.heads * layer.head_dim + layer.kv_heads * (layer.head_dim + layer.value_dim)
        accesses = 3 * self.model.norms * d + 2 * rotated + self.model.mlp_matrices * hidden
        # Policies keep products: what lies between them is computed again, but with none at all.
        passes = 1 + (3 if self.train.backward else 0)
        if self.train.remat == "none" and self.train.backward:
            passes -= 1
        seconds = self.rates.elementwise_s(
            passes * accesses * self.tokens, self.train.activation_bytes
        )
        ledger.parts["elementwise"] += layer.count * seconds
        if layer.routed and not self._capacity:
            routed = layer.routed * d * self.train.activation_bytes * self.tokens
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
        count = layer.count * runs * self._sequences
        ledger.parts["routing"] += count * seconds
        ledger.flops += count * 2.0 * places * length * self.model.emb

    # Communication -----------------------------------------------------------------

    def _weight_bytes(self, layer: Layer) -> float:
        """Bytes of one layer's weights on a chip once they are gathered."""
        element = 1 if self.train.quantized_gather else self.train.activation_bytes
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
        self._send("fsdp", CollectiveKind.ALL_GATHER, gathered, layer.count * runs, ledger)
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
            moved = self.tokens * tensor * d * self.train.activation_bytes
            self._send("tensor", CollectiveKind.ALL_GATHER, moved, 4 * runs * layer.count, ledger)
        if context > 1:
            width = layer.kv_heads * (layer.head_dim + layer.value_dim)
            moved = self.tokens * context * width * self.train.activation_bytes
            self._send("context", CollectiveKind.ALL_GATHER, moved, 2 * runs * layer.count, ledger)
        expert = self.sizes["expert"]
        if expert > 1 and layer.routed:
            moved = self.tokens * expert * layer.routed * d * self.train.activation_bytes
            self._send("expert", CollectiveKind.ALL_TO_ALL, moved, 2 * runs * layer.count, ledger)

    def _stages(self, ledger: _Ledger) -> None:
        """Activations from stage to stage, and their gradients back."""
        span, ways = self.spans["pipeline"], 2 if self.train.backward else 1
        hop = Message(0, self.network.network.slice_.devices_per_chip, 0.0)
        moved = self.tokens * self.model.emb * self.train.activation_bytes / self.sizes["tensor"]
        hops = max(axis.stride for axis in span.axes)
        time_s = self.network.messages_time([replace(hop, size_bytes=moved)]).time_s
        ledger.communication["pipeline"] += ways * hops * time_s
        ledger.sent["pipeline"] += ways * moved

    def _offload(self, ledger: _Ledger) -> None:
        """What the host keeps leaves during the forward pass and returns during the backward."""
        figure = self.network.network.slice_.chip.host_link_bytes_per_s_per_chip
        if not self.train.offload or figure is None:
            return
        layers = layers_of(self.model)
        kept = sum(n.count * kept_bytes(n, self.train, self.model) for n in layers)
        away_s = kept * self.train.batch_per_chip * self.train.sequence / figure.value
        forward_s = sum(ledger.parts.values()) / (1 + 2 + 1)
        ledger.parts["exposed host link"] = 2 * max(0.0, away_s - forward_s)

    def _send(
        self, axis: str, kind: CollectiveKind, moved: float, times: float, ledger: _Ledger
    ) -> None:
        """Adds a collective of arrays of `moved` bytes that runs `times` times over an axis."""
        span = self.spans[axis]
        own = moved / span.chips if kind is not CollectiveKind.ALL_REDUCE else moved
        ledger.communication[axis] += times * self._once(kind, own, span)
        share = 1 / span.chips if kind is CollectiveKind.ALL_TO_ALL else 1 - 1 / span.chips
        ledger.sent[axis] += times * moved * share

    def _once(self, kind: CollectiveKind, own: float, span: Span) -> float:
        """Seconds of one collective, from its start; a chip puts in `own` bytes."""
        found = self.network.collective_time(kind, own, span)
        return found.time_s + start_s(found)

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
        tokens = self.train.batch_per_chip * self.train.sequence
        m, n = max(1, round(tokens * split)), vocab // split
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
        logits = m * n * self.train.logit_bytes * accesses
        ledger.parts["vocabulary"] += self.rates.hbm_s(logits)
        if self.sizes["fsdp"] > 1:
            gathered = (1 if self.model.tied else 2) * d * n * self.train.activation_bytes
            self._send(
                "fsdp", CollectiveKind.ALL_GATHER, gathered, 3 if self.train.backward else 1, ledger
            )

    def _update(self, ledger: _Ledger) -> None:
        """The optimizer, sums of gradients, and these over the data axis and between slices."""
        shards = self.sizes["fsdp"] * self.sizes["tensor"] * self.sizes["pipeline"]
        own = 0.0
        for layer in layers_of(self.model):
            for matrix in layer.matrices:
                expert = self.sizes["expert"] if matrix.copies > 1 else 1
                own += layer.count * matrix.parameters / shards / expert
        own += self.model.vocab * self.model.emb * (1 if self.model.tied else 2) / shards
        ledger.parts["optimizer"] += self.rates.hbm_s(own * self.train.update_bytes)
        if sums := self.train.gradient_accumulation_steps - 1:
            passes = 3 * own * self.train.gradient_bytes
            ledger.parts["gradient sums"] = sums * self.rates.hbm_s(passes)
        if self.sizes["data"] > 1:
            reduced = own * self.train.activation_bytes
            span = self.spans["data"]
            ledger.parts["exposed data"] += self._once(CollectiveKind.ALL_REDUCE, reduced, span)
            ledger.sent["data"] += 2 * reduced * (1 - 1 / span.chips)
        if self.slices > 1:
            element = self.train.grad_bytes or self.train.gradient_bytes
            reduced = own * element / self.sizes["data"]
            between = Span(axes=(), slices=self.slices)
            ledger.parts["exposed dcn"] += self._once(CollectiveKind.ALL_REDUCE, reduced, between)
