# SPDX-License-Identifier: Apache-2.0
"""A recorded step as one program: views of storages, and the values of a whole step."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import warm_python
from hypothesis import given, settings
from hypothesis import strategies as st
from torchtpu_core.errors import PlanError
from torchtpu_core.plan import network_calls, program
from torchtpu_core.plan.calls import Call, Place
from torchtpu_core.plan.network_calls import all_groups
from torchtpu_core.plan.records import Phase
from torchtpu_core.plan.values import Values
from torchtpu_core.simulator.rates import LANES

STEP = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2)).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for _ in range(3):
    x = torch.full((4, 3), 0.5, device="tpu")
    x[:, 1:].mul_(x[:, :2].cumsum(1))
    x[0] = 2
    x = x[torch.tensor([0, 1, 0, 3], device="tpu")]  # a tensor that has values
    x = x + torch.tensor([0.5, 0.25, 1], dtype=torch.bfloat16, device="tpu")
    x.t_().t_()
    optimizer.zero_grad()
    checkpoint(model, x, use_reentrant=False).square().sum().backward()
    model(x).sum().backward()
    optimizer.step()
"""
CHECK = """
import sys
from pathlib import Path
import jax, numpy as np, torch
from torch import nn
from torchtpu_core.plan import program
from torchtpu_core.plan.session import record
from torchtpu_core.targets import parse_target

target = parse_target("v5e:1x1")
recording = record(Path(sys.argv[1]), [], target.slice_, 1, keep_calls=True)
start, end = recording.step()
calls = [call for call in recording.calls if start <= call.index < end]
operands = list(program._operands(calls, recording, start).values())
results = program._results(calls, recording, end, operands)
step = program._Step(calls, operands, results, 1)
# A donated operand's memory goes to the first result of its shape.
written = [place.storage for place in operands if place in results]
assert [place.storage for place in results[: len(written)]] == written != []

model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, 2))
first, norm, _, last = model
# In the order of their first use.
own = [first.bias, first.weight, norm.weight, norm.bias, last.bias, last.weight]
# Kept as their updates write them, though layers read them transposed first.
assert [place.sizes for place in operands] == [tuple(p.shape) for p in own], operands


def seen(tensor, place):
    return torch.as_strided(tensor.detach(), place.sizes, place.strides).numpy().copy()


arrays = [seen(p, place) for p, place in zip(own, operands, strict=True)]
arrays.append(np.zeros(2, np.uint32))
# One for what is computed again, one for the gradients before the second forward pass.
assert str(jax.make_jaxpr(step.function())(*arrays)).count("optimization_barrier") == 2
done = jax.jit(step.function())(*arrays)
found = {place.storage: array for place, array in zip(results, done, strict=True)}

optimizer = torch.optim.SGD(own, lr=0.5)
x = torch.full((4, 3), 0.5)
x[:, 1:].mul_(x[:, :2].cumsum(1))
x[0] = 2
x = x[torch.tensor([0, 1, 0, 3])]
x = x + torch.tensor([0.5, 0.25, 1])
model(x).square().sum().backward()
model(x).sum().backward()
optimizer.step()
for place, parameter in zip(operands, own):
    np.testing.assert_allclose(
        found[place.storage], seen(parameter, place), rtol=1e-5, atol=1e-6
    )
print("the same")
"""


def test_program_of_a_step_computes_what_cpu_computes(tmp_path: Path) -> None:
    script = tmp_path / "step.py"
    script.write_text(STEP)
    command = [sys.executable, "-c", CHECK, str(script)]
    done = warm_python.run(command, timeout=300)
    assert done.stdout.strip().endswith("the same"), done.stderr[-2000:]


LARGE = """
import torch

held = torch.zeros(2048, 4096).to("tpu")
weight = torch.ones(4096, 8).to("tpu").requires_grad_()
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(3):
    held.copy_(torch.randn(2048, 4096))
    image = torch.randn(2048, 4096).to("tpu")
    optimizer.zero_grad()
    ((held + image) @ weight).sum().backward()
    optimizer.step()
"""
LARGE_CHECK = """
import pickle, sys
from pathlib import Path
from torchtpu_core.plan import program
from torchtpu_core.plan.session import record
from torchtpu_core.targets import parse_target

target = parse_target("v5e:1x1")
recording = record(Path(sys.argv[1]), [], target.slice_, 1, keep_calls=True)
start, end = recording.step()
recording.calls = [call for call in recording.calls if start <= call.index < end]
recording = pickle.loads(pickle.dumps(recording))
made = program.program_of(recording, target)
print(sum(place.sizes == (2048, 4096) for place in made.operands), "operands from the host")
"""


READ = """
import torch

model = torch.nn.Linear(64, 128).to("tpu")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
right = 0
for _ in range(3):
    x, y = torch.randn(8, 64).to("tpu"), torch.randint(0, 128, (8,)).to("tpu")
    logits = model(x)
    optimizer.zero_grad()
    torch.nn.functional.cross_entropy(logits, y).backward()
    optimizer.step()
    right += (logits.argmax(-1) == y).sum().item()
    places = logits.argmin(-1).cpu()
"""
READ_CHECK = """
import sys
from pathlib import Path
import torch
from torchtpu_core.plan import program
from torchtpu_core.plan.session import record
from torchtpu_core.targets import parse_target

target = parse_target("v5e:1x1")
recording = record(Path(sys.argv[1]), [], target.slice_, 1, keep_calls=True)
made = program.program_of(recording, target)
print([place.sizes for place in made.results if place.dtype is torch.int64])
"""


def test_values_that_the_host_reads_are_results(tmp_path: Path) -> None:
    """After the labels. XLA would leave out what makes them, and libtpu ends at such extremes."""
    script = tmp_path / "step.py"
    script.write_text(READ)
    done = warm_python.run([sys.executable, "-c", READ_CHECK, str(script)], timeout=300)
    assert done.stdout.strip().endswith("[(8,), (), (8,)]"), done.stdout + done.stderr[-2000:]


def test_large_tensors_of_the_host_are_operands_and_can_be_sent(tmp_path: Path) -> None:
    """A script's ranks are recorded in processes of their own, which send what they found."""
    script = tmp_path / "step.py"
    script.write_text(LARGE)
    done = warm_python.run([sys.executable, "-c", LARGE_CHECK, str(script)], timeout=300)
    assert done.stdout.strip().endswith("2 operands from the host"), done.stderr[-2000:]


@st.composite
def views(draw) -> tuple[int, list[tuple[tuple[int, ...], tuple[int, ...], int]]]:
    """A storage's size, and views of it: slices, transposes and other strides."""
    elements = draw(st.sampled_from([12, 24, 30, 64]))
    found = []
    for _ in range(draw(st.integers(1, 4))):
        sizes = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
        strides = tuple(draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12])) for _ in sizes)
        reach = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True))
        if reach < elements:
            found.append((sizes, strides, draw(st.integers(0, elements - 1 - reach))))
    return elements, found


@settings(max_examples=60, deadline=None)
@given(views(), st.booleans())
def test_views_are_read_and_written_as_torch_does(case, whole_first: bool) -> None:
    elements, seen = case
    values, storage = Values(), torch.zeros(elements)
    if whole_first:
        storage = torch.arange(float(elements))
        sizes = (elements // 6, 3, 2) if elements % 6 == 0 else (elements // 2, 2)
        strides = torch.empty(sizes).stride()
        whole = Place(1, sizes, strides, 0, torch.float32, elements)
        values.set(whole, jnp.asarray(storage.numpy().reshape(sizes)))
    for number, (sizes, strides, offset) in enumerate(seen):
        place = Place(1, sizes, strides, offset, torch.float32, elements)
        view = torch.as_strided(storage, sizes, strides, offset)
        np.testing.assert_array_equal(values.read(place), view.numpy())
        numbers = torch.as_strided(torch.arange(elements), sizes, strides, offset).flatten()
        overlaps = len(set(numbers.tolist())) < view.numel()
        if not overlaps:
            new = torch.rand(sizes) + number
            view.copy_(new)
            values.write(place, jnp.asarray(new.numpy()))
    whole = Place(1, (elements,), (1,), 0, torch.float32, elements)
    np.testing.assert_array_equal(values.read(whole), storage.numpy())


def test_groups_of_all_ranks_are_shifts_of_one() -> None:
    assert all_groups((0, 1), 4) == [[0, 1], [2, 3]]
    assert all_groups((0, 4), 8) == [[0, 4], [1, 5], [2, 6], [3, 7]]
    with pytest.raises(PlanError, match="no part of a mesh"):
        all_groups((0, 1, 2), 8)


def test_collective_program_lowers_for_all_ranks() -> None:
    from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec
    from torchtpu_core.targets import parse_target
    from torchtpu_core.xla_tpu.lowering import bytecode

    mesh = AbstractMesh((4,), ("ranks",))
    split = PartitionSpec("ranks")
    summed = jax.shard_map(
        lambda x: jax.lax.psum(x, "ranks"), mesh=mesh, in_specs=split, out_specs=split
    )
    struct = jax.ShapeDtypeStruct((8, 3), np.dtype("float32"), sharding=NamedSharding(mesh, split))
    assert bytecode(summed, [struct], parse_target("v5e:2x2")).startswith(b"ML\xefR")


def test_rows_anywhere_in_a_flat_storage_are_written_without_a_scatter() -> None:
    # As a weight's gradient after that of a norm, whose length is no multiple of a row.
    place = Place(0, (3, 8), (8, 1), 5, torch.float32, 40)

    def written(array: jax.Array, rows: jax.Array) -> jax.Array:
        values = Values()
        whole = Place(0, (40,), (1,), 0, torch.float32, 40)
        values.set(whole, array)
        values.write(place, rows)
        return values.read(whole)

    flat, rows = jnp.zeros(40), jnp.ones((3, 8))
    assert "scatter" not in str(jax.make_jaxpr(written)(flat, rows))
    expected = torch.zeros(40)
    expected[5:29] = 1
    np.testing.assert_array_equal(written(flat, rows), expected.numpy())


@pytest.mark.parametrize(
    ("shape", "moved"),
    [
        ((64 * LANES,), (4, 16, LANES)),
        ((4 * LANES,), (4, 1, LANES)),
        ((12, 3), (4, 9)),
        ((64, 3), (64, 3)),
        ((4, 5, 7), (4, 5, 7)),
    ],
)
def test_parts_of_ranks_are_whole_tiles_of_a_first_dimension(shape, moved) -> None:
    given = np.arange(math.prod(shape)).reshape(shape)
    found = network_calls.in_parts(jnp.asarray(given), 4)
    assert found.shape == moved
    np.testing.assert_array_equal(found.reshape(4, -1), given.reshape(4, -1))


def test_parts_of_rows_that_are_no_multiple_of_them_are_read_without_a_gather() -> None:
    flat = jnp.arange(2 * 15 * 5, dtype=np.float32)
    place = Place(0, (2, 3, 4, 2), (75, 20, 5, 1), 3, torch.float32, 150)

    def read(array: jax.Array) -> jax.Array:
        values = Values()
        values.set(Place(0, (150,), (1,), 0, torch.float32, 150), array)
        return values.read(place)

    assert "gather" not in str(jax.make_jaxpr(read)(flat))
    expected = torch.as_strided(torch.arange(150.0), place.sizes, place.strides, place.offset)
    np.testing.assert_array_equal(read(flat), expected.numpy())


def test_one_token_is_read_in_the_shape_of_its_tensor() -> None:
    tokens = Place(0, (2, 15, 8), (120, 8, 1), 0, torch.float32, 240)

    def read(array: jax.Array) -> jax.Array:
        values = Values()
        values.set(tokens, array)
        return values.read(Place(0, (2, 8), (120, 1), 24, torch.float32, 240))

    array = jnp.arange(240.0).reshape(tokens.sizes)
    assert "[2,120]" not in str(jax.make_jaxpr(read)(array))
    np.testing.assert_array_equal(read(array), array[:, 3])


@pytest.mark.parametrize("shapes", [((4, 256), (8, 128)), ((3, 5), (4, 2))])
def test_gradients_are_joined_for_reduce_scatter_as_pytorch_joins_them(shapes) -> None:
    values, tensors, given = Values(), [torch.randn(shape) for shape in shapes], []
    for number, tensor in enumerate(tensors):
        sizes = tuple(tensor.shape)
        place = Place(number, sizes, tuple(tensor.stride()), 0, tensor.dtype, tensor.numel())
        values.set(place, jnp.asarray(tensor.numpy()))
        given.append(place)
    expected = torch._chunk_cat(tensors, 0, 2)
    out = Place(9, tuple(expected.shape), tuple(expected.stride()), 0, expected.dtype, -1)
    call = Call(None, (given, 0, 2), {"out": out}, None, Phase.BACKWARD, "", 0)
    ((written, value),) = program._chunk_cat(call, values)
    assert written == out
    np.testing.assert_array_equal(value, expected.numpy())
