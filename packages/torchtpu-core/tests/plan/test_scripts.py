# SPDX-License-Identifier: Apache-2.0
"""Scripts planned without values, in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
from torchtpu_core.ici.slices import parse_slice

FSDP = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

assert sys.argv[1:] == ["--width", "1024"]
dist.init_process_group()
mesh = init_device_mesh("tpu", (dist.get_world_size(),))
embedding = nn.Embedding(1000, 1024)
model = nn.Sequential(embedding, *(nn.Linear(1024, 1024) for _ in range(3)), nn.Linear(1024, 1000))
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
model.to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = torch.utils.data.DataLoader(range(1000), batch_size=8, num_workers=2, shuffle=True)
for step, index in enumerate(loader):
    tokens = torch.randint(0, 1000, (8, 129), device="tpu")
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(step, loss.item(), int(index.sum()) >= 0)
assert False, "the plan ends the script before"
"""
DDP = """
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64)).to("tpu")
model = torch.compile(DistributedDataParallel(model))
names = [None] * dist.get_world_size()
dist.all_gather_object(names, "rank")
assert names == ["rank"] * 4
q, k = torch.randn(1, 8, 64, 64, device="tpu"), torch.randn(1, 2, 64, 64, device="tpu")
assert nn.functional.scaled_dot_product_attention(q, k, k, enable_gqa=True).shape == q.shape
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(32, 64).to("tpu")).square().mean().backward()
    optimizer.step()
"""
AVERAGED = """
import copy
import torch
from torch import nn

model = nn.Linear(64, 64).to("tpu")
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(8, 64, device="tpu")).sum().backward()
    optimizer.step()
    for mean, weight in zip(average.parameters(), model.parameters()):
        mean.lerp_(weight, 0.001)
"""
INFERENCE = """
import torch
from torch import nn

torch.set_default_device("tpu")
model = nn.Sequential(nn.Linear(256, 1024), nn.RMSNorm(1024), nn.Linear(1024, 256)).eval()
with torch.device("meta"):
    other = nn.Linear(512, 512, bias=False)
other.to_empty(device="tpu")
with torch.inference_mode():
    x = torch.randn(8, 256)
    for _ in range(3):
        x = model(x)
    print(x.sum(dim=1)[:4].tolist(), x.is_inference())
"""
CHECKPOINT = """
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

blocks = (nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256)) for _ in range(3))
layers = nn.ModuleList(blocks).to("tpu")
optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
for _ in range(2):
    x = torch.randn(64, 256, device="tpu")
    for layer in layers:
        x = checkpoint(layer, x, use_reentrant=False)
    x.sum().backward()
    optimizer.step()
"""
TENSOR_PARALLEL = """
import os
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

device = torch.device("tpu", int(os.environ["LOCAL_RANK"]))
mesh = init_device_mesh("tpu", (2, 2), mesh_dim_names=("data", "tensor"))
with torch.device("meta"):
    model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 64), nn.Linear(64, 32))
plan = {"0": RowwiseParallel(input_layouts=Replicate()), "1": ColwiseParallel()}
parallelize_module(model, mesh["tensor"], {**plan, "2": RowwiseParallel()})
fully_shard(model, mesh=mesh["data"])
model.to_empty(device=device)
for layer in model:
    layer.reset_parameters()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(2):
    tokens = torch.randint(64, (4, 8), device=device)
    loss = model(tokens).square().mean() + torch.ones((), device="tpu")
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        model(tokens)
    if dist.get_rank() == 0:
        print(loss.item())
"""
NOTHING = "import torch\ntorch.ones(3).sum()\n"


def _run(tmp_path: Path, text: str, *options: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    code = "from torchtpu_core.cli.app import main; main()"
    command = [sys.executable, "-c", code, "plan", str(script), *options]
    return warm_python.run(command, cwd=tmp_path)


def test_fsdp_script_is_planned_with_reports(tmp_path) -> None:
    pytest.importorskip("plotly", reason="the extra 'plan' is not installed")
    done = _run(
        tmp_path,
        FSDP,
        *("--target", "v5e:4x4", "--json", "plan.json", "--html", "plan.html"),
        *("--trace", "plan.trace", "--", "--width", "1024"),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "simulated" in done.stdout
    plan = json.loads((tmp_path / "plan.json").read_text())
    parameters = 1000 * 1024 + 3 * (1024 * 1024 + 1024) + 1000 * 1025
    # float32 shards of 16 ranks; dimensions are rounded up to whole shards.
    sharded = 4 * parameters / 16
    at_peak = plan["hbm"]["at_peak"]
    assert plan["ranks"] == plan["data_parallel_ranks"] == 16
    assert plan["tokens_per_rank_and_step"] == 8 * 128
    assert at_peak["parameters"] == pytest.approx(sharded, rel=0.02)
    assert at_peak["optimizer state"] == pytest.approx(2 * sharded, rel=0.02)
    assert any(line.endswith("script.py:27") for line in plan["host_reads"])
    flops = 6 * 8 * 128 * 1024 * (3 * 1024 + 1000)
    assert plan["mfu"] * plan["step_s"] * 197e12 == pytest.approx(flops, rel=0.15)
    page = (tmp_path / "plan.html").read_text()
    assert "<script src=" not in page
    events = json.loads((tmp_path / "plan.trace").read_text())["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}


def test_ddp_script_sums_every_gradient_once(tmp_path) -> None:
    done = _run(tmp_path, DDP, "--target", "v5e:2x2", "--json", "plan.json")
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    found = plan["communication"]["collectives"]["all_reduce of 4 ranks"]
    assert found["bytes_per_rank"] == 4 * (64 * 512 + 512 + 512 * 64 + 64)
    assert plan["hbm"]["at_peak"]["parameters"] == found["bytes_per_rank"]
    assert found["sent_bytes_per_rank"] == 2 * 3 / 4 * found["bytes_per_rank"]  # a ring of four


def test_inference_mode_is_planned(tmp_path) -> None:
    done = _run(tmp_path, INFERENCE, "--target", "v5e:1x1", "--json", "plan.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[1.0, 1.0, 1.0, 1.0] True" in done.stdout
    assert "reads a tensor (.cpu(), .numpy() or .tolist()), 1 time;" in done.stdout
    plan = json.loads((tmp_path / "plan.json").read_text())
    parameters = 256 * 1024 + 1024 + 1024 + 1024 * 256 + 256 + 512 * 512
    assert plan["hbm"]["at_peak"]["parameters"] == 4 * parameters
    # The last of three passes, of two matrix products and little else.
    assert plan["notes"][-1].endswith("a step is the last of 3 calls of Sequential")
    flops = 2 * 2 * 8 * 256 * 1024
    assert plan["mfu"] * plan["step_s"] * 197e12 == pytest.approx(flops, rel=0.01)


def test_what_a_library_recomputes_has_the_line_that_called_it(tmp_path) -> None:
    done = _run(tmp_path, CHECKPOINT, "--target", "v5e:1x1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "recompute: matmul" in done.stdout
    assert "script.py:12" in done.stdout
    assert "no line of the script" not in done.stdout


def test_tensor_parallel_ranks_have_devices_of_their_own(tmp_path) -> None:
    done = _run(tmp_path, TENSOR_PARALLEL, "--target", "v5e:2x2", "--json", "plan.json")
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    sharded = 4 * (64 * 32 + 32 * 64 + 64 * 32 + 64) / 4 + 4 * 32 / 2
    assert plan["hbm"]["at_peak"]["parameters"] == pytest.approx(sharded, rel=0.02)
    assert plan["tokens_per_rank_and_step"] == 4 * 8  # not those of the evaluation


@pytest.mark.parametrize(("script", "said"), [(AVERAGED, True), (DDP, False)])
def test_ranks_that_exchange_nothing_are_noted(tmp_path, script, said) -> None:
    done = _run(tmp_path, script, "--target", "v5e:2x2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("nothing in the step goes between the 4 ranks" in done.stdout) is said


def test_script_without_the_device_says_so(tmp_path) -> None:
    done = _run(tmp_path, NOTHING, "--target", "v5e:2x2")
    assert done.returncode == 1
    assert "PlanError" in done.stderr
    assert "put no work on the device" in done.stderr


TENSOR_PARALLEL_INFERENCE = """
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

mesh = init_device_mesh("tpu", (4,))
model = nn.Sequential(nn.Linear(256, 1024, bias=False), nn.Linear(1024, 256, bias=False)).to("tpu")
parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
with torch.no_grad():
    model(torch.randn(512, 256, device="tpu"))
    torch.randn(0, 256, device="tpu") @ torch.randn(256, 8, device="tpu")
"""


def test_shapes_that_dtensor_asks_for_and_empty_products_are_no_work(tmp_path) -> None:
    done = _run(tmp_path, TENSOR_PARALLEL_INFERENCE, "--target", "v5e:2x2", "--json", "plan.json")
    assert done.returncode == 0, done.stdout + done.stderr
    plan = json.loads((tmp_path / "plan.json").read_text())
    peak = parse_slice("v5e:2x2").chip.figure("peak_bf16_flops_per_s")
    assert plan["hfu"] * plan["step_s"] * peak == pytest.approx(2 * 2 * 512 * 256 * 1024 / 4)


def test_copy_of_a_model_is_parameters_and_says_nothing_of_fake_tensors(tmp_path) -> None:
    done = _run(tmp_path, AVERAGED, "--target", "v5e:1x1", "--json", "plan.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "FakeTensor" not in done.stderr
    at_peak = json.loads((tmp_path / "plan.json").read_text())["hbm"]["at_peak"]
    assert at_peak["parameters"] == 2 * 4 * (64 * 64 + 64)


DEEP = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
model = nn.Sequential(*(nn.Linear(2048, 2048, bias=False) for _ in range(8))).to("tpu")
model = DistributedDataParallel(model, gradient_as_bucket_view="--view" in sys.argv)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
rows = 64 if "--small" in sys.argv else 8192
for _ in range(2):
    optimizer.zero_grad()
    model(torch.randn(rows, 2048, device="tpu")).sum().backward()
    optimizer.step()
"""


def test_buckets_of_ddp_are_summed_behind_the_backward_pass(tmp_path) -> None:
    for option in ("--plain", "--view"):
        more = ("--target", "v5e:2x2", "--json", "plan.json", "--", option)
        done = _run(tmp_path, DEEP, *more)
        assert done.returncode == 0, done.stdout + done.stderr
        plan = json.loads((tmp_path / "plan.json").read_text())
        moved = plan["communication"]
        assert moved["collectives"]["all_reduce of 4 ranks"]["bytes_per_rank"] == 8 * 4 * 2048**2
        # A layer's gradients take longer than what is left of a bucket's sum; the last has none.
        total_s = moved["exposed_s"] + moved["hidden_s"]
        assert moved["hidden_s"] > 0.25 * total_s


def test_buckets_of_ddp_take_no_hbm_where_gradients_are_views_of_them(tmp_path) -> None:
    hbm = {}
    for option in ("--plain", "--view"):
        # Of few rows, the most is held at the end of the backward pass.
        more = ("--target", "v5e:2x2", "--json", "plan.json", "--", option, "--small")
        done = _run(tmp_path, DEEP, *more)
        assert done.returncode == 0, done.stdout + done.stderr
        hbm[option] = json.loads((tmp_path / "plan.json").read_text())["hbm"]["peak_bytes"]
    assert hbm["--view"] < hbm["--plain"]


ACCUMULATED = """
import sys
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
pair = dist.new_subgroups(2)[0]
model = nn.Linear(1024, 1024, bias=False).to("tpu")
model = DistributedDataParallel(model, process_group=pair)
if "--hook" in sys.argv:
    model.register_comm_hook(pair, default_hooks.bf16_compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(2):
    for _ in range(3):
        with model.no_sync():
            model(torch.randn(8, 1024, device="tpu")).sum().backward()
    model(torch.randn(8, 1024, device="tpu")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("option", "element_bytes"), [("--plain", 4), ("--hook", 2)])
def test_accumulated_gradients_are_summed_once_in_their_group(
    tmp_path, option, element_bytes
) -> None:
    more = ("--target", "v5e:2x2", "--json", "plan.json", "--", option)
    done = _run(tmp_path, ACCUMULATED, *more)
    assert done.returncode == 0, done.stdout + done.stderr
    moved = json.loads((tmp_path / "plan.json").read_text())["communication"]["collectives"]
    assert {name: (one["runs"], one["bytes_per_rank"]) for name, one in moved.items()} == {
        "all_reduce of 2 ranks": (1, element_bytes * 1024 * 1024)
    }
