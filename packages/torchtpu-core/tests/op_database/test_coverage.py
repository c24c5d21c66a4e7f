# SPDX-License-Identifier: Apache-2.0
"""The figures of a sweep, and what they are held against."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from torchtpu_core.testing.op_coverage import merge, unexpected
from torchtpu_core.testing.op_database import Outcome


def _raw(path: Path, samples: int | None, *outcomes: Outcome) -> Path:
    raw = {"samples": samples, "conditions": {}, "outcomes": [asdict(o) for o in outcomes]}
    path.write_text(json.dumps(raw))
    return path


def _outcome(name: str, status: str = "pass", **more: Any) -> Outcome:
    return Outcome(name, "torch.float32", status=status, samples=2, **more)


def test_merge_joins_shards_and_counts_what_was_tried(tmp_path: Path) -> None:
    first = _raw(tmp_path / "0", 2, _outcome("a"), _outcome("b", "wrong", failed=1, detail="far"))
    second = _raw(tmp_path / "1", 2, _outcome("c", fallbacks=["aten::c"]), _outcome("d", "skip"))
    (sweep,) = merge([first, second], tmp_path / "out")["sweeps"]
    assert (sweep["entries"], sweep["agree"], sweep["native"], sweep["samples"]) == (3, 2, 1, 6)
    assert sweep["agree_percent"] == pytest.approx(66.67)
    assert set(sweep["differ"]) == {"b"}
    assert sweep["on_host"] == {"c": ["aten::c"]}


def test_merge_replaces_a_sweep_of_the_same_dtype_and_form(tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge([_raw(tmp_path / "0", 2, _outcome("a", "wrong"))], out)
    (sweep,) = merge([_raw(tmp_path / "1", None, _outcome("a"))], out)["sweeps"]
    assert (sweep["agree"], sweep["samples_per_entry"]) == (1, "all")


def test_merge_of_shards_with_different_limits_raises(tmp_path: Path) -> None:
    shards = [_raw(tmp_path / "0", 2, _outcome("a")), _raw(tmp_path / "1", 3, _outcome("b"))]
    with pytest.raises(ValueError, match="another number of samples"):
        merge(shards, tmp_path / "out")


def test_unexpected_names_new_differences_and_entries_that_agree_now(tmp_path: Path) -> None:
    raw = _raw(tmp_path / "0", None, _outcome("new", "wrong"), _outcome("old"))
    sweeps = merge([raw], tmp_path / "out")["sweeps"]
    allowed = [{"entry": "old", "dtype": "float32"}, {"entry": "other", "dtype": "int64"}]
    found = unexpected(sweeps, allowed)
    assert [line.split()[0] for line in found] == ["new", "old"]
