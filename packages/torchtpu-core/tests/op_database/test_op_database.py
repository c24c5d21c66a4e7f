# SPDX-License-Identifier: Apache-2.0
"""PyTorch's operator database on the device: results and gradients are the CPU's.

Here the first float32 sample of every entry is tried, of half of them in the tests marked
slow; all samples, dtypes and forms are ``nox -s op_database``. What differs is listed in
``allowed.json`` with its reason, and what runs on the host in the lowering tables; both lists
may only shrink.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torchtpu_core.lowering.table import Kind
from torchtpu_core.runtime import tables
from torchtpu_core.testing import op_sources
from torchtpu_core.testing.op_database import entry_name, sweep_entry, sweep_sample

_ALLOWED: list[dict[str, Any]] = json.loads(Path(__file__).with_name("allowed.json").read_text())
_ALLOWED_NAMES = {
    row["entry"]
    for row in _ALLOWED
    if row["dtype"] in ("any", "float32") and "form" not in row and row["sample"] == 0
}
_SHARDS = 40
#: Other databases and forms: every so many entries, of one sample each.
_SAMPLED = (
    ("foreach", "plain", 12),
    ("foreach", "inplace", 12),
    ("python_ref_db", "plain", 40),
    ("op_db", "reference", 60),
    ("op_db", "empty", 20),
    ("op_db", "sparse_coo", 40),
    ("op_db", "sparse_csr", 40),
)


def _shards() -> list[Any]:
    """Every second one runs in CI, which has seconds for this, not minutes."""
    return [pytest.param(i, marks=pytest.mark.slow) if i % 2 else i for i in range(_SHARDS)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("shard", _shards())
def test_first_sample_of_each_entry_agrees_with_cpu(shard: int) -> None:
    entries = [
        op
        for op in op_sources.DATABASES["op_db"]()[shard::_SHARDS]
        if entry_name(op) not in _ALLOWED_NAMES
    ]
    outcomes = [sweep_entry(op, torch.float32, samples=1, backward=True) for op in entries]
    differ = [(o.name, o.detail) for o in outcomes if o.status not in ("pass", "skip")]
    assert not differ
    refused = [o.name for o in outcomes for overload in o.fallbacks if not _is_host(overload)]
    assert not refused, "these ran on the host without a row that says so"


def _is_host(overload: str) -> bool:
    names = (overload, overload.partition(".")[0])
    rows = [tables.current().get(name) for name in names]
    return any(row is not None and row.kind is Kind.HOST for row in rows)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("database", "form", "every"), _SAMPLED)
def test_sampled_entries_of_other_databases_agree_with_cpu(
    database: str, form: str, every: int
) -> None:
    label = op_sources.label(database, form)
    allowed = {row["entry"] for row in _ALLOWED if row.get("form") == label}
    able = _able(op_sources.DATABASES[database](), form)
    entries = [op for op in able[::every] if entry_name(op) not in allowed]
    outcomes = [
        sweep_entry(op, torch.float32, samples=1, backward=True, form=form) for op in entries
    ]
    assert not [(o.name, o.detail) for o in outcomes if o.status not in ("pass", "skip")]
    assert any(o.status == "pass" for o in outcomes)


def _able(entries: list[Any], form: str) -> list[Any]:
    """Entries that have samples of a form."""
    _, condition = op_sources.SAMPLERS.get(form, ("", "name"))
    return [op for op in entries if getattr(op, condition, None)]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("row", _ALLOWED, ids=lambda row: f"{row['entry']} {row['dtype']}")
def test_allowed_sample_still_differs(row: dict[str, Any]) -> None:
    entries = op_sources.DATABASES[row.get("database", "op_db")]()
    op = next(op for op in entries if entry_name(op) == row["entry"])
    dtype = torch.float32 if row["dtype"] == "any" else getattr(torch, row["dtype"])
    assert row["reason"]
    outcome = sweep_sample(op, dtype, row["sample"], row.get("form", "plain"))
    assert outcome.status not in ("pass", "skip"), "it agrees now: remove it from allowed.json"
