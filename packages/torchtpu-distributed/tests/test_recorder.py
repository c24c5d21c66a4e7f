# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: PyTorch's layout, which PyTorch's analyser reads."""

from __future__ import annotations

import argparse
import json
import pickle
import types
from pathlib import Path

import pytest
import torch
from torchtpu_distributed import recorder
from torchtpu_distributed.pending import Pending
from torchtpu_distributed.recorder import Recorder

GROUP = types.SimpleNamespace(name="0", description="default_pg", ranks=(0, 1))


def record(seq: int, kind: str = "all_reduce", line: str = "/home/me/train.py:33 in step"):
    shape = (torch.float32, (4, 2))
    return Pending(
        group="0", ranks=(0, 1), seq=seq, what=f"{kind} of float32[4,2]", line=line, timeout_s=1.5,
        kind=kind, inputs=[shape], outputs=[shape],
    )  # fmt: skip


def recorded(*records: Pending, entries: int = 10) -> Recorder:
    made = Recorder(entries)
    made.know(GROUP)
    for each in records:
        made.records.add(each)
    return made


def test_snapshot_follows_a_collective_through_its_states():
    waiting, running, over = record(3), record(2), record(1)
    running.launched_s = over.launched_s = over.done_s = over.began_s + 1
    found = json.loads(json.dumps(recorded(over, running, waiting).snapshot()))
    assert [e["state"] for e in found["entries"]] == ["completed", "started", "scheduled"]
    assert found["pg_status"]["0"] == {
        "last_enqueued_collective": 3,
        "last_started_collective": 2,
        "last_completed_collective": 1,
    }
    first = found["entries"][0]
    assert first["time_discovered_completed_ns"] - first["time_created_ns"] == pytest.approx(1e9)
    assert first["input_sizes"] == [[4, 2]] and first["input_dtypes"] == ["Float"]
    assert first["timeout_ms"] == 1500
    assert first["frames"] == [{"name": "step", "filename": "/home/me/train.py", "line": 33}]


def test_ring_keeps_the_last_records():
    found = recorded(*(record(seq) for seq in range(1, 8)), entries=3).snapshot()
    assert [e["collective_seq_id"] for e in found["entries"]] == [5, 6, 7]
    assert [e["record_id"] for e in found["entries"]] == [4, 5, 6]


def test_file_is_written_where_pytorch_is_asked_to(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))
    path = recorder.write_if_asked(recorded(record(1)), 1)
    assert path == str(tmp_path / "trace_1")
    found = pickle.loads(Path(path).read_bytes())
    assert found["entries"][0]["profiling_name"] == "xccl:all_reduce"


def test_no_file_is_written_unasked(monkeypatch):
    monkeypatch.delenv("TORCH_FR_DUMP_TEMP_FILE", raising=False)
    monkeypatch.delenv("TORCH_NCCL_DUMP_ON_TIMEOUT", raising=False)
    assert recorder.write_if_asked(recorded(record(1)), 1) == ""


def test_analyser_of_pytorch_names_the_rank_that_differs():
    pytest.importorskip("tabulate", reason="PyTorch's analyser needs it")
    from torch.distributed.flight_recorder.components import builder

    kinds = ["all_reduce", "broadcast"]
    details = {
        f"trace_{rank}": {
            "host_name": f"host{rank}",
            "rank": rank,
            **recorded(record(1), record(2, kinds[rank])).snapshot(),
        }
        for rank in range(2)
    }
    arguments = argparse.Namespace(
        verbose=False, just_print_entries=False, allow_incomplete_ranks=False, mismatch_cap=10,
        pg_filters=None, selected_ranks=None,
    )  # fmt: skip
    found = builder.build_db(details, arguments, recorder.VERSION)
    good = [c.pass_check for c in found.collectives]
    assert good == [True, False]
