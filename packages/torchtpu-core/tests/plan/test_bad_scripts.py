# SPDX-License-Identifier: Apache-2.0
"""Scripts that fail, end themselves, never end or start ranks: what a plan says of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import warm_python
from torchtpu_core.errors import PlanError
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.making import make_plan
from torchtpu_core.plan.records import Work
from torchtpu_core.testing.recordings import MIB, op, recording
from torchtpu_core.units import GIB

STEP = """
import os, torch
import torch.distributed as dist
weight = torch.nn.Parameter(torch.zeros(64, 64, device="tpu"))
optimizer = torch.optim.SGD([weight], lr=0.1)
def step():
    (weight @ weight).sum().backward()
    optimizer.step()
"""
#: A rank that trains.
TRAIN = (
    STEP
    + """
def train(rank, world):
    dist.init_process_group("tpu", rank=rank, world_size=world)
    for _ in range(3):
        step()
        dist.all_reduce(weight.grad)
"""
)
#: For each script: its text, and what the plan says.
FAILS = {
    "wrong shapes": (
        "import torch\nx = torch.zeros(4, 5, device='tpu')\nx @ x\n",
        "wrong shapes.py:3 while it ran without values: RuntimeError: a and b must have same",
    ),
    "lazy": (
        "import torch\nlayer = torch.nn.LazyLinear(4)\nlayer.to('tpu')\n",
        "lazy.py:3 while it ran without values: RuntimeError: a lazy module has no shapes before",
    ),
    "asks for cuda": (
        "import torch\ntorch.nn.Linear(4, 4).cuda()\n",
        "A plan runs on the device 'tpu': choose it",
    ),
    "device of cuda": (
        "import torch\ntorch.cuda.set_device(0)\n",
        "A plan runs on the device 'tpu': choose it",
    ),
    "options": (
        "import argparse\np = argparse.ArgumentParser()\n"
        "p.add_argument('--data', required=True)\np.parse_args()\n",
        "The script's own options go after `--`",
    ),
    "no device": ("import torch\ntorch.ones(3).sum()\n", "current_accelerator()"),
    "sys exit": ("import sys\nsys.exit('no data')\n", "ended itself by sys.exit('no data')"),
    "os exit": ("import os\nos._exit(0)\n", "ended itself by os._exit(0)"),
    "syntax": ("def f(:\n", "SyntaxError: invalid syntax"),
    "long error": ("raise ValueError('long ' * 500)\n", "ValueError: long long"),
    "end of a long error": ("raise ValueError('long ' * 500)\n", "long long ..."),
    "endless": ("import time\nwhile True:\n    time.sleep(0.01)\n", "ran for 3 s, and was at"),
    "input": ("n = int(input())\n", "there is nobody to answer: take the value from an option"),
    "mesh": (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "init_device_mesh('tpu', (2, 3), mesh_dim_names=('dp', 'tp'))\n",
        "mesh.py:2: 4 devices cannot form a mesh (dp=2, tp=3): 6 does not divide 4. Use tp=2",
    ),
    "mesh of some": (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "init_device_mesh('tpu', (1, 3), mesh_dim_names=('dp', 'tp'))\n",
        "mesh of some.py:2: 4 devices cannot form a mesh (dp=1, tp=3): 3 does not divide 4.",
    ),
    "mesh of none": (
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "init_device_mesh('tpu', (4 // 8, 8))\n",
        "unlike 0=0, 1=8. There are 4 devices.",
    ),
    "no steps": (
        STEP + "for _ in range(0):\n    step()\n",
        "made an optimizer, but never stepped it nor called a module",
    ),
    "spawn three": (
        "import torch.multiprocessing as mp\nmp.spawn(print, nprocs=3)\n",
        "spawns 3 ranks and the target has 4 devices",
    ),
}
WORKS = {
    "large model on the host": STEP
    + "with torch.no_grad():\n    big = torch.nn.Linear(1 << 17, 1 << 16)\n"
    "    ids = torch.randint(1 << 30, (1000,))\n"
    "assert type(big.weight.data).__name__ == 'FakeTensor'\n"
    "assert type(ids) is torch.Tensor and ids.max() > 1\n"
    "for _ in range(3):\n    step()\n",
    "rollout": STEP
    + """
for _ in range(3):
    with torch.no_grad():
        for _ in range(50):
            weight @ weight
    for _ in range(2):
        step()
""",
    "spawned": TRAIN
    + """
import torch.multiprocessing as mp
mp.spawn(train, args=(4,), nprocs=4)
""",
    "started": TRAIN
    + """
import multiprocessing as mp
ranks = [mp.Process(target=train, args=(rank, 4)) for rank in range(4)]
for rank in ranks:
    rank.start()
for rank in ranks:
    rank.join()
    assert not rank.is_alive() and rank.exitcode == 0
""",
    "helped": STEP
    + """
import multiprocessing as mp
def feed(queue):
    queue.put(3)
    queue.get()
queue = mp.Queue()
mp.Process(target=feed, args=(queue,)).start()
for _ in range(queue.get()):
    step()
""",
}
DRIVER = """
import json, os, sys
from pathlib import Path
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.ici.slices import parse_slice
from torchtpu_core.plan.session import record

said = {}
for path in map(Path, sys.argv[1:]):
    try:
        limit_s = 3 if path.stem == "endless" else 0
        recording = record(path, [], parse_slice("v5e:2x2"), 1, limit_s=limit_s)
        said[path.stem] = [op.name for op in recording.ops] + recording.notes
    except TorchTPUError as error:
        said[path.stem] = str(error)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def done(tmp_path_factory) -> subprocess.CompletedProcess[str]:
    """All scripts, one after another in one process."""
    folder = tmp_path_factory.mktemp("scripts")
    paths = []
    for name, text in {**{k: v[0] for k, v in FAILS.items()}, **WORKS}.items():
        paths.append(folder / f"{name}.py")
        paths[-1].write_text(text)
    command = [sys.executable, "-c", DRIVER, *map(str, paths)]
    found = warm_python.run(command, stdin=subprocess.DEVNULL)
    assert found.returncode == 0, found.stderr
    return found


@pytest.mark.parametrize("name", FAILS)
def test_failing_script_is_told_what_went_wrong(done, name) -> None:
    said = json.loads(done.stdout.splitlines()[-1])[name]
    assert FAILS[name][1] in said


def test_traceback_holds_no_frame_of_the_plan(done) -> None:
    assert "wrong shapes.py" in done.stderr
    assert "torchtpu_core" not in done.stderr


def test_error_of_shapes_is_told_once_and_without_the_machinery_of_shapes(done) -> None:
    assert done.stderr.count("a and b must have same reduction dim") == 1
    assert "fake_tensor" not in done.stderr


@pytest.mark.parametrize("name", WORKS)
def test_unusual_script_is_recorded(done, name) -> None:
    said = json.loads(done.stdout.splitlines()[-1])[name]
    assert isinstance(said, list), said
    assert "mm" in said
    assert ("allreduce_" in said) is (name in ("spawned", "started"))
    assert any("process (feed)" in str(note) for note in said) is (name == "helped")
    assert any("is outside the figures" in str(note) for note in said) is (name == "rollout")


def test_script_that_is_not_there_is_answered_with_the_one_beside_it(tmp_path) -> None:
    (tmp_path / "train.py").touch()
    error = PlanError.no_script(tmp_path / "trian.py")
    assert f"Did you mean {tmp_path / 'train.py'}?" in str(error)
    assert "Did you mean" not in str(PlanError.no_script(tmp_path / "other.py"))


def test_clock_is_silent_once_the_script_has_ended() -> None:
    from torchtpu_core.plan.script_process import TooLong, clock

    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(TooLong), clock(0.05, None):
        signal.pause()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["absent.py"], "absent.py is not a file"),
        (["{script}", "--batch", "4", "--slices=2"], "script.py --slices=2 -- --batch 4"),
        (["{script}", "--targt", "v5e:2x2"], "Did you mean '--target'?"),
        (["{script}", "--target", "v5p-128"], "v5p-128 is 64 chips: v5p:4x4x4"),
        (["{script}", "--target", "v6e:16x32"], "More than 256 chips are several slices"),
        (["{script}", "--target", "v5p:4x4x8", "--fault", "chip:0=down"], "Use v5p:4x4x4 from"),
        (
            ["{script}", "--fault", "cable:0-1=down", "--fault", "cable:0-2=down"],
            "no way is left from chip 0 to chip 1",
        ),
        (["{script}", "--fault", "cable:0-1=2"], "Cable 0-1 cannot have 2.0 of its rate"),
        (["{script}", "--ranks", ""], "--ranks '' is no list of numbers"),
        (["{script}", "--ranks", "", "--sweep=--a=1"], "--ranks '' is no list of numbers"),
        (["{script}", "--target", "v9:2x2"], "'v9' is not a known chip. Known chips: v2"),
        (["{script}", "--json", "absent/plan.json"], "there is no folder"),
        (["{script}", "--html", "."], "is a folder"),
        (["{script}", "--sweep=--a=1", "--trace", "x.json"], "shows one plan"),
        (["{script}", "--sweep=a=1,2"], "--sweep takes an option of the script"),
        (["{script}", "--sweep=--a="], "--sweep takes an option of the script"),
        (["absent.py", "--sweep=--a=1,2"], "absent.py is not a file"),
        (["{script}", "--target", "v5e:17x1", "--sweep=--a=1,2"], "Nearest: v5e:4x4"),
    ],
)
def test_impossible_request_is_refused_before_the_script_runs(
    tmp_path: Path, monkeypatch, options, message
) -> None:
    from torchtpu_core.cli.app import make_app
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "500")
    script = tmp_path / "script.py"
    script.write_text("raise AssertionError('the script must not run')\n")
    shown = CliRunner().invoke(make_app(), ["plan", *(o.format(script=script) for o in options)])
    assert shown.exit_code in (1, 2)
    assert message in " ".join(shown.output.split())
    assert list(tmp_path.iterdir()) == [script]


@pytest.mark.parametrize(("size", "code"), [(MIB, 0), (1000 * GIB, 3)])
def test_plan_that_does_not_fit_is_written_and_ends_with_a_code(
    tmp_path, monkeypatch, size, code
) -> None:
    from torchtpu_core.cli import plan as command
    from torchtpu_core.cli.app import make_app
    from typer.testing import CliRunner

    ops = [op("mm", Work.MATMUL, (1,), (2,), size=size, products=((1, 8, 8, 8),))]
    made = make_plan(recording(ops, {}, size), parse_slice("v5e:2x2"), 1, "highest")
    monkeypatch.setattr(command, "_make", lambda *_, **__: made)
    out = tmp_path / "plan.json"
    shown = CliRunner().invoke(make_app(), ["plan", "script.py", "--json", str(out)])
    assert shown.exit_code == code
    assert json.loads(out.read_text())["hbm"]["fits"] is (code == 0)
    said = CliRunner().invoke(make_app(), ["advise", "script.py"]).output
    assert ("It does not fit: " in said) is (code == 3)


def test_files_are_written_even_if_nobody_reads_what_is_shown(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(STEP + "for _ in range(3):\n    step()\n")
    code = "import sys; from torchtpu_core.cli import main; sys.argv[0] = 'torchtpu'; main()"
    command = [sys.executable, "-c", code, "plan", "script.py", "--json", "plan.json"]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            command, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, check=False
        )
    finally:
        os.close(writer)
    assert done.returncode
    assert json.loads((tmp_path / "plan.json").read_text())["step_s"] > 0
