# SPDX-License-Identifier: Apache-2.0
"""The flight recorder: the last collectives of this process, in the layout of PyTorch's own.

A ring of the ledger's records (`csrc/pending.h`), described only when somebody asks, so
recording costs one append. `snapshot` can be called at any time, from any thread; files are written
when a collective fails, as PyTorch's recorder does, and
``python -m torch.distributed.flight_recorder.fr_trace`` reads them.
"""

from __future__ import annotations

import os
import pickle
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchtpu_distributed import _C
from torchtpu_distributed.pending import Operand, Pending

if TYPE_CHECKING:
    from torchtpu_distributed.group import Group

#: Version of PyTorch's layout.
VERSION = "2.10"
#: The analyser knows a fixed list of libraries; this is its name for other accelerators'.
_LIBRARY = "xccl"
_DEFAULT_ENTRIES = 2000
_LINE = re.compile(r"(?P<of>backward of )?(?P<filename>.*):(?P<line>\d+)(?: in (?P<name>.*))?$")
_NAMES: Mapping[str, str] = {
    "all_gather_list": "all_gather",
    "all_gather": "_all_gather_base",
    "reduce_scatter_list": "reduce_scatter",
    "reduce_scatter": "_reduce_scatter_base",
}
_DTYPES: Mapping[str, str] = {
    "float32": "Float",
    "float64": "Double",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int8": "Char",
    "uint8": "Byte",
    "int16": "Short",
    "int32": "Int",
    "int64": "Long",
    "bool": "Bool",
    "complex64": "ComplexFloat",
    "complex128": "ComplexDouble",
}


class Recorder:
    """The ring of one process.

    Args:
        entries: how many records it keeps; by default ``TORCH_FR_BUFFER_SIZE``, or 2000.

    Attributes:
        records: the ring.
    """

    def __init__(self, entries: int | None = None) -> None:
        if entries is None:
            entries = int(os.environ.get("TORCH_FR_BUFFER_SIZE") or _DEFAULT_ENTRIES)
        self.records = _C.Records(entries)
        self._groups: dict[str, tuple[str, tuple[int, ...]]] = {}
        #: Wall clock minus monotonic clock, to turn the records' times into dates.
        self._epoch_s = time.time() - time.monotonic()

    def know(self, group: Group) -> None:
        """Keep a group's name and ranks."""
        self._groups[group.name] = (group.description, group.ranks)

    @property
    def used(self) -> bool:
        """Whether it has seen a collective."""
        return any(record.kind for record in self.records.last())

    def snapshot(self) -> dict[str, Any]:
        """All records, as JSON can hold them, in PyTorch's layout."""
        records = [r for r in self.records.last() if r.kind]  # without one: a group was made
        return {
            "version": VERSION,
            "comm_lib_version": "XLA",
            "pg_config": {
                name: {"name": name, "desc": description, "ranks": str(list(ranks))}
                for name, (description, ranks) in list(self._groups.items())
            },
            "pg_status": {
                name: _status([r for r in records if r.group == name and r.seq])
                for name in list(self._groups)
            },
            "entries": [self._entry(record) for record in records],
        }

    def _entry(self, record: Pending) -> dict[str, Any]:
        description, _ranks = self._groups.get(record.group, ("undefined", ()))
        return {
            "record_id": record.record_id,
            "pg_id": list(self._groups).index(record.group) if record.group in self._groups else 0,
            "process_group": [record.group, description],
            "collective_seq_id": record.seq,
            "p2p_seq_id": record.message,
            "op_id": record.record_id,
            "profiling_name": f"{_LIBRARY}:{_NAMES.get(record.kind, record.kind)}",
            "what": record.what,
            "time_created_ns": self._ns(record.began_s),
            "time_discovered_started_ns": self._ns(record.launched_s),
            "time_discovered_completed_ns": self._ns(record.done_s),
            "input_sizes": _sizes(record.inputs),
            "input_dtypes": _dtypes(record.inputs),
            "output_sizes": _sizes(record.outputs),
            "output_dtypes": _dtypes(record.outputs),
            "state": _state(record),
            "retired": record.done_s is not None,
            "timeout_ms": int(record.timeout_s * 1e3),
            "is_p2p": record.message > 0,
            "frames": _frames(record.line),
        }

    def _ns(self, moment_s: float | None) -> int | None:
        return None if moment_s is None else int((moment_s + self._epoch_s) * 1e9)


def write_if_asked(recorder: Recorder, rank: int) -> str:
    """After a failure, write the file that PyTorch's recorder would write; its path, or nothing.

    ``TORCH_FR_DUMP_TEMP_FILE`` is the path without the rank; ``TORCH_NCCL_DUMP_ON_TIMEOUT``
    set to true asks for a file at PyTorch's default path.
    """
    prefix = os.environ.get("TORCH_FR_DUMP_TEMP_FILE", "")
    asked = os.environ.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "").lower() in ("1", "true", "y", "yes")
    if not (prefix or asked):
        return ""
    path = f"{prefix or '/tmp/tpu_trace_rank_'}{rank}"
    with Path(path).open("wb") as file:
        pickle.dump(recorder.snapshot(), file)
    return path


def _status(records: Sequence[Pending]) -> dict[str, int]:
    def last(reached: Sequence[Pending]) -> int:
        return max((r.seq for r in reached), default=-1)

    return {
        "last_enqueued_collective": last(records),
        "last_started_collective": last([r for r in records if r.launched_s is not None]),
        "last_completed_collective": last([r for r in records if r.done_s is not None]),
    }


def _state(record: Pending) -> str:
    if record.done_s is not None:
        return "completed"
    return "started" if record.launched_s is not None else "scheduled"


def _sizes(operands: Sequence[Operand]) -> list[list[int]]:
    return [list(shape) for _dtype, shape in operands]


def _dtypes(operands: Sequence[Operand]) -> list[str]:
    names = [str(dtype).removeprefix("torch.") for dtype, _shape in operands]
    return [_DTYPES.get(name, name) for name in names]


def _frames(line: str) -> list[dict[str, Any]]:
    found = _LINE.match(line)
    if found is None:
        return []
    return [
        {
            "name": (found["of"] or "") + (found["name"] or "<module>"),
            "filename": found["filename"],
            "line": int(found["line"]),
        }
    ]
