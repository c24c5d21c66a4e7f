# SPDX-License-Identifier: Apache-2.0
"""Plain `torch.compile`: Inductor's graphs on tpu tensors become our programs."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchtpu_compile import bounded_program, executable


def test_default_backend_runs_one_program_per_graph() -> None:
    def function(x: Tensor) -> Tensor:
        return (x @ x.t()).softmax(-1) + 1

    compiled = torch.compile(function, fullgraph=True)
    x = torch.randn(4, 8)
    torch.testing.assert_close(compiled(x.to("tpu")).cpu(), function(x))
    on_device = x.to("tpu")
    torch.tpu.synchronize()
    before = torch.tpu.counters()
    compiled(on_device)
    after = torch.tpu.counters()
    assert after["runs"] - before["runs"] == 1
    assert after["programs"] == before["programs"]


def test_default_backend_draws_the_numbers_of_eager_mode() -> None:
    def model(x: Tensor) -> Tensor:
        noise = torch.rand_like(x) + torch.randn_like(x)
        return F.dropout(F.dropout(x, 0.5) + noise, 0.3)

    results, states = [], []
    for function in (model, torch.compile(model)):
        x = torch.ones(8, 8, device="tpu", requires_grad=True)
        torch.manual_seed(3)
        y = function(x)
        y.sum().backward()
        results.append((y.detach().cpu(), x.grad.cpu()))
        states.append(torch.tpu.get_rng_state())
    for actual, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(actual, expected)
    assert torch.equal(states[0], states[1])


def test_default_backend_trains_a_network_with_buffers_as_cpu_eager() -> None:
    reference = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    )
    model = copy.deepcopy(reference).to("tpu")
    compiled = torch.compile(model, mode="max-autotune-no-cudagraphs")
    for _ in range(2):
        x = torch.randn(3, 2, 6, 6)
        for m, z in ((reference, x), (compiled, x.to("tpu"))):
            m.zero_grad()
            m(z).square().mean().backward()
    gradients = zip(reference.parameters(), model.parameters(), strict=True)
    for expected, actual in gradients:
        torch.testing.assert_close(actual.grad.cpu(), expected.grad, rtol=1e-4, atol=1e-5)
    for expected, actual in zip(reference.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(actual.cpu(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", [{"mode": "lite"}, {"options": {"cpp_wrapper": True}}])
def test_default_backend_trains_in_ways_that_skip_or_change_inductors_passes(how) -> None:
    """Mode "lite" runs no graph passes; ``cpp_wrapper`` asks for another writer of modules."""

    def step(weight: Tensor, state: Tensor, x: Tensor) -> Tensor:
        state.mul_(0.5).add_(x.sum(0))
        y = torch.cond(x.sum() > 0, lambda z: z.sin(), lambda z: z.cos(), (x @ weight,))
        return (y.softmax(-1) * state.mean()).square().sum()

    function = torch.compile(step, dynamic=True, **how)
    for length in (3, 5):
        weight, state, x = torch.randn(4, 4), torch.ones(4), torch.randn(length, 4)
        results = []
        for device, run in (("cpu", step), ("tpu", function)):
            w, s = weight.detach().to(device).requires_grad_(), state.clone().to(device)
            loss = run(w, s, x.to(device))
            loss.backward()
            results.append([loss.detach().cpu(), w.grad.cpu(), s.cpu()])
        torch.testing.assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{"padding_idx": 3}, {"scale_grad_by_freq": True}])
def test_embedding_of_open_length_trains_in_programs_that_lengths_share(options) -> None:
    """Inductor takes its gradient apart to an accumulation under a mask."""

    def gradient(call: Callable[..., Tensor], device: str, ids: Tensor) -> Tensor:
        weight = torch.linspace(-1, 1, 40).reshape(10, 4).to(device).requires_grad_()
        call(ids.to(device), weight).backward()
        return weight.grad.cpu()

    def function(ids: Tensor, weight: Tensor) -> Tensor:
        return F.embedding(ids, weight, **options).sin().sum()

    compiled = torch.compile(function, dynamic=True)
    refused = dict(bounded_program.reasons)
    for length in (3, 5, 7):
        ids = torch.arange(2 * length).reshape(2, length) % 10
        actual, expected = gradient(compiled, "tpu", ids), gradient(function, "cpu", ids)
        torch.testing.assert_close(actual, expected)
    assert bounded_program.reasons == refused


def test_operators_that_inductor_leaves_whole_run_at_padded_sizes() -> None:
    def function(x: Tensor) -> list[Tensor]:
        return [F.glu(x), *torch._foreach_mul([x, x.cos()], 2.0)]

    compiled = torch.compile(function, dynamic=True, fullgraph=True)
    bounded_program.reasons.clear()
    for n in (5, 7):
        x = torch.randn(n, 4)
        for actual, expected in zip(compiled(x.to("tpu")), function(x), strict=True):
            torch.testing.assert_close(actual.cpu(), expected)
    assert not bounded_program.reasons


def test_gradient_of_reflection_at_open_sizes_equals_cpus() -> None:
    """Inductor takes it apart to lookups under a mask."""

    def gradient(call: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        result = call(x.requires_grad_())
        return torch.autograd.grad(result.sin().sum(), x)[0].cpu()

    def function(x: Tensor) -> Tensor:
        return F.pad(x, (1, 2, 2, 1), mode="reflect")

    compiled = torch.compile(function, dynamic=True)
    refused = dict(bounded_program.reasons)
    for size in (4, 5, 7):
        x = torch.linspace(-1, 1, 6 * size).reshape(1, 1, size, 6)
        actual, expected = gradient(compiled, x.to("tpu")), gradient(function, x.clone())
        torch.testing.assert_close(actual, expected)
    assert bounded_program.reasons == refused


def test_gradient_that_asks_a_slices_size_runs_at_padded_sizes() -> None:
    """The backward graph reads the size of what it saved; that is no operator to take apart."""

    def function(x: Tensor) -> Tensor:
        steps = torch.cat([x[:, 1:] - x[:, :-1], torch.ones_like(x[:, :1])], 1)
        kept = torch.cat([torch.ones_like(x[:, :1]), 1 - steps.sigmoid()], 1)
        return torch.cumprod(kept, 1)[:, :-1].sum()

    compiled = torch.compile(function, dynamic=True)
    refused = dict(bounded_program.reasons)
    for size in (5, 9, 14):
        x = torch.linspace(-1, 1, 3 * size).reshape(3, size)
        gradients = []
        for call, device in ((compiled, "tpu"), (function, "cpu")):
            leaf = x.to(device, copy=True).requires_grad_()
            gradients.append(torch.autograd.grad(call(leaf), leaf)[0].cpu())
        torch.testing.assert_close(*gradients)
    assert bounded_program.reasons == refused


def test_aot_inductor_names_what_to_use_instead() -> None:
    program = torch.export.export(nn.ReLU(), (torch.ones(2, device="tpu"),))
    with pytest.raises(Exception, match=r"torch_tpu\.compile\.aot"):
        torch._inductor.aoti_compile_and_package(program)


def test_graph_that_only_writes_its_inputs_runs() -> None:
    def function(x: Tensor) -> None:
        x[1:] = x[:-1] + 2

    x = torch.randn(4, 3)
    on_device = x.to("tpu")
    torch.compile(function)(on_device)
    function(x)
    assert torch.equal(on_device.cpu(), x)


def test_patterns_of_inductors_code_generator_are_undone() -> None:
    def function(x: Tensor) -> Tensor:
        a, b = x.split([3, 5], 1)
        y = torch.cat([a, b], 1) + 1
        c, d = torch.cat([y, y], 1).split([8, 8], 1)
        return c.sin() @ d.t() + d @ c.t()

    x = torch.randn(4, 8)
    actual = torch.compile(function)(x.to("tpu"))
    torch.testing.assert_close(actual.cpu(), function(x), rtol=1e-4, atol=1e-5)


def test_cpu_tensors_still_get_inductors_code() -> None:
    from torch._dynamo.utils import counters

    torch.ones(1, device="tpu")
    counters.clear()
    torch.compile(lambda x: x.sin() * 3)(torch.ones(3))
    found = counters["inductor"]
    assert found["fxgraph_cache_miss"] + found["fxgraph_cache_hit"] == 1  # still cacheable


def test_import_of_dynamo_survives_a_torch_whose_internals_changed() -> None:
    script = (
        "import sys, torch\n"
        "torch.ones(1, device='tpu')\n"
        "from torchtpu_compile import flex_attention\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "flex_attention.admit_device = lambda: 1 / 0\n"
        "import torch._dynamo\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "torch._dynamo is not prepared for tpu: ZeroDivisionError" in done.stderr


@pytest.mark.parametrize("first", ["import torch._dynamo", "torch.ones(1, device='tpu')"])
def test_dynamo_knows_the_device_before_anything_is_compiled(first: str) -> None:
    script = (
        f"import torch\n{first}\n"
        "torch.ones(1, device='tpu')\n"
        "from torch._dynamo.device_interface import get_interface_for_device\n"
        "assert get_interface_for_device('tpu').device is torch.tpu.device\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_what_only_the_backward_graph_sees_is_known_as_such(monkeypatch) -> None:
    saved = []
    build = executable.Executable.__init__

    def watched(self, *args, **kwargs) -> None:
        build(self, *args, **kwargs)
        saved.append((len(self.outputs), len(self.saved)))

    monkeypatch.setattr(executable.Executable, "__init__", watched)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x.exp()  # kept for the gradient, and the base of what is returned
        return y.t(), y[1:].sin()

    found = []
    for backend in ("tpu", "inductor"):
        torch._dynamo.reset()
        saved.clear()
        x = torch.randn(5, 4)
        y = x.to("tpu").requires_grad_()
        x.requires_grad_()
        compiled = torch.compile(function, backend=backend, dynamic=True)
        for f, z in ((function, x), (compiled, y)):
            sum(r.sum() for r in f(z)).backward()
        torch.testing.assert_close(y.grad.cpu(), x.grad)
        torch.testing.assert_close(compiled(y)[0].detach().cpu(), function(x)[0].detach())
        found.append(saved[0])
    assert found[0] == found[1]
    assert found[0][1] > 0


@pytest.mark.parametrize("function", [torch.nonzero, lambda x: x[x > 0], lambda x: x[x > 0].sum()])
def test_results_whose_size_a_value_tells(function: Callable[[Tensor], Tensor]) -> None:
    compiled = torch.compile(function, fullgraph=True)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        for n in (5, 7):
            x = torch.randn(n, 4)
            torch.testing.assert_close(compiled(x.to("tpu")).cpu(), function(x))


def test_inductors_own_fallbacks_may_be_forbidden() -> None:
    from torch._inductor import config

    torch._dynamo.reset()
    x = torch.arange(4.0, device="tpu")
    with config.patch(implicit_fallbacks=False):
        assert torch.compile(lambda t: t.sin() + 1)(x).cpu().equal((x.sin() + 1).cpu())
