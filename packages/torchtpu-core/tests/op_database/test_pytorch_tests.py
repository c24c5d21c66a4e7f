# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own test files are run for the device, counted, and survived."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torchtpu_core.testing import pytorch_summary, pytorch_tests
from torchtpu_core.testing.pytorch_plugin import Selection

DEVICE_TESTS = """
import os

import torch
from torch.testing._internal.common_device_type import dtypes, instantiate_device_type_tests
from torch.testing._internal.common_utils import TestCase, a_decorator_of_another_version


class TestSmall(TestCase):
    @a_decorator_of_another_version("with a reason")
    def test_device(self, device):
        self.assertEqual(torch.ones(2, device=device).sum().item(), 2)

    def test_of_another_version(self, device):
        self.assertEqual(1, 2)

    def test_a_mistake_that_is_seen_later(self, device):
        with self.assertRaises(IndexError):
            torch.ones(2, device=device)[torch.tensor([5], device=device)]

    def test_of_the_device(self, device):
        self.assertEqual(torch.device(device).type, "cpu")

    def test_that_ends_its_process(self, device):
        os._exit(7)

    @dtypes(torch.float32, torch.int16)
    def test_with_a_dtype(self, device, dtype):
        self.skipTest("as tests for other devices do")


instantiate_device_type_tests(TestSmall, globals())
"""


@pytest.mark.slow  # processes import PyTorch and JAX
def test_a_file_of_device_tests_is_run_to_its_end_and_counted(tmp_path: Path, capsys) -> None:
    (tmp_path / "test_small.py").write_text(DEVICE_TESTS)
    raw, out = tmp_path / "raw", tmp_path / "out.json"
    kept = {"file": "test_before", "mode": "debug", "passed": 3, "failed": 0, "skipped": 0}
    out.write_text(json.dumps({"files": [kept]}))
    pytorch_tests.main([str(tmp_path), "test_small", "--raw", str(raw), "--mode", "fused"])
    assert "test_small: 1 passed, 4 failed, 1 skipped" in capsys.readouterr().out

    arguments = ["--tests-of", "2.13", "--out", str(out)]
    pytorch_summary.main([str(raw), *arguments])
    content = json.loads(out.read_text())
    assert content["totals"] == {"passed": 4, "failed": 4, "skipped": 1}
    before, file = content["files"]
    assert before == kept
    assert file["mode"] == "fused"
    on_cpu, later = file["reasons"].items()
    assert on_cpu[0].startswith("fails on the CPU too")
    assert on_cpu[1] == 2  # one of them ends the process
    assert later[0].startswith("passes in Debug")
    assert later[1] == 1
    assert list(file["unexplained"]) == ["TestSmall::test_of_the_device"]


@pytest.mark.parametrize(("sample", "chosen"), [(0, [0, 1, 3]), (2, [0, 1])])
def test_selection_keeps_the_devices_tests_of_its_dtypes(tmp_path, sample, chosen) -> None:
    tests = [
        "TestAPRIVATEUSE1::test_x_tpu_float32",
        "TestATPU::test_y_tpu",
        "TestATPU::test_z_tpu_int16",
        "TestATPU::test_w_tpu_bool",
        "TestB::test_x",
    ]
    journal = str(tmp_path / "journal.jsonl")
    selection = Selection(journal=journal, dtypes=("float32", "bool"), sample=sample)
    assert selection.choose(tests) == chosen


def test_selection_leaves_out_what_an_earlier_process_tried(tmp_path) -> None:
    journal = tmp_path / "journal.jsonl"
    entries = [
        {"test": "TestA::test_x", "outcome": "passed"},
        {"test": "TestA::test_y", "outcome": "began"},
    ]
    journal.write_text("\n".join(json.dumps(entry) for entry in entries))
    selection = Selection(journal=str(journal), dtypes=(), sample=0)
    assert selection.choose(["TestATPU::test_x_tpu", "TestATPU::test_y_tpu"]) == [1]
