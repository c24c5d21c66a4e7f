# SPDX-License-Identifier: Apache-2.0
"""Compiled models train as CPU PyTorch does, eagerly."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

#: Gradients pass through dozens of float32 ops, so their last digits may differ.
RTOL, ATOL = 1e-4, 1e-5


class Block(nn.Module):
    """``[B, T, D] -> [B, T, D]``: causal attention and a GELU network."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 32), nn.GELU(), nn.Linear(32, width))

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (
            p.view(b, t, self.heads, d // self.heads).transpose(1, 2)
            for p in self.qkv(self.norm1(x)).split(d, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        return x + self.network(self.norm2(x))


class GPT(nn.Module):
    """``[B, T]`` tokens to ``[B, T, V]`` logits."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(17, 16), nn.Embedding(8, 16)
        self.blocks = nn.Sequential(Block(16, 2), Block(16, 2))
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 17, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        positions = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.position(positions))))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 9, 4),
    )


CASES = {
    "mlp": (mlp, lambda: (torch.randn(5, 6), torch.randint(4, (5,)))),
    "cnn": (cnn, lambda: (torch.randn(3, 2, 6, 6), torch.randint(4, (3,)))),
    "gpt": (GPT, lambda: (torch.randint(17, (2, 8)), torch.randint(17, (2, 8)))),
}


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> Tensor:
    loss = F.cross_entropy(model(x).flatten(0, -2), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize("name", CASES)
def test_training_steps_compiled_equal_cpu_eager(name: str) -> None:
    make, batch = CASES[name]
    reference = make()
    model = copy.deepcopy(reference).to("tpu")
    compiled = torch.compile(model, backend="tpu", fullgraph=True)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (reference, model)]
    for _ in range(3):
        x, y = batch()
        expected = step(reference, optimizers[0], x, y)
        actual = step(compiled, optimizers[1], x.to("tpu"), y.to("tpu"))
        torch.testing.assert_close(actual.cpu(), expected, rtol=RTOL, atol=ATOL)
    for (key, value), other in zip(
        reference.state_dict().items(), model.state_dict().values(), strict=True
    ):
        torch.testing.assert_close(
            other.cpu(), value, rtol=RTOL, atol=ATOL, msg=lambda m, k=key: f"{k}: {m}"
        )


def test_forward_and_backward_are_one_program_each() -> None:
    model = mlp().to("tpu")
    compiled = torch.compile(model, backend="tpu")
    x = torch.randn(5, 6, device="tpu")
    compiled(x).sum().backward()
    model.zero_grad()
    out = compiled(x)
    gradient = torch.ones_like(out)
    torch.tpu.synchronize()  # Fused Eager keeps what is not read yet
    before = torch.tpu.counters()
    compiled(x).backward(gradient)
    after = torch.tpu.counters()
    assert after["runs"] - before["runs"] == 2
    assert after["programs"] == before["programs"]


def test_optimizer_step_inside_the_graph_updates_parameters() -> None:
    weight = torch.randn(4, 4)
    on_device = weight.to("tpu")

    def update(w: Tensor, g: Tensor) -> None:
        w.mul_(0.9).sub_(g, alpha=0.1)

    gradient = torch.randn(4, 4)
    torch.compile(update, backend="tpu")(on_device, gradient.to("tpu"))
    torch.testing.assert_close(on_device.cpu(), weight * 0.9 - 0.1 * gradient)


def test_evaluation_mode_batch_norm_leaves_its_buffers() -> None:
    model = cnn().to("tpu").eval()
    before = {k: v.cpu().clone() for k, v in model.named_buffers()}
    x = torch.randn(3, 2, 6, 6)
    with torch.no_grad():
        actual = torch.compile(model, backend="tpu")(x.to("tpu"))
        expected = copy.deepcopy(model).to("cpu")(x)
    torch.testing.assert_close(actual.cpu(), expected, rtol=RTOL, atol=ATOL)
    for key, value in model.named_buffers():
        assert torch.equal(value.cpu(), before[key])


def test_whole_training_step_in_one_function_equals_cpu_eager() -> None:
    reference = mlp()
    model = copy.deepcopy(reference).to("tpu")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (reference, model)]
    compiled = torch.compile(step, backend="tpu")
    for _ in range(3):
        x, y = CASES["mlp"][1]()
        expected = step(reference, optimizers[0], x, y)
        actual = compiled(model, optimizers[1], x.to("tpu"), y.to("tpu"))
        torch.testing.assert_close(actual.cpu(), expected, rtol=RTOL, atol=ATOL)
    for expected_p, actual_p in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(actual_p.cpu(), expected_p, rtol=RTOL, atol=ATOL)


def test_compiled_autograd_gives_the_gradients_of_cpu_eager() -> None:
    reference = mlp()
    model = copy.deepcopy(reference).to("tpu")
    x = CASES["mlp"][1]()[0]
    reference(x).square().mean().backward()

    @torch.compile(backend="tpu")
    def both(x: Tensor) -> None:
        model(x).square().mean().backward()

    with torch._dynamo.config.patch(compiled_autograd=True):
        both(x.to("tpu"))
    for expected, actual in zip(reference.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(actual.grad.cpu(), expected.grad, rtol=RTOL, atol=ATOL)


def test_capturing_an_optimizer_gives_up_no_frame() -> None:
    model = mlp().to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = CASES["mlp"][1]()
    step(model, optimizer, x.to("tpu"), y.to("tpu"))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.compile(optimizer.step, backend="tpu")()
    frames = torch._dynamo.utils.counters["frames"]
    assert frames["ok"] == frames["total"] > 0


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_bags_of_one_size_need_no_search_for_their_bag(mode: str, padding: int | None) -> None:
    torch.manual_seed(0)
    reference = nn.EmbeddingBag(7, 3, mode=mode, padding_idx=padding)
    model = copy.deepcopy(reference).to("tpu")
    bags = torch.tensor([[1, 2, 2, 5], [2, 2, 2, 2], [0, 6, 6, 6]])
    texts: list[str] = []
    options = {"debug_callback": lambda name, text: texts.append(text)}
    expected = reference(bags)
    actual = torch.compile(model, backend="tpu", options=options)(bags.to("tpu"))
    weights = torch.randn(3, 3)
    (expected * weights).sum().backward()
    (actual * weights.to("tpu")).sum().backward()
    torch.testing.assert_close(actual.detach().cpu(), expected.detach())
    torch.testing.assert_close(model.weight.grad.cpu(), reference.weight.grad)
    assert mode == "max" or "scatter" not in texts[0]


def test_activations_behind_batch_norm_are_not_kept_for_the_backward_pass() -> None:
    layers = [nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)).to("tpu")
    compiled = torch.compile(model, backend="tpu")
    x = torch.randn(8, 4, 32, 32, device="tpu")
    compiled(x).sum().backward()
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    result = compiled(x)
    torch.tpu.synchronize()
    kept = torch.tpu.memory_allocated() - before - result.nbytes
    assert kept < 2.5 * x.nbytes  # what the two convolutions gave, not what the ReLU gave


class Experts(nn.Module):
    """``[T, D] -> [T, D]``: every token goes to one of three experts, all in one product."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, 3)
        self.weight = nn.Parameter(torch.randn(3, width, width))

    def forward(self, x: Tensor) -> Tensor:
        gate, expert = self.router(x).softmax(-1).max(-1)
        order = expert.argsort(stable=True)
        ends = torch.cumsum(F.one_hot(expert, 3).sum(0), 0).to(torch.int32)
        out = F.grouped_mm(x[order], self.weight, offs=ends)
        return torch.zeros_like(x).index_copy(0, order, out) * gate[:, None]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products_of_any_dtype_are_compiled(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    reference = Experts(16).to(dtype)
    model = copy.deepcopy(reference).to("tpu")
    x = torch.randn(12, 16, dtype=dtype)
    expected = reference(x)
    actual = torch.compile(model, backend="tpu", fullgraph=True)(x.to("tpu"))
    expected.sum().backward()
    actual.sum().backward()
    tolerance = {"rtol": 2**-6, "atol": 2**-4} if dtype is torch.bfloat16 else {}
    torch.testing.assert_close(actual.detach().cpu(), expected.detach(), **tolerance)
    pairs = zip(model.parameters(), reference.parameters(), strict=True)
    for p, q in pairs:
        torch.testing.assert_close(p.grad.cpu(), q.grad, **tolerance)
