# SPDX-License-Identifier: Apache-2.0
"""What a spec file can say: a training run, a collective, a copy or a matrix product.

A spec holds what a publication states of a run and nothing that was fitted to its
result. `docs/how-to/validate-the-simulator.md` explains every key with examples.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from torchtpu_core.errors import did_you_mean
from torchtpu_core.workloads.microbenchmarks import (
    ALIASES,
    ELEMENT_BYTES,
    AttentionRun,
    CollectiveRun,
    Copy,
    Matmul,
    check_counts,
    check_word,
)
from torchtpu_core.workloads.published import Benchmark, Metric
from torchtpu_core.workloads.remat import REMAT_POLICIES, kept_names

#: Layers are counted one by one: more would take a command's time and memory.
_MOST_LAYERS = 100_000
TOPOLOGY = re.compile(r"[1-9]\d*(x[1-9]\d*)*(_twisted|_untwisted)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """Where it ran.

    Attributes:
        chip: name of the generation, such as ``v5p``.
        topology: chips along each axis of one slice, such as ``8x8x16``; a number alone is
            the most compact slice of so many chips.
        slices: slices joined by the data centre network.
        dcn_bytes_per_s_per_chip: what collectives reach between slices, if the publication
            states it; the chip's if 0.
    """

    chip: str
    topology: str = "1"
    slices: int = 1
    dcn_bytes_per_s_per_chip: float = 0.0

    def __post_init__(self) -> None:
        if not TOPOLOGY.fullmatch(self.topology):
            raise ValueError(
                f"topology = {self.topology!r} is not of the form 4x4x8, 16x16 or 256."
            )
        if self.slices < 1:
            raise ValueError(f"slices = {self.slices}: a job has at least one.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """A mixture of experts in place of the dense feed-forward part.

    Attributes:
        count: routed experts of a layer.
        per_token: experts that a token visits.
        mlp: hidden width of one expert.
        shared: experts that every token visits, of width `shared_mlp`.
        shared_mlp: width of a shared expert, that of a routed one if 0.
        first_dense_layers: leading layers that keep the dense feed-forward part.
        every: one layer in so many has experts; the others are dense.
        also_dense: the layers with experts have the dense part as well.
        capacity_factor: tokens that an expert has room for, over an even share; 0 if no
            token is dropped and none is padded.
    """

    count: int
    per_token: int
    mlp: int
    shared: int = 0
    shared_mlp: int = 0
    first_dense_layers: int = 0
    every: int = 1
    also_dense: bool = False
    capacity_factor: float = 0.0

    def __post_init__(self) -> None:
        check_counts(every=self.every)
        if self.per_token > self.count:
            raise ValueError(
                f"per_token = {self.per_token} of count = {self.count} experts: a token visits "
                f"each at most once; use 1 to {self.count}."
            )

    def has_dense(self, layers: int) -> bool:
        """Whether some of so many layers have a dense feed-forward part."""
        return self.also_dense or self.every > 1 or 0 < self.first_dense_layers <= layers


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek V2): low-rank queries, keys and values.

    Attributes:
        q_rank: width of the compressed queries; 0 if they are not compressed.
        kv_rank: width of the compressed keys and values.
        rope_dim: part of a head's query and key that is rotated.
        value_dim: width of a head's value.
    """

    kv_rank: int
    q_rank: int = 0
    rope_dim: int = 64
    value_dim: int = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A transformer.

    Attributes:
        layers: blocks of attention and feed-forward part.
        emb: width of the residual stream.
        heads: query heads.
        head_dim: width of a head; of its unrotated part with latent attention.
        kv_heads: key and value heads; as many as query heads if 0.
        mlp: hidden width of the dense feed-forward part.
        mlp_matrices: 3 with a gate, 2 without.
        vocab: rows of the embedding.
        tied: the output projection is the embedding.
        window: tokens that a local layer attends to; 0 if all layers are global.
        global_every: one layer in so many is global, the others are local.
        global_head_dim: width of a head in global layers, if it differs.
        global_kv_heads: key and value heads in global layers, if they differ.
        shared_kv: keys are values too in global layers: one projection for both.
        norms: normalisations of the residual stream in a layer.
        causal: a token attends to earlier ones only.
        experts: the mixture of experts, if there is one.
        latent: latent attention, if there is.
    """

    layers: int
    emb: int
    heads: int
    head_dim: int = 128
    kv_heads: int = 0
    mlp: int = 0
    mlp_matrices: int = 3
    vocab: int = 32000
    tied: bool = False
    window: int = 0
    global_every: int = 1
    global_head_dim: int = 0
    global_kv_heads: int = 0
    shared_kv: bool = False
    norms: int = 2
    causal: bool = True
    experts: Experts | None = None
    latent: LatentAttention | None = None

    def __post_init__(self) -> None:
        check_counts(
            head_dim=self.head_dim,
            mlp_matrices=self.mlp_matrices,
            vocab=self.vocab,
            global_every=self.global_every,
        )
        if self.layers > _MOST_LAYERS:
            raise ValueError(f"layers = {self.layers}: use {_MOST_LAYERS} or less.")
        for key in ("kv_heads", "global_kv_heads"):
            heads = getattr(self, key)
            if heads and self.heads % heads:
                fitting = [n for n in range(1, self.heads + 1) if self.heads % n == 0]
                near = min(fitting, key=lambda n: abs(n - heads))
                raise ValueError(
                    f"{key} = {heads} does not divide heads = {self.heads}: each key and value "
                    f"head serves as many queries. Nearest: {near}."
                )
        if not self.mlp and (self.experts is None or self.experts.has_dense(self.layers)):
            raise ValueError("mlp is missing: it is the hidden width of layers without experts.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """Chips along each logical axis of the mesh.

    The product of all but `data` divides the chips of a slice; what is left over becomes
    `data`, within and across slices.

    Attributes:
        fsdp: parameters, gradients and optimizer state are sharded over it; -1 takes all
            chips of a slice that no other axis takes.
        tensor: matrices are split over it (Megatron), with the sequence between them.
        expert: experts are distributed over it.
        context: the sequence is split over it.
        pipeline: layers are split over it; each stage computes for the batch of all.
        microbatches: parts of the batch that follow each other through a pipeline.
    """

    fsdp: int = -1
    tensor: int = 1
    expert: int = 1
    context: int = 1
    pipeline: int = 1
    microbatches: int = 1

    def __post_init__(self) -> None:
        check_counts(microbatches=self.microbatches)


#: Bytes per parameter of an optimizer's state in float32.
STATE_BYTES = {
    "adam": 8,
    "adamw": 8,
    "adam_pax": 8,
    "lion": 4,
    "muon": 4,
    "adagrad": 4,
    "momentum": 4,
    "adafactor": 0,
    "sgd": 0,
}
#: How often an update reads the gradient, if not once. Adafactor (arXiv:1804.04235, algorithm 4):
#: for the factored moments, for the size of the update that they make, and for the update.
GRADIENT_READS = {"adafactor": 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    """How it is trained.

    Attributes:
        sequence: tokens of a sequence.
        batch_per_chip: sequences per chip and step; below one when a sequence is split.
        global_batch: sequences per step of all chips, in place of `batch_per_chip`.
        gradient_accumulation_steps: parts of the step's batch whose gradients are summed.
        dtype: of activations and matrix products: bf16 or f32.
        quantization: none, int8 or fp8: the type of the layers' products, gradients too.
        quantized_gather: weights travel in eight bits too.
        remat: a policy (full, minimal, none, save_qkv, save_attention, or MaxText's name of
            one), or empty: `saved`.
        saved: results kept from the forward pass: qkv, context, out_proj, gate_up, down, or
            MaxText's names of them.
        offload: what is kept waits in the host's memory.
        optimizer: adam, adamw, adam_pax, lion, muon, adagrad, momentum, adafactor or sgd.
        state_bytes: bytes per parameter of the optimizer's state; -1 is what it keeps in
            float32: 8 with adam, 4 with one moment, 0 with sgd and adafactor's factored moments.
        weight_bytes: bytes per stored parameter.
        grad_bytes: bytes per gradient element where gradients are exchanged over DCN; those of a
            stored parameter if 0.
        logits_dtype: of the logits and their gradient: f32 or bf16.
        flash_attention: a kernel keeps the scores in VMEM; without one, all pairs of queries
            and keys, masked ones too, go through HBM.
        fused_attention_backward: one kernel makes all gradients of attention; of two, one for
            queries and one for keys and values, each computes the scores again.
        one_hot_embedding: the look-up is a product with a one-hot matrix.
        backward: whether there is a backward pass and an update.
    """

    sequence: int
    batch_per_chip: float = 0.0
    global_batch: float = 0.0
    gradient_accumulation_steps: int = 1
    dtype: str = "bf16"
    quantization: str = "none"
    quantized_gather: bool = False
    remat: str = "full"
    saved: tuple[str, ...] = ()
    offload: bool = False
    optimizer: str = "adam"
    state_bytes: int = -1
    weight_bytes: int = 4
    grad_bytes: int = 0
    logits_dtype: str = "f32"
    flash_attention: bool = True
    fused_attention_backward: bool = True
    one_hot_embedding: bool = False
    backward: bool = True

    def __post_init__(self) -> None:
        if (self.batch_per_chip > 0) == (self.global_batch > 0):
            raise ValueError("give batch_per_chip or global_batch, above zero, and not both.")
        check_counts(gradient_accumulation_steps=self.gradient_accumulation_steps)
        if self.remat and self.remat not in REMAT_POLICIES:
            raise ValueError(
                f"remat = {self.remat!r} is not a policy.{did_you_mean(self.remat, REMAT_POLICIES)}"
                f" Use {', '.join(REMAT_POLICIES)}, or an empty string and the list `saved`."
            )
        object.__setattr__(self, "saved", kept_names(self.saved))
        for key in ("dtype", "quantization", "optimizer", "logits_dtype"):
            word = getattr(self, key).lower()
            object.__setattr__(self, key, ALIASES.get(word, word))
        check_word("quantization", self.quantization, ("none", "int8", "fp8"))
        check_word("dtype", self.dtype, ("bf16", "f32"))
        check_word("logits_dtype", self.logits_dtype, ("bf16", "f32"))
        check_word("optimizer", self.optimizer, STATE_BYTES)
        if self.state_bytes < 0:
            object.__setattr__(self, "state_bytes", STATE_BYTES[self.optimizer])

    @property
    def part(self) -> Train:
        """What is computed at once: one of the parts whose gradients are summed."""
        batch = self.batch_per_chip / self.gradient_accumulation_steps
        return replace(self, batch_per_chip=batch, gradient_accumulation_steps=1)

    @property
    def activation_bytes(self) -> int:
        """Bytes of an element of an activation, and of a weight where it is used."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def gradient_bytes(self) -> int:
        """Bytes of an element of a gradient on a chip: it has the type of its parameter."""
        return self.weight_bytes

    @property
    def update_bytes(self) -> int:
        """Bytes that an update reads and writes for each parameter."""
        reads = GRADIENT_READS.get(self.optimizer, 1)
        return 2 * (self.weight_bytes + self.state_bytes) + reads * self.gradient_bytes

    @property
    def logit_bytes(self) -> int:
        """Bytes of a logit."""
        return ELEMENT_BYTES[self.logits_dtype]

    @property
    def kept(self) -> frozenset[str]:
        """Names of the results that the backward pass does not compute again."""
        return frozenset((*REMAT_POLICIES.get(self.remat, ()), *self.saved))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One configuration, with the rows of a table that measured it.

    Attributes:
        rows: identifiers of rows; a file named like a row serves that row too.
        hardware: where it ran.
        model, parallel, train: a training run.
        metric: how its figures were counted.
        benchmark: blocks of steps and evaluations, if those were timed.
        compare_slices: a speed-up is over this many slices (of the same size).
        compare_topology: a speed-up of a collective is over this topology.
        collective, copy, matmul, attention: a microbenchmark instead.
        unmodelled: why the model cannot answer; the rows are listed with it.
        notes: what was assumed where the publication is silent.
    """

    hardware: Hardware
    rows: tuple[str, ...] = ()
    model: Model | None = None
    parallel: Parallel = field(default_factory=Parallel)
    train: Train | None = None
    metric: Metric = field(default_factory=Metric)
    benchmark: Benchmark | None = None
    compare_slices: int = 0
    compare_topology: str = ""
    collective: CollectiveRun | None = None
    copy: Copy | None = None
    matmul: Matmul | None = None
    attention: AttentionRun | None = None
    unmodelled: str = ""
    notes: str = ""

    def __post_init__(self) -> None:
        kinds = (self.train, self.collective, self.copy, self.matmul, self.attention)
        if not self.unmodelled and sum(kind is not None for kind in kinds) != 1:
            raise ValueError(
                "give exactly one of train (with model), collective, copy, matmul, attention."
            )
        if self.train is not None and self.model is None:
            raise ValueError("train needs a model.")
        if self.model is not None and not self.unmodelled:
            _check_split(self.model, self.parallel)


def _check_split(model: Model, parallel: Parallel) -> None:
    """Refuses axes over which a model cannot be split.

    Raises:
        ValueError: an expert or pipeline axis that there is nothing for.
    """
    experts = model.experts.count if model.experts else 0
    if parallel.expert > 1 and not experts:
        raise ValueError(
            f"parallel.expert = {parallel.expert} and no [model.experts]: use fsdp or tensor."
        )
    for key, size, what, count in (
        ("expert", parallel.expert, "experts", experts),
        ("pipeline", parallel.pipeline, "layers", model.layers),
    ):
        if size > 1 and size > count:
            raise ValueError(f"parallel.{key} = {size} for {count} {what}: use {count} or less.")
