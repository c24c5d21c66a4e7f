# SPDX-License-Identifier: Apache-2.0
"""Programs that come from the cache: none is compiled, and they do the same."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path

import pytest
import torch
import torchtpu_core
from torchtpu_core import _C, env_vars
from torchtpu_core.cache import CacheWarning
from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.calls import device_call
from torchtpu_core.runtime import caching, fingerprints, programs, trace_key

_F32 = torch.float32


@pytest.fixture
def new_process(tmp_path, monkeypatch):
    """Forgets what a new process would not know; entries are kept in a directory of the test."""

    def forget(**settings: str) -> None:
        monkeypatch.setenv("TORCH_TPU_CACHE_DIR", str(tmp_path / "cache"))
        for name, value in settings.items():
            monkeypatch.setenv(f"TORCH_TPU_CACHE_{name}", value)
        env_vars.reset()
        caching.reset()
        _C.clear_programs()
        torch.tpu.reset_counters()

    forget()
    yield forget
    monkeypatch.undo()
    env_vars.reset()
    caching.reset()
    _C.clear_programs()
    torch.tpu.reset_counters()


def _step(device: str = "tpu:0") -> list[torch.Tensor]:
    """Views, writes through views, numbers, a check, randomness, LAPACK, a large donation."""
    torch.manual_seed(3)
    x = torch.linspace(-1, 1, 64).reshape(8, 8).to(device)
    large = torch.ones(128, 128).to(device)
    large.add_(2)
    x[1:3].t().mul_(0.5)
    picked = x.index_select(0, torch.tensor([1, 5]).to(device))
    noise = torch.nn.functional.dropout(x, 0.3)
    inverse = torch.linalg.inv(x @ x.t() + torch.eye(8).to(device))
    return [t.cpu() for t in (x.softmax(-1), large, picked, noise, inverse)]


def _short_step() -> list[torch.Tensor]:
    return [(torch.linspace(-1, 1, 12).reshape(3, 4).to("tpu") * 2).sum(0).cpu()]


def _assert_same(found: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_second_process_compiles_nothing_and_gives_the_same_bits(new_process) -> None:
    expected = _step()
    first = torch.tpu.counters()
    new_process()
    _assert_same(_step(), expected)
    second = torch.tpu.counters()
    assert first["compiles"] == first["programs"] > 5
    assert second["compiles"] == 0
    assert second["directory_hits"] == second["programs"] == first["programs"]


def test_second_process_lowers_nothing(new_process, monkeypatch) -> None:
    expected = _step()
    new_process()
    monkeypatch.setattr(programs, "trace_function", None)
    _assert_same(_step(), expected)


def test_another_device_of_the_kind_shares_the_programs(new_process) -> None:
    expected = _step()
    before = torch.tpu.counters()["compiles"]
    _assert_same(_step("tpu:1"), expected)
    assert torch.tpu.counters()["compiles"] == before


def test_simulated_time_of_a_loaded_program_is_that_of_the_compiled_one(new_process) -> None:
    def duration() -> float:
        x = torch.ones(256, 256, device="tpu")
        start, end = (torch.tpu.Event(enable_timing=True) for _ in range(2))
        start.record()
        torch.mm(x, x)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    expected = duration()
    new_process()
    assert duration() == expected > 0


def test_check_of_a_loaded_program_raises_with_the_users_line(new_process) -> None:
    def out_of_range() -> None:
        torch.arange(4.0).to("tpu").index_select(0, torch.tensor([7]).to("tpu")).cpu()

    for _ in range(2):
        with pytest.raises(IndexError, match=r"test_program_cache\.py:\d+ in out_of_range"):
            out_of_range()
        new_process()


def test_call_without_a_key_is_found_by_its_stablehlo(new_process) -> None:
    def run() -> float:
        call = device_call("test::double", lambda arrays: (arrays[0] * 2,))
        (doubled,) = call([torch.full((3,), 2.0).to("tpu")], [], [], lambda: [([3], [1], _F32)])
        return doubled.sum().item()

    assert run() == 12.0
    new_process()
    assert run() == 12.0
    assert torch.tpu.counters()["compiles"] == 0


def test_call_with_a_key_is_the_function_of_that_key(new_process) -> None:
    def run(factor: float, key: str) -> float:
        call = device_call("test::scaled", lambda arrays: (arrays[0] * factor,), cache_key=key)
        (scaled,) = call([torch.ones(3).to("tpu")], [], [], lambda: [([3], [1], _F32)])
        return scaled.sum().item()

    assert run(2.0, "two") == 6.0
    new_process()
    assert run(5.0, "five") == 15.0
    assert run(2.0, "two") == 6.0


def _damage(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "flipped":
        content[len(content) * 2 // 3] ^= 16
        path.write_bytes(content)
    else:
        path.unlink()
        path.mkdir()


@pytest.mark.parametrize("how", ["truncated", "empty", "flipped", "a directory"])
def test_damaged_entries_are_one_warning_and_replaced(new_process, tmp_path, how) -> None:
    expected = _short_step()
    store = DirectoryStore(tmp_path / "cache", 1 << 30)
    for stored in list(store.entries()):
        _damage(store._path(stored.key), how)
    new_process()
    with pytest.warns(CacheWarning) as caught:
        _assert_same(_short_step(), expected)
    assert len([w for w in caught if w.category is CacheWarning]) == 1
    new_process()
    _assert_same(_short_step(), expected)
    assert torch.tpu.counters()["compiles"] == 0


def test_payload_that_passes_its_checksum_but_is_none_is_compiled_anew(new_process, tmp_path):
    from torchtpu_core.cache import decode, encode
    from torchtpu_core.cache.entry import Entry, Kind

    expected = _short_step()
    store = DirectoryStore(tmp_path / "cache", 1 << 30)
    for stored in list(store.entries()):
        entry = decode(store.read(stored.key))
        if entry.kind is Kind.EXECUTABLE:
            facts = {"key": entry.key, "kind": entry.kind, "host": entry.host}
            forged = Entry(**facts, facts=entry.facts, payload=b"cos\nsystem\n(S'false'\ntR.")
            store.put(entry.key, encode(forged))
    new_process()
    with pytest.warns(CacheWarning, match="cannot be loaded"):
        _assert_same(_short_step(), expected)
    assert torch.tpu.counters()["compiles"] > 0


def test_directory_that_vanishes_between_runs_is_made_anew(new_process, tmp_path) -> None:
    expected = _short_step()
    shutil.rmtree(tmp_path / "cache")
    _C.clear_programs()
    _assert_same(_short_step(), expected)
    assert list(DirectoryStore(tmp_path / "cache", 1 << 30).entries())


def test_shared_root_warms_a_host_with_an_empty_directory(new_process, tmp_path) -> None:
    new_process(URL=f"file://{tmp_path}/shared")
    expected = _step()
    programs_made = torch.tpu.counters()["programs"]
    shutil.rmtree(tmp_path / "cache")
    new_process(URL=f"file://{tmp_path}/shared")
    _assert_same(_step(), expected)
    counts = torch.tpu.counters()
    assert (counts["compiles"], counts["shared_hits"]) == (0, programs_made)


def _description(device: int = 0, size: int = 4) -> dict[str, object]:
    """What C++ says of ``x * number``."""
    spec = ((size,), (1,), _F32)
    whole = ("identity", (), (), (), 0, ())
    from torchtpu_core.runtime import tables

    node = {
        "row": tables.current()["aten::mul.Tensor"],
        "name": "aten::mul.Tensor",
        "random": False,
        "only_out": False,
        "args": [("self", False, "tensor", 0), ("other", False, "scalar", (0, "f", None))],
        "inputs": [(("operand", 0), spec, spec, whole)],
        "scalars": 1,
        "outs": [("tensor", [spec])],
        "written": [],
        "outputs": [(spec, False, -1, whole, (size,))],
        "line": "",
        "site": 0,
        "recent": 0,
    }
    return {
        "device": device,
        "nodes": [node],
        "operands": [spec],
        "scalar_count": 1,
        "live": [(0, 0)],
        "donated": [],
    }


def test_trace_key_ignores_device_and_line_and_nothing_else(new_process) -> None:
    key = trace_key.trace_key(_description())
    assert key == trace_key.trace_key(_description(device=1))
    other_line = _description()
    other_line["nodes"][0]["line"] = "train.py:3 in step"
    assert key == trace_key.trace_key(other_line)
    donated = _description() | {"donated": [(0, 0)]}
    keys = {key, trace_key.trace_key(_description(size=5)), trace_key.trace_key(donated)}
    assert len(keys) == 3


def test_trace_key_depends_on_numeric_settings(new_process) -> None:
    keys = {trace_key.trace_key(_description())}
    torch.set_default_dtype(torch.float64)
    keys.add(trace_key.trace_key(_description()))
    torch.set_default_dtype(_F32)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    keys.add(trace_key.trace_key(_description()))
    torch.set_float32_matmul_precision(precision)
    assert len(keys) == 3


def test_fingerprint_of_the_tables_changes_with_a_byte_of_their_source(tmp_path) -> None:
    package = tmp_path / "torchtpu_core"
    shutil.copytree(torchtpu_core.__path__[0], package, ignore=shutil.ignore_patterns("*.so"))
    before = fingerprints.digest(*fingerprints.source_texts(package))
    table = package / "lowering" / "unary.py"
    table.write_text(table.read_text() + "\n")
    assert fingerprints.digest(*fingerprints.source_texts(package)) != before


def test_lookup_finds_what_compile_made_and_never_compiles(new_process) -> None:
    assert programs.lookup_program(_description()) is None
    assert torch.tpu.counters()["compiles"] == 0
    made = programs.compile_program(_description())
    assert programs.lookup_program(_description()) is made
    assert programs.lookup_program(_description(device=1)).positions == made.positions
    assert torch.tpu.counters()["compiles"] == 1


def test_threads_that_want_one_program_compile_it_once(new_process) -> None:
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(programs.compile_program(_description())))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 4
    assert torch.tpu.counters()["compiles"] == 1


def test_eight_processes_at_once_compile_each_program_once(run_python, tmp_path) -> None:
    done = run_python(
        """
        import multiprocessing, torch, torch._dynamo, torch.fx.experimental.symbolic_shapes
        import torchtpu_core.runtime.startup, torchtpu_core.runtime.programs

        def work(barrier, results):
            barrier.wait()
            x = torch.ones(9, 9).to("tpu")
            for _ in range(2):
                x = (x @ x).relu().sum(0, keepdim=True).mul(0.25) + x
            results.put((torch.tpu.counters(), x.cpu().sum().item()))

        context = multiprocessing.get_context("fork")
        barrier, results = context.Barrier(8), context.Queue()
        children = [context.Process(target=work, args=(barrier, results)) for _ in range(8)]
        for child in children:
            child.start()
        found = [results.get() for _ in children]
        for child in children:
            child.join()
        counts = [count for count, _ in found]
        print(len({value for _, value in found}), sum(c["compiles"] for c in counts),
              {c["programs"] for c in counts},
              sum(c["directory_hits"] for c in counts))
        """,
        TORCH_TPU_CACHE_DIR=str(tmp_path / "cache"),
    )
    values, compiles, programs_each, hits = done.stdout.split()
    each = int(programs_each.strip("{}"))
    assert (int(values), int(compiles), int(hits)) == (1, each, 7 * each)
    assert "CacheWarning" not in done.stderr
