# SPDX-License-Identifier: Apache-2.0
"""Well-known architectures and training recipes give on the device what CPU gives.

Each recipe is a function of a device that returns tensors: it builds its model and data
on CPU from one seed, moves them by the device string, and trains a step or two. The
test runs it on both devices and compares all it returns: outputs, gradients, weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, rnn
from torch.utils.checkpoint import checkpoint

Recipe = Callable[[str], Iterable[torch.Tensor]]


def _trained(model: nn.Module, loss: Callable[[], torch.Tensor], steps: int = 2) -> list:
    """Losses of SGD steps, then the last gradients and the weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        value = loss()
        value.backward()
        optimizer.step()
        losses.append(value.detach())
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [*losses, *gradients, *model.parameters(), *model.buffers()]


class _UNet(nn.Module):
    """Two scales, transposed convolution up, a skip connection."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
        self.down = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(4, 8, 3, padding=1), nn.GELU())
        self.up = nn.ConvTranspose2d(8, 4, 2, stride=2)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = self.first(x)
        return self.last(torch.cat([wide, self.up(self.down(wide))], dim=1))


def unet(device: str) -> list:
    model, x = _UNet().to(device), torch.randn(2, 1, 8, 8).to(device)
    target = torch.randint(0, 2, (2, 8, 8)).to(device)
    return _trained(model, lambda: F.cross_entropy(model(x), target))


class _VAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(6, 4), nn.Linear(2, 6)

    def forward(self, x: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
        mean, log_variance = self.encoder(x).chunk(2, dim=-1)
        decoded = self.decoder(mean + noise * (0.5 * log_variance).exp())
        rest = F.binary_cross_entropy_with_logits(decoded, x, reduction="sum")
        return rest - 0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum()


def variational_autoencoder(device: str) -> list:
    model = _VAE().to(device)
    x, noise = torch.rand(3, 6).to(device), torch.randn(3, 2).to(device)
    return _trained(model, lambda: model(x, noise) / 10)


def adversarial_pair_with_spectral_norm(device: str) -> list:
    maker = nn.Sequential(nn.Linear(2, 4), nn.Tanh()).to(device)
    judge = nn.Sequential(
        parametrizations.spectral_norm(nn.Linear(4, 3)), nn.LeakyReLU(0.2), nn.Linear(3, 1)
    ).to(device)
    makers = torch.optim.Adam(maker.parameters(), lr=0.01, betas=(0.5, 0.999))
    judges = torch.optim.Adam(judge.parameters(), lr=0.01, betas=(0.5, 0.999))
    real, noise = torch.randn(3, 4).to(device), torch.randn(3, 2).to(device)
    for _ in range(2):
        judges.zero_grad()
        fake = maker(noise)
        (F.softplus(-judge(real)) + F.softplus(judge(fake.detach()))).mean().backward()
        judges.step()
        makers.zero_grad()
        F.softplus(-judge(fake)).mean().backward()
        makers.step()
    return [*maker.parameters(), *judge.parameters(), *judge.buffers()]


def _recurrent(cell: type[nn.RNNBase]) -> Recipe:
    def recipe(device: str) -> list:
        model = cell(3, 4, num_layers=2, bidirectional=True, batch_first=True).to(device)
        x = torch.randn(3, 5, 3).to(device)
        lengths = torch.tensor([3, 5, 2])

        def loss() -> torch.Tensor:
            packed = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            out, _ = rnn.pad_packed_sequence(model(packed)[0], batch_first=True)
            return out.square().mean()

        return _trained(model, loss, steps=1)

    return recipe


def transformer_with_masks(device: str) -> list:
    model = nn.Transformer(8, 2, 1, 1, 16, dropout=0.0, batch_first=True).to(device)
    source, target = torch.randn(2, 5, 8).to(device), torch.randn(2, 4, 8).to(device)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)
    causal = nn.Transformer.generate_square_subsequent_mask(4, device=device)

    def loss() -> torch.Tensor:
        out = model(
            source,
            target,
            tgt_mask=causal,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return out.square().mean() + out[:, -1].sum() / 10

    return _trained(model, loss, steps=1)


def transformer_encoder_fast_path(device: str) -> list:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).to(device).eval()
    x = torch.randn(2, 5, 8).to(device)
    padding = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]).to(device)
    with torch.inference_mode():
        plain, padded = model(x), model(x, src_key_padding_mask=padding)
    return [plain, padded]


def multihead_attention_with_masks(device: str) -> list:
    model = nn.MultiheadAttention(8, 2, kdim=6, vdim=5, add_bias_kv=True).to(device)
    query, key = torch.randn(4, 2, 8).to(device), torch.randn(3, 2, 6).to(device)
    value = torch.randn(3, 2, 5).to(device)
    padding = torch.tensor([[False, False, True], [False, False, False]]).to(device)
    mask = torch.zeros(4, 3).masked_fill(torch.eye(4, 3) > 0, -1.0).to(device)
    out, weights = model(query, key, value, key_padding_mask=padding, attn_mask=mask)
    (out.square().sum() + weights.square().sum()).backward()
    return [out, weights, *[p.grad for p in model.parameters()]]


class _Recommender(nn.Module):
    """The shape of DLRM: bags of categories, dense features, pairwise interactions."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(7, 4, mode=m) for m in ("sum", "mean"))
        self.dense, self.top = nn.Linear(3, 4), nn.Linear(7, 1)

    def forward(self, dense: torch.Tensor, ids: torch.Tensor, offsets: torch.Tensor):
        features = torch.stack([self.dense(dense), *(b(ids, offsets) for b in self.bags)], dim=1)
        pairs = features @ features.transpose(1, 2)
        row, column = torch.tril_indices(3, 3, -1, device=dense.device)
        return self.top(torch.cat([features[:, 0], pairs[:, row, column]], dim=1))


def recommender(device: str) -> list:
    model, dense = _Recommender().to(device), torch.randn(3, 3).to(device)
    ids, offsets = torch.tensor([1, 2, 6, 0, 2]).to(device), torch.tensor([0, 2, 2]).to(device)
    clicked = torch.tensor([[1.0], [0.0], [1.0]]).to(device)
    return _trained(
        model, lambda: F.binary_cross_entropy_with_logits(model(dense, ids, offsets), clicked)
    )


def speech_with_ctc(device: str) -> list:
    model = nn.Sequential(nn.Conv1d(4, 6, 3, stride=2), nn.ReLU(), nn.Conv1d(6, 5, 1)).to(device)
    x, labels = torch.randn(2, 4, 15).to(device), torch.tensor([[1, 2, 2], [3, 4, 0]]).to(device)
    lengths = torch.tensor([7, 6]).to(device), torch.tensor([3, 2]).to(device)

    def loss() -> torch.Tensor:
        return F.ctc_loss(model(x).permute(2, 0, 1).log_softmax(-1), labels, *lengths)

    return _trained(model, loss)


class _GraphNet(nn.Module):
    """Messages along edges, summed by index_add, pooled by scatter_reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(6, 4), nn.GRUCell(4, 3)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor, graph: torch.Tensor):
        source, target = edges
        messages = self.message(torch.cat([nodes[source], nodes[target]], dim=-1)).relu()
        gathered = nodes.new_zeros(len(nodes), 4).index_add(0, target, messages)
        nodes = self.update(gathered, nodes)
        index = graph[:, None].expand(-1, 3)
        return nodes.new_zeros(2, 3).scatter_reduce(0, index, nodes, "amax", include_self=False)


def graph_network(device: str) -> list:
    model, nodes = _GraphNet().to(device), torch.randn(5, 3).to(device)
    edges = torch.tensor([[0, 1, 2, 3, 4, 1], [1, 0, 1, 4, 3, 2]]).to(device)
    graph = torch.tensor([0, 0, 0, 1, 1]).to(device)
    return _trained(model, lambda: model(nodes, edges, graph).square().sum())


def diffusion_training_and_sampling(device: str) -> list:
    model = nn.Sequential(nn.Linear(5, 8), nn.SiLU(), nn.Linear(8, 4)).to(device)
    alphas = torch.cumprod(1 - torch.linspace(1e-2, 0.2, 6, device=device), 0)
    x, noise = torch.randn(3, 4).to(device), torch.randn(3, 4).to(device)
    time = torch.tensor([0, 3, 5]).to(device)

    def predict(noisy: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return model(torch.cat([noisy, step[:, None] / 6.0], dim=1))

    def loss() -> torch.Tensor:
        kept = alphas[time][:, None]
        return F.mse_loss(predict(kept.sqrt() * x + (1 - kept).sqrt() * noise, time), noise)

    trained = _trained(model, loss)
    sample = noise
    with torch.no_grad():
        for step in reversed(range(3)):
            kept = alphas[step]
            guess = predict(sample, torch.full((3,), step, device=device))
            sample = (sample - (1 - kept).sqrt() * guess) / kept.sqrt()
    return [*trained, sample]


def weight_norm_and_orthogonal(device: str) -> list:
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Conv1d(2, 3, 3)),
        nn.Flatten(),
        parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley"),
    ).to(device)
    x = torch.randn(2, 2, 4).to(device)
    return _trained(model, lambda: model(x).square().mean())


class _Symmetric(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.triu() + x.triu(1).mT


def own_parametrization(device: str) -> list:
    model = nn.Linear(3, 3).to(device)
    parametrize.register_parametrization(model, "weight", _Symmetric())
    x = torch.randn(2, 3).to(device)
    out = _trained(model, lambda: model(x).square().sum())
    parametrize.remove_parametrizations(model, "weight")
    return [*out, model.weight]


def ensemble_of_stacked_weights(device: str) -> list:
    models = [nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state([m.to(device) for m in models])
    x, y = torch.randn(5, 3).to(device), torch.randn(5, 1).to(device)

    def loss(p: dict, b: dict) -> torch.Tensor:
        return F.mse_loss(torch.func.functional_call(models[0], (p, b), (x,)), y)

    values = torch.vmap(loss)(parameters, buffers)
    gradients = torch.vmap(torch.func.grad(loss))(parameters, buffers)
    return [values, *gradients.values()]


def averaged_weights(device: str) -> list:
    from torch.optim import swa_utils

    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)).to(device)
    moving = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    mean = swa_utils.AveragedModel(model)
    x = torch.randn(6, 3).to(device)
    for _ in range(2):
        _trained(model, lambda: model(x).pow(3).mean(), steps=1)
        moving.update_parameters(model)
        mean.update_parameters(model)
    swa_utils.update_bn([x[:3], x[3:]], mean)
    return [*moving.parameters(), *mean.parameters(), *mean.buffers()]


def checkpointed_blocks_with_dropout(device: str) -> list:
    blocks = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(2)).to(device)
    drop, x = nn.Dropout(0.5), torch.ones(2, 4, device=device, requires_grad=True)
    hidden = x
    for block in blocks:
        hidden = checkpoint(lambda y, block=block: block(y), hidden, use_reentrant=False)
    dropped = checkpoint(drop, hidden, use_reentrant=False)
    dropped.sum().backward()
    # the recomputed mask is the one of the forward pass: its survivors are known by sign
    mask = torch.autograd.grad(checkpoint(drop, x, use_reentrant=False).sum(), x)[0]
    assert set(mask.flatten().tolist()) <= {0.0, 2.0}
    return [hidden]


def language_model_with_tied_weights(device: str) -> list:
    embedding, head = nn.Embedding(9, 6), nn.Linear(6, 9, bias=False)
    head.weight = embedding.weight
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, norm_first=True, batch_first=True)
    model = nn.ModuleList([embedding, layer, head]).to(device)
    ids = torch.randint(0, 9, (2, 6)).to(device)
    mask = nn.Transformer.generate_square_subsequent_mask(5, device=device)

    def loss() -> torch.Tensor:
        hidden = layer(embedding(ids[:, :-1]), src_mask=mask, is_causal=True)
        return F.cross_entropy(
            head(hidden).flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1
        )

    assert head.weight is embedding.weight
    return _trained(model, loss)


def siamese_with_triplets(device: str) -> list:
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.InstanceNorm2d(3, affine=True), nn.Flatten())
    model = model.to(device)
    anchor, near, far = torch.randn(3, 2, 1, 5, 5).to(device)
    triplet = nn.TripletMarginWithDistanceLoss(
        distance_function=lambda a, b: 1 - F.cosine_similarity(a, b)
    )
    return _trained(model, lambda: triplet(model(anchor), model(near), model(far)))


def spatial_transformer(device: str) -> list:
    where = nn.Sequential(nn.Flatten(), nn.Linear(16, 6)).to(device)
    x = torch.randn(2, 1, 4, 4).to(device)

    def loss() -> torch.Tensor:
        grid = F.affine_grid(where(x).view(-1, 2, 3).tanh(), [2, 1, 4, 4], align_corners=False)
        return F.grid_sample(x, grid, align_corners=False).square().mean()

    return _trained(where, loss, steps=1)


def policy_gradient(device: str) -> list:
    policy, states = nn.Linear(3, 4).to(device), torch.randn(5, 3).to(device)
    actions, rewards = torch.tensor([0, 1, 3, 2, 1]).to(device), torch.randn(5).to(device)

    def loss() -> torch.Tensor:
        choice = torch.distributions.Categorical(logits=policy(states))
        returns = rewards.flip(0).cumsum(0).flip(0)
        returns = (returns - returns.mean()) / (returns.std() + 1e-6)
        return -(choice.log_prob(actions) * returns).mean() - 0.01 * choice.entropy().mean()

    return _trained(policy, loss)


_RECIPES = [
    unet,
    variational_autoencoder,
    adversarial_pair_with_spectral_norm,
    transformer_with_masks,
    transformer_encoder_fast_path,
    multihead_attention_with_masks,
    recommender,
    speech_with_ctc,
    graph_network,
    diffusion_training_and_sampling,
    weight_norm_and_orthogonal,
    own_parametrization,
    ensemble_of_stacked_weights,
    averaged_weights,
    checkpointed_blocks_with_dropout,
    language_model_with_tied_weights,
    siamese_with_triplets,
    spatial_transformer,
    policy_gradient,
]


def _run(recipe: Recipe, device: str) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [value.detach().cpu() for value in recipe(device)]


def _compare(recipe: Recipe) -> None:
    expected = _run(recipe, "cpu")
    torch.tpu.reset_counters()
    actual = _run(recipe, "tpu")
    # sums of up to a few hundred products, in another order: some float32 roundings
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not torch.tpu.counters()["fallbacks"]


@pytest.mark.parametrize("recipe", _RECIPES, ids=[r.__name__ for r in _RECIPES])
def test_recipe_matches_cpu_without_fallback(recipe: Recipe) -> None:
    _compare(recipe)


@pytest.mark.parametrize("cell", [nn.RNN, nn.GRU, nn.LSTM], ids=lambda cell: cell.__name__)
def test_packed_bidirectional_recurrence_matches_cpu(cell: type[nn.RNNBase]) -> None:
    _compare(_recurrent(cell))
