# SPDX-License-Identifier: Apache-2.0
"""Sessions that need logic; the plain environments are in tox.ini."""

from __future__ import annotations

import itertools
from pathlib import Path

import nox

ROOT = Path(__file__).resolve().parent
DISTRIBUTIONS = ("core", "eager", "compile", "distributed", "kernels")
TRY_OUT = """
import torch
x = torch.arange(6.0, device="tpu").reshape(2, 3)
assert (x @ x.T).cpu().tolist() == [[5.0, 14.0], [14.0, 50.0]]
print("wheels: ok on", torch.tpu.get_device_name())
"""
SWEPT_DTYPES = (
    "float32",
    "bfloat16",
    "int64",
    "bool",
    "float16",
    "complex64",
    "float64",
    "int32",
    "uint8",
)
SWEPT_FORMS = ("noncontiguous", "empty", "inplace", "out", "reference", "sparse_coo", "sparse_csr")
#: Other databases of PyTorch, and the forms they are swept in.
SWEPT_DATABASES = (("python_ref_db", "plain"), ("foreach", "plain"), ("foreach", "inplace"))
SWEEP_SHARDS = 8
ZOO_SHARDS = 16
#: Files of PyTorch's own tests: those with many tests for a device.
PYTORCH_TESTS = (
    *("test_view_ops", "test_indexing", "test_tensor_creation_ops", "test_type_promotion"),
    *("test_shape_ops", "test_sort_and_select", "test_scatter_gather_ops", "test_torch"),
    *("nn/test_pooling", "nn/test_dropout", "nn/test_embedding", "nn/test_convolution"),
    *("nn/test_multihead_attention", "nn/test_packed_sequence", "test_nn", "test_optim"),
    *("test_autograd", "test_reductions", "test_serialization", "test_complex", "test_linalg"),
    *("test_segment_reductions", "test_spectral_ops", "distributions/test_distributions"),
)

nox.options.default_venv_backend = "venv"
nox.options.sessions = ["wheels"]


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the wheels by way of source distributions, inspect them, use them elsewhere."""
    dist = ROOT / "dist"
    for old in [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]:
        old.unlink()
    session.install("-r", "requirements/torch.txt")
    session.install("-r", "requirements/torch.txt", "-r", "requirements/build.txt", "build")
    for name in DISTRIBUTIONS:
        # Without --wheel and --sdist the wheel is built from the source distribution, so a file
        # that the latter lacks is noticed.
        session.run(
            "python", "-m", "build", "--no-isolation", "-o", "dist", f"packages/torchtpu-{name}"
        )
    session.run("python", "tools/inspect_wheels.py", "dist")

    elsewhere = Path(session.create_tmp(), "elsewhere").resolve()  # tox gives a relative one
    session.run("python", "-m", "venv", "--clear", str(elsewhere))
    python = str(elsewhere / "bin" / "python")
    found = sorted(str(wheel) for wheel in dist.glob("*.whl"))
    pip = (python, "-m", "pip", "install", "-q", "-r", "requirements/torch.txt")
    session.run(*pip, *found, external=True)
    with session.chdir(elsewhere):
        session.run(python, "-c", TRY_OUT, external=True)


@nox.session
def slow(session: nox.Session) -> None:
    """Run the tests marked slow, which bootstrap.py and tox leave out."""
    session.install("-r", "requirements/torch.txt")
    session.run("python", "tools/install.py", *DISTRIBUTIONS)
    session.install("-r", "requirements/torch.txt", "-r", "requirements/test.txt")
    session.run("python", "-m", "pytest", "-m", "slow", *(session.posargs or ["packages"]))


@nox.session
def op_database(session: nox.Session) -> None:
    """Sweep PyTorch's operator database and write the figures that the docs show.

    Shards that are there from an interrupted call are kept: remove the folder that is printed
    to begin anew. Arguments go to the sweep: ``nox -s op_database -- --samples 2``.
    """
    session.install("-r", "requirements/torch.txt")
    session.run("python", "tools/install.py", *DISTRIBUTIONS)
    raw = Path(session.create_tmp(), "raw")
    raw.mkdir(exist_ok=True)
    session.log(f"raw results: {raw}")
    sweeps = [(dtype, "op_db", "plain") for dtype in SWEPT_DTYPES]
    sweeps += [("float32", "op_db", form) for form in SWEPT_FORMS]
    sweeps += [("float32", database, form) for database, form in SWEPT_DATABASES]
    for (dtype, database, form), shard in itertools.product(sweeps, range(SWEEP_SHARDS)):
        target = raw / f"{dtype}-{database}-{form}-{shard}.json"
        if target.exists():
            continue
        part = raw / "unfinished"  # a file of its own process: programs are dropped in between
        arguments = ("--dtypes", dtype, "--database", database, "--forms", form)
        arguments += ("--shard", f"{shard}/{SWEEP_SHARDS}")
        command = ("python", "-m", "torchtpu_core.testing.op_database", *arguments)
        session.run(*command, "--json", str(part), *session.posargs)
        part.rename(target)
    errors = str(raw / "error_inputs.json")
    session.run("python", "-m", "torchtpu_core.testing.op_errors", "--json", errors)
    files = sorted(str(path) for path in raw.glob("*.json"))
    summary = ("--out", "benchmarks/results/op_database.json")
    allowed = ("--allowed", "packages/torchtpu-core/tests/op_database/allowed.json")
    session.run("python", "-m", "torchtpu_core.testing.op_coverage", *files, *summary, *allowed)


@nox.session
def tpu_programs(session: nox.Session) -> None:
    """Compile the programs of PyTorch's operator database with XLA's TPU compiler.

    Installs libtpu, whose licence is not an open one. Arguments go to the sweep:
    ``nox -s tpu_programs -- --dtypes bfloat16``.
    """
    session.install("-r", "requirements/torch.txt")
    session.run("python", "tools/install.py", "core", "eager")
    session.install("jax[tpu]")  # of the version that is there
    command = ("python", "-m", "torchtpu_core.testing.tpu_programs")
    results = ("--json", "benchmarks/results/tpu_programs.json")
    session.run(*command, "--dtypes", ",".join(SWEPT_DTYPES), *results, *session.posargs)


@nox.session
def tpu_forms(session: nox.Session) -> None:
    """Execute the forms that lowerings have for TPUs on the CPU, over the operator database.

    Arguments go to the sweep: ``nox -s tpu_forms -- --dtypes bfloat16 --samples 3``.
    """
    session.install("-r", "requirements/torch.txt")
    session.run("python", "tools/install.py", "core", "eager")
    session.install("-r", "requirements/test.txt")
    command = ("python", "-m", "torchtpu_core.testing.tpu_forms")
    session.run(*command, *(session.posargs or ("--samples", "5")))


@nox.session
def model_zoo(session: nox.Session) -> None:
    """Run other people's libraries and models on the device, compare them with the CPU.

    Shards that are there from an interrupted call are kept, as in ``op_database``. Arguments go to
    the sweep: ``nox -s model_zoo -- --modes strict``.
    """
    session.install("-r", "requirements/torch.txt")
    session.run("python", "tools/install.py", *DISTRIBUTIONS)
    requirements = (f"requirements/{name}.txt" for name in ("torch", "test", "zoo"))
    session.install(*itertools.chain.from_iterable(("-r", path) for path in requirements))
    session.run("python", "-m", "pytest", "packages/torchtpu-core/tests/libraries")
    raw = Path(session.create_tmp(), "raw")
    raw.mkdir(exist_ok=True)
    session.log(f"raw results: {raw}")
    for shard in range(ZOO_SHARDS):
        target = raw / f"{shard}.json"
        if target.exists():
            continue
        part = raw / "unfinished"
        arguments = ("--shard", f"{shard}/{ZOO_SHARDS}", "--json", str(part))
        module = "torchtpu_core.testing.model_zoo"
        session.run("python", "-m", module, *arguments, *session.posargs)
        part.rename(target)
    files = sorted(str(path) for path in raw.glob("*.json"))
    summary = ("--out", "benchmarks/results/model_zoo.json")
    session.run("python", "-m", "torchtpu_core.testing.model_zoo.summary", *files, *summary)


@nox.session
def peers(session: nox.Session) -> None:
    """Time training steps beside Inductor, torchax and torch_xla; writes the results.

    torch_xla needs another torch, with several GB of CUDA, in an environment of its own. Arguments
    go to the benchmark: ``nox -s peers -- gpt --rounds 9``.
    """
    session.install("-r", "requirements/torch.txt")
    session.run("python", "tools/install.py", *DISTRIBUTIONS)
    theirs = Path(session.create_tmp(), "peers").resolve()
    session.run("python", "-m", "venv", str(theirs))
    pip = (str(theirs / "bin" / "python"), "-m", "pip", "install", "-q")
    session.run(*pip, "-r", "requirements/peers.txt", external=True)
    command = ("python", "benchmarks/peers.py", "--peers", str(theirs), "--save")
    session.run(*command, *session.posargs)


@nox.session
def pytorch_tests(session: nox.Session) -> None:
    """Run PyTorch's own device tests: ``nox -s pytorch_tests -- DIR VERSION [--mode fused]``.

    DIR is the ``test`` folder of PyTorch's sources of that version, which no wheel holds. What
    was tried in an interrupted call is kept: remove the folder that is printed to begin anew.
    """
    directory, tests_of, *arguments = session.posargs
    session.install("-r", "requirements/torch.txt")
    session.run("python", "tools/install.py", *DISTRIBUTIONS)
    session.install("-r", "requirements/torch.txt", "-r", "requirements/test.txt")
    raw = Path(session.create_tmp(), "raw")
    session.log(f"raw results: {raw}")
    module = "torchtpu_core.testing.pytorch_tests"
    command = ("python", "-m", module, directory, *PYTORCH_TESTS, "--raw", str(raw), *arguments)
    session.run(*command)
    summary = ("--tests-of", tests_of, "--conditions", " ".join(arguments) or "none")
    results = ("--out", "benchmarks/results/pytorch_tests.json")
    session.run(
        "python", "-m", "torchtpu_core.testing.pytorch_summary", str(raw), *summary, *results
    )
