# SPDX-License-Identifier: Apache-2.0
"""From raw outcomes of PyTorch's own tests to the figures that the docs show.

    python -m torchtpu_core.testing.pytorch_summary raw --tests-of 2.6.0 \\
        --conditions "60 s per test" --out benchmarks/results/pytorch_tests.json

The raw folder is what `torchtpu_core.testing.pytorch_tests` writes. A failure that no row of
`REASONS` explains, and that neither the CPU shares nor Debug lacks, is listed with PyTorch's own
message. Rows that the file of figures has and the folder has not are kept, with their date.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torchtpu_core.testing.pytorch_tests import WAYS, outcomes

_PACKAGES = ("torch", "jax", "jaxlib", "torchtpu-core")
_ON_CPU = "fails on the CPU too: the test expects another version of PyTorch or of a library"
_LATER = "passes in Debug: the test looks for a mistake in values before the program has run"
#: A pattern of "test: message", and why such a test fails.
REASONS: tuple[tuple[str, str], ...] = (
    (
        r": Failed: Timeout|: Timeout",
        "took longer than the limit of a test: XLA compiles a program for each of many shapes",
    ),
    (r"quantized tensors do not exist", "the device has no quantized tensors"),
    (r"map_ is only implemented", "map_, map2_ and apply_ are for CPU tensors, in PyTorch itself"),
    (
        r"_lazy_clone|lazy_clone|_cow_",
        "copy-on-write storages (torch._lazy_clone, private) are of the CPU and CUDA",
    ),
    (r"test_tensor_storage_type", "classes of typed storages exist for the CPU and CUDA only"),
    (r"test_grad_scaling_state_dict", "the test takes every device but CUDA for the CPU"),
    (
        r"test_stable_sort_against_numpy.*index_fill",
        "the test makes an index on the CPU, for every device but CUDA",
    ),
    (
        r"test_unique_dim:",
        "rows with NaN: CPU's comparison puts them anywhere and repeats others, ours last",
    ),
    (
        r"test_strides_propagation",
        "an empty out= is resized with the strides that PyTorch's meta kernel states",
    ),
    (
        r"test_random_from_to.*UserWarning not triggered",
        "a warning is given once for each signature, the test calls twice",
    ),
    (r"ComplexHalf does not exist", "XLA has no complex32"),
    (
        r"test_float_to_int_conversion",
        "a float beyond the integers: undefined; XLA saturates, x86 gives the least integer",
    ),
    (
        r": AssertionError: \".*\" does not match \"",
        "refuses, or warns, as the test expects, but in other words",
    ),
)


def reason(test: str, detail: str) -> str | None:
    """Why a test fails, if that is known.

    >>> reason("TestX::test_y", "Failed: Timeout (>60.0s) from pytest-timeout.")
    'took longer than the limit of a test'
    """
    text = f"{test}: {detail}"
    return next((why for pattern, why in REASONS if re.search(pattern, text)), None)


def summarise_file(folder: Path, name: str) -> dict[str, Any]:
    """Counts of one test file in one mode, with its failures by reason and those without one.

    Args:
        folder: of outcomes in the mode that it is named by.
        name: of the test file, with dots for slashes.
    """
    journal = folder / f"{name}.jsonl"
    found = outcomes(journal)
    kinds = Counter(entry["outcome"] for entry in found.values())
    known: Counter[str] = Counter()
    unknown = {}
    for test, entry in found.items():
        if entry["outcome"] != "failed":
            continue
        again = {way: _outcome(folder / f"{name}.{way}.jsonl", test) for way in WAYS}
        why = _ON_CPU if again["cpu"] == "failed" else reason(test, entry["detail"])
        if why is None and again["debug"] == "passed":
            why = _LATER
        if why is None:
            unknown[test] = entry["detail"].splitlines()[0][:300]
        else:
            known[why] += 1
    return {
        "file": name.replace(".", "/"),
        "mode": folder.name,
        "date": datetime.fromtimestamp(journal.stat().st_mtime, UTC).date().isoformat(),
        **{kind: kinds[kind] for kind in ("passed", "failed", "skipped")},
        "reasons": dict(sorted(known.items())),
        "unexplained": unknown,
    }


def _outcome(journal: Path, test: str) -> str | None:
    return outcomes(journal).get(test, {}).get("outcome")


def summarise(
    raw: Path, tests_of: str, conditions: str, earlier: Sequence[dict[str, Any]] = ()
) -> dict[str, Any]:
    """The figures of all files of a folder, and `earlier` rows of others."""
    first = (p for p in raw.glob("*/*.jsonl") if p.stem.rpartition(".")[2] not in WAYS)
    rows = [*earlier, *(summarise_file(path.parent, path.stem) for path in first)]
    latest = {(row["file"], row["mode"]): row for row in rows}
    files = [latest[key] for key in sorted(latest)]
    environment = {package: version(package) for package in _PACKAGES}
    return {
        "command": "python -m torchtpu_core.testing.pytorch_tests DIR FILE...",
        "tests_of": tests_of,
        "conditions": conditions,
        "environment": environment | {"python": platform.python_version()},
        "totals": {kind: sum(f[kind] for f in files) for kind in ("passed", "failed", "skipped")},
        "files": files,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=Path, help="folder of outcomes")
    parser.add_argument("--tests-of", required=True, help="version of PyTorch the tests are of")
    parser.add_argument("--conditions", default="none", help="what else decides the outcomes")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(argv)
    earlier = json.loads(options.out.read_text())["files"] if options.out.exists() else ()
    content = summarise(options.raw, options.tests_of, options.conditions, earlier)
    options.out.write_text(json.dumps(content, indent=1) + "\n")
    print(content["totals"])


if __name__ == "__main__":
    main()
