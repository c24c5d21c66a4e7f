# SPDX-License-Identifier: Apache-2.0
"""The matrices and attention of a transformer's layers, from its dimensions.

Counts parameters and operations exactly; bytes and times are the business of
`workloads.training`.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu_core.workloads.spec import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A weight matrix ``[k, n]`` that every token of a layer meets.

    Attributes:
        name: as in the list of results that rematerialisation keeps.
        split: the dimension that tensor parallelism splits: ``n``, ``k`` or empty.
        uses: tokens that meet it over tokens of the layer; experts per token for experts.
        copies: matrices of this shape, of which a token meets `uses`.
        last: nothing of the layer's backward pass needs its result.
    """

    name: str
    k: int
    n: int
    split: str
    uses: float = 1.0
    copies: int = 1
    last: bool = False

    @property
    def parameters(self) -> int:
        """Elements of all copies."""
        return self.k * self.n * self.copies


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of layer.

    Attributes:
        count: how many there are; a part of one on a stage of a pipeline.
        matrices: in the order of the forward pass.
        heads: query heads.
        kv_heads: key and value heads.
        head_dim: width of a query and a key.
        value_dim: width of a value.
        window: tokens it attends to, 0 for all.
        hidden: width of the feed-forward part that a token passes, all experts together.
        routed: experts that a token is sent to.
    """

    count: float
    matrices: tuple[Matrix, ...]
    heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int
    hidden: int
    routed: int

    @property
    def parameters(self) -> int:
        """Elements of one layer's matrices."""
        return sum(matrix.parameters for matrix in self.matrices)

    @property
    def active_parameters(self) -> float:
        """Elements that one token meets."""
        return sum(matrix.k * matrix.n * matrix.uses for matrix in self.matrices)


def layers_of(model: Model) -> list[Layer]:
    """The kinds of layers of a model, with their counts."""
    kinds: dict[tuple[bool, bool], int] = {}
    for index in range(model.layers):
        is_global = (index + 1) % model.global_every == 0 or not model.window
        kinds[_has_experts(model, index), is_global] = (
            kinds.get((_has_experts(model, index), is_global), 0) + 1
        )
    return [_layer(model, count, *kind) for kind, count in kinds.items()]


def parameters(model: Model) -> int:
    """All parameters, embeddings included; norms are left out."""
    embeddings = model.vocab * model.emb * (1 if model.tied else 2)
    layers = sum(layer.count * layer.parameters for layer in layers_of(model))
    return embeddings + round(layers)


def _has_experts(model: Model, index: int) -> bool:
    experts = model.experts
    if experts is None or index < experts.first_dense_layers:
        return False
    return (index + 1) % experts.every == 0


def _layer(model: Model, count: int, has_experts: bool, is_global: bool) -> Layer:
    head_dim, kv_heads = model.head_dim, model.kv_heads or model.heads
    shared_kv = False
    if is_global and model.window:
        head_dim = model.global_head_dim or head_dim
        kv_heads = model.global_kv_heads or kv_heads
        shared_kv = model.shared_kv
    attention = _attention(model, head_dim, kv_heads, shared_kv)
    mlp, hidden, routed = _feed_forward(model, has_experts)
    latent = model.latent
    return Layer(
        count=count,
        matrices=(*attention, *mlp),
        heads=model.heads,
        kv_heads=model.heads if latent else kv_heads,
        head_dim=head_dim + (latent.rope_dim if latent else 0),
        value_dim=latent.value_dim if latent else head_dim,
        window=0 if is_global else model.window,
        hidden=hidden,
        routed=routed,
    )


def _attention(model: Model, head_dim: int, kv_heads: int, shared_kv: bool) -> list[Matrix]:
    emb, heads, latent = model.emb, model.heads, model.latent
    if latent is None:
        columns = heads + kv_heads * (1 if shared_kv else 2)
        return [
            Matrix(name="qkv", k=emb, n=columns * head_dim, split="n"),
            Matrix(name="out_proj", k=heads * head_dim, n=emb, split="k"),
        ]
    queries = heads * (head_dim + latent.rope_dim)
    keys = heads * (head_dim + latent.value_dim)
    rows = [Matrix(name="qkv", k=emb, n=latent.kv_rank + latent.rope_dim, split="")]
    if latent.q_rank:
        rows.append(Matrix(name="qkv", k=emb, n=latent.q_rank, split=""))
    rows.append(Matrix(name="qkv", k=latent.q_rank or emb, n=queries, split="n"))
    rows.append(Matrix(name="qkv", k=latent.kv_rank, n=keys, split="n"))
    rows.append(Matrix(name="out_proj", k=heads * latent.value_dim, n=emb, split="k"))
    return rows


def _feed_forward(model: Model, has_experts: bool) -> tuple[list[Matrix], int, int]:
    emb, up = model.emb, model.mlp_matrices - 1
    dense = [
        Matrix(name="gate_up", k=emb, n=up * model.mlp, split="n"),
        Matrix(name="down", k=model.mlp, n=emb, split="k", last=True),
    ]
    experts = model.experts
    if not has_experts or experts is None:
        return dense, model.mlp, 0
    rows = [Matrix(name="router", k=emb, n=experts.count, split="")]
    uses = experts.per_token * max(1.0, experts.capacity_factor)
    for name, k, n, last in (
        ("gate_up", emb, up * experts.mlp, False),
        ("down", experts.mlp, emb, True),
    ):
        rows.append(
            Matrix(name=name, k=k, n=n, split="n", uses=uses, copies=experts.count, last=last)
        )
    hidden = round(uses * experts.mlp)
    if experts.shared:
        width = experts.shared * (experts.shared_mlp or experts.mlp)
        hidden += width
        rows.append(Matrix(name="gate_up", k=emb, n=up * width, split="n"))
        rows.append(Matrix(name="down", k=width, n=emb, split="k", last=True))
    if experts.also_dense:
        rows += dense
        hidden += model.mlp
    return rows, hidden, experts.per_token
