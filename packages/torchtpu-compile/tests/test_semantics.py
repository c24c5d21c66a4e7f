# SPDX-License-Identifier: Apache-2.0
"""What eager PyTorch guarantees holds in a compiled graph: aliasing, randomness, placement."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torchtpu_compile.errors import GraphError
from torchtpu_core.runtime import fallbacks, host_only
from torchtpu_core.runtime.fallbacks import FallbackWarning


def compiled(function, **kwargs):
    return torch.compile(function, backend="tpu", **kwargs)


def test_dropout_compiled_equals_eager_with_the_same_seed() -> None:
    def model(x: Tensor) -> Tensor:
        return F.dropout(F.dropout(x, 0.5) + torch.rand_like(x), 0.3)

    results, states = [], []
    for function in (model, compiled(model)):
        x = torch.ones(8, 8, device="tpu", requires_grad=True)
        torch.manual_seed(3)
        y = function(x)
        y.sum().backward()
        results.append((y.detach().cpu(), x.grad.cpu()))
        states.append(torch.tpu.get_rng_state())
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert torch.equal(states[0], states[1])


def test_dropout_draws_anew_at_each_call() -> None:
    function = compiled(lambda x: F.dropout(x, 0.5))
    x = torch.ones(8, 8, device="tpu")
    assert not torch.equal(function(x).cpu(), function(x).cpu())


def test_dropout_backward_uses_the_forward_mask() -> None:
    x = torch.ones(16, 16, device="tpu", requires_grad=True)
    y = compiled(lambda x: F.dropout(x, 0.5))(x)
    y.sum().backward()
    assert torch.equal(x.grad.cpu(), y.detach().cpu())


def test_input_mutation_reaches_the_callers_tensor_and_its_views() -> None:
    base = torch.arange(12.0).view(3, 4)
    on_device = base.to("tpu")

    def mutate(x: Tensor) -> Tensor:
        x.add_(1)
        x[0].mul_(2)
        return x.sum()

    expected = mutate(base.t()[1:3])
    actual = compiled(mutate)(on_device.t()[1:3])
    assert torch.equal(actual.cpu(), expected)
    assert torch.equal(on_device.cpu(), base)


def test_mutated_input_that_requires_grad_in_no_grad_is_written() -> None:
    weight = torch.ones(3, device="tpu", requires_grad=True)

    def clear(w: Tensor) -> None:
        with torch.no_grad():
            w.zero_()

    compiled(clear)(weight)
    assert torch.equal(weight.detach().cpu(), torch.zeros(3))


def test_two_views_of_one_mutated_storage_agree() -> None:
    def mutate(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a + b

    cpu = torch.arange(6.0)
    device = cpu.to("tpu")
    expected = mutate(cpu[:4], cpu[2:])
    actual = compiled(mutate)(device[:4], device[2:])
    assert torch.equal(actual.cpu(), expected)
    assert torch.equal(device.cpu(), cpu)


def test_views_with_strides_and_offsets_as_inputs() -> None:
    base = torch.randn(4, 6)
    device = base.to("tpu")

    def product(a: Tensor, b: Tensor) -> Tensor:
        return (a.t() @ b).relu()

    actual = compiled(product)(device[1:3, ::2], device[::2, 1:4])
    torch.testing.assert_close(actual.cpu(), product(base[1:3, ::2], base[::2, 1:4]))


def test_output_that_is_a_view_of_an_input_aliases_it() -> None:
    x = torch.zeros(2, 3, device="tpu")
    y = compiled(lambda x: x.t())(x)
    y.add_(1)
    assert torch.equal(x.cpu(), torch.ones(2, 3))
    assert y.stride() == (1, 3)


def test_input_returned_unchanged_is_the_same_tensor() -> None:
    x = torch.ones(2, device="tpu")
    same, twice = compiled(lambda x: (x, x * 2))(x)
    assert same is x
    assert torch.equal(twice.cpu(), torch.full((2,), 2.0))


def test_output_strides_are_those_of_eager() -> None:
    def function(x: Tensor) -> Tensor:
        return x.permute(2, 0, 1).clone() * 2

    x = torch.randn(2, 3, 4)
    y = compiled(function)(x.to("tpu"))
    assert y.stride() == function(x).stride()
    assert torch.equal(y.cpu(), function(x))


def _windows(x: Tensor) -> Tensor:
    """Overlapping rows of a transposed tensor."""
    y = (x * 2).transpose(0, 1)
    return y.as_strided((2, 5, 4), (4, 8, 1))


def _behind_a_slice(x: Tensor) -> Tensor:
    y = x.exp()[2:5, 1:]
    return y.as_strided((3, 3), (8, 2), 18) + y.as_strided((3, 3), (1, 1), 0)


def _written(x: Tensor) -> Tensor:
    fixed = x.detach()
    y = (fixed + 1).t().as_strided_scatter(fixed[0, :4] * 3, (4,), (9,), 0)
    return y.as_strided_scatter(x[:2, :3].exp(), (2, 3), (8, 1), 5)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [_windows, _behind_a_slice, _written])
def test_as_strided_sees_the_memory_of_a_view(
    function: Callable[[Tensor], Tensor], dynamic: bool
) -> None:
    x, weights = torch.randn(8, 8), torch.rand(8, 8)
    expected_in, actual_in = (x.to(d).detach().requires_grad_() for d in ("cpu", "tpu"))
    expected = function(expected_in * weights)
    actual = compiled(lambda y, w: function(y * w), dynamic=dynamic)(actual_in, weights.to("tpu"))
    torch.testing.assert_close(actual.detach().cpu(), expected.detach())
    expected.square().sum().backward()
    actual.square().sum().backward()
    torch.testing.assert_close(actual_in.grad.cpu(), expected_in.grad)


def _from_an_open_place(x: Tensor) -> Tensor:
    return (x * 2)[x.shape[0] // 2 :].as_strided((2,), (1,))


def _into_a_view_of_open_rows(x: Tensor) -> Tensor:
    return (x * 2)[:, :3].as_strided_scatter(x[0, :4], (4,), (1,), 0)


@pytest.mark.parametrize(
    ("function", "fix"),
    [(_from_an_open_place, "give storage_offset"), (_into_a_view_of_open_rows, "use index_put")],
)
def test_as_strided_where_memory_depends_on_open_sizes_is_refused(
    function: Callable[[Tensor], Tensor], fix: str
) -> None:
    x = torch.randn(6, 8, device="tpu")
    with pytest.raises(GraphError, match=rf"test_semantics\.py.*{fix}"):
        compiled(function, dynamic=True)(x)
    torch._dynamo.reset()
    torch.testing.assert_close(compiled(function)(x).cpu(), function(x.cpu()))


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (lambda x: x & 1, NotImplementedError, "\"bitwise_and_cpu\" not implemented for 'Float'"),
        (lambda x: x.softmax(3), IndexError, "Dimension out of range"),
        (
            lambda x: F.scaled_dot_product_attention(*(x[None, None, :, i:] for i in (0, 1, 1))),
            GraphError,
            "Expected size for first two dimensions",
        ),
    ],
)
def test_call_whose_lowering_fails_is_refused_in_cpus_words_with_the_line(
    function: Callable[[Tensor], Tensor], kind: type[Exception], words: str
) -> None:
    with pytest.raises(GraphError, match=rf"test_semantics\.py:\d+.*{words}") as found:
        compiled(function)(torch.ones(6, 8, device="tpu"))
    assert isinstance(found.value, kind)


def test_constants_and_host_tensors_mix_with_device_tensors() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        table = torch.tensor([1.0, 2.0, 3.0]).to(x.device)
        return (x * 2).cpu() + y, x + table + torch.tensor(2.0)

    x, y = torch.ones(3), torch.full((3,), 5.0)
    on_host, on_device = compiled(function, fullgraph=True)(x.to("tpu"), y)
    assert on_host.device.type == "cpu"
    assert on_device.device.type == "tpu"
    expected = function(x, y)
    assert torch.equal(on_host, expected[0])
    assert torch.equal(on_device.cpu(), expected[1])


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensors_of_another_device_are_copied_into_inputs(dynamic: bool) -> None:
    def function(here: Tensor, there: Tensor) -> Tensor:
        here[1:].copy_(there[0])
        there.copy_(here * 2)
        return here + 1

    host, device = torch.ones(3, 4), torch.zeros(3, 4, device="tpu")
    result = compiled(function, dynamic=dynamic)(device, host)
    expected = torch.tensor([0.0, 1.0, 1.0])[:, None].expand(3, 4)
    assert torch.equal(device.cpu(), expected)
    assert torch.equal(host, expected * 2)
    assert torch.equal(result.cpu(), expected + 1)


def test_large_host_constant_is_an_operand() -> None:
    table = torch.randn(2000)

    def function(x: Tensor) -> Tensor:
        return x + table.to("tpu")

    x = torch.zeros(2000, device="tpu")
    assert torch.equal(compiled(function)(x).cpu(), table)


def test_graph_of_cpu_tensors_only_runs_on_the_host() -> None:
    x = torch.randn(3)
    result = compiled(lambda x: x.relu() + 1)(x)
    assert result.device.type == "cpu"
    assert torch.equal(result, x.relu() + 1)


def test_host_fallback_in_a_graph_works_and_warns() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.linalg.eigvals(x + 1).abs().sum() * 2

    x = torch.randn(3, 3)
    from torchtpu_core.runtime.fallbacks import counts

    counts.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual = compiled(function)(x.to("tpu"))
    assert any(issubclass(w.category, FallbackWarning) for w in caught)
    torch.testing.assert_close(actual.cpu(), function(x), rtol=1e-4, atol=1e-4)


def test_result_whose_shape_depends_on_data() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        where = (x > 0).nonzero()
        return where.float().sum(0) * 2, where

    x = torch.randn(4, 4)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        actual = compiled(function, fullgraph=True)(x.to("tpu"))
    for a, e in zip(actual, function(x), strict=True):
        assert torch.equal(a.cpu(), e)


def test_kernels_in_python_are_not_traced_between_graphs() -> None:
    torch._dynamo.reset()
    graphs: list[torch.fx.GraphModule] = []

    def keep(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        graphs.append(graph)
        return graph.forward

    def function(x: Tensor) -> Tensor:
        y = x * 2
        return y.sum() + torch.nonzero(y > 0).sum()

    x = torch.tensor([1.0, -1.0, 2.0], device="tpu")
    assert torch.compile(function, backend=keep)(x).item() == 6.0
    assert len(graphs) == 2


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond_takes_the_branch_of_its_predicate(sign: float) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x * 3, (x,))

    x = torch.full((3,), sign)
    assert torch.equal(compiled(function, fullgraph=True)(x.to("tpu")).cpu(), function(x))


def test_index_out_of_range_names_the_line_of_the_model_once() -> None:
    table = torch.randn(4, 2, device="tpu")
    function = compiled(lambda i: F.embedding(i, table))
    with pytest.raises(IndexError, match=r"test_semantics\.py") as caught:
        function(torch.tensor([7], device="tpu")).cpu()
    assert str(caught.value).count("called at") == 1


def test_product_of_two_dtypes_is_refused_as_on_the_cpu() -> None:
    def model(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    x, y = torch.ones(2, 4, dtype=torch.bfloat16), torch.ones(4, 4)
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype"):
        model(x, y)
    with pytest.raises(RuntimeError, match="expected m1 and m2 to have the same dtype") as refused:
        torch.compile(model, backend="tpu")(x.to("tpu"), y.to("tpu"))
    assert "test_semantics.py" in str(refused.value)


def test_every_lookup_of_a_graph_is_checked_with_its_own_message() -> None:
    table = torch.randn(4, 2, device="tpu")

    def function(i: Tensor, j: Tensor, k: Tensor) -> Tensor:
        return F.embedding(i, table) + F.embedding(j, table) + table[k]

    run = compiled(function)
    good, bad = torch.tensor([0, 3], device="tpu"), torch.tensor([1, 4], device="tpu")
    run(good, good, good).cpu()
    for position in range(3):
        arguments = [good] * 3
        arguments[position] = bad
        with pytest.raises(IndexError, match=r"test_semantics\.py"):
            run(*arguments).cpu()


def test_call_on_the_device_inside_a_graph_says_where_it_belongs() -> None:
    def function(x: Tensor) -> Tensor:
        torch.tpu.empty_cache()
        return x + 1

    x = torch.ones(2, device="tpu")
    assert torch.compile(function, backend="tpu")(x).tolist() == [2, 2]
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"(?s)before or after the compiled .*test_semantics\.py"):
        torch.compile(function, backend="tpu", fullgraph=True)(x)


def test_bfloat16_product_of_a_masked_transpose_is_as_on_the_cpu() -> None:
    def product(x: Tensor, y: Tensor, rows: Tensor) -> Tensor:
        return torch.where(rows, x.t(), 0) @ y

    x, y = (torch.randn(16, 16).bfloat16() for _ in range(2))
    given = x, y, torch.arange(16) % 3 > 0
    actual = compiled(product)(*(t.to("tpu") for t in given))
    torch.testing.assert_close(actual.cpu(), product(*given), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("factor", [torch.linalg.cholesky, torch.linalg.inv])
def test_matrix_without_factor_names_the_line(factor) -> None:
    @torch.compile(backend="tpu")
    def function(x: torch.Tensor) -> torch.Tensor:
        return factor(x * 2) + 1

    with pytest.raises(torch.linalg.LinAlgError, match=r"test_semantics\.py"):
        function(torch.zeros(3, 3, device="tpu"))


def test_operator_between_programs_is_called_from_its_own_line() -> None:
    lines = []

    @torch.library.custom_op("torchtpu_tests::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        lines.append([f.line for f in traceback.extract_stack() if f.name == "function"][-1])
        return x.clone()

    noted.register_fake(torch.empty_like)

    @torch.compile(backend="tpu")
    def function(x: torch.Tensor) -> torch.Tensor:
        first = noted(x * 2)
        return noted(first + 1)

    assert function(torch.ones(2, device="tpu")).tolist() == [3, 3]
    assert lines == ["first = noted(x * 2)", "return noted(first + 1)"]


@pytest.mark.filterwarnings("ignore::torchtpu_core.runtime.fallbacks.FallbackWarning")
def test_what_a_tpus_compiler_does_not_take_runs_between_two_programs(monkeypatch) -> None:
    monkeypatch.setattr(host_only, "is_real_tpu", lambda: True)

    def solved(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(x @ x.mT + torch.eye(3, device=x.device), x.sin()).exp()

    x = torch.randn(3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    before = fallbacks.counts["aten::_linalg_solve_ex"]
    compiled = torch.compile(solved, backend="tpu", fullgraph=True)
    torch.testing.assert_close(compiled(x.to("tpu")).cpu(), solved(x))
    assert fallbacks.counts["aten::_linalg_solve_ex"] == before + 1
