# SPDX-License-Identifier: Apache-2.0
"""What must hold of the five wheels before they are handed out.

python tools/inspect_wheels.py dist
"""

from __future__ import annotations

import email
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

from sources import ROOT, Problem, report

#: Distribution -> the packages its wheel holds.
CONTENT = {
    "torchtpu_core": {"torchtpu_core", "torch_tpu"},
    "torchtpu_eager": {"torchtpu_eager"},
    "torchtpu_compile": {"torchtpu_compile"},
    "torchtpu_distributed": {"torchtpu_distributed"},
    "torchtpu_kernels": {"torchtpu_kernels"},
}

#: Distribution -> its compiled modules, and what they are.
COMPILED = {"torchtpu_core": {"_C": "device", "_fluid": "network simulation"}}


def complaints(wheel: Path, version: str) -> Iterator[str]:
    """What is wrong with one wheel."""
    distribution = wheel.name.partition("-")[0]
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata_name = next(n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(metadata_name))
    if metadata["Version"] != version:
        yield f"version {metadata['Version']}, the repository has {version}"
    packages = {n.partition("/")[0] for n in names if ".dist-info/" not in n}
    if packages != CONTENT[distribution]:
        yield f"holds {sorted(packages)}, expected {sorted(CONTENT[distribution])}"
    requirements = metadata.get_all("Requires-Dist") or []
    if "torch<2.14,>=2.13" not in requirements:
        yield "does not pin the minor version of torch it was built against"
    for package in sorted(CONTENT[distribution]):
        if f"{package}/py.typed" not in names:
            yield f"{package}/py.typed is missing"
    if any(n.endswith((".cpp", ".h")) for n in names):
        yield "holds C++ sources"
    if not any(".dist-info/licenses/LICENSE" in n for n in names):
        yield "holds no licence"
    for module, what in COMPILED.get(distribution, {}).items():
        if not any(f"/{module}." in n and n.endswith(".so") for n in names):
            yield f"holds no compiled {what}"


def problems(folder: Path, version: str) -> list[Problem]:
    """What is wrong with the wheels of a folder."""
    wheels = sorted(folder.glob("*.whl"))
    found = [
        Problem(path=Path(wheel.name), line=1, message=message)
        for wheel in wheels
        for message in complaints(wheel, version)
    ]
    missing = CONTENT.keys() - {wheel.name.partition("-")[0] for wheel in wheels}
    return found + [
        Problem(path=folder, line=1, message=f"no wheel of {name}") for name in sorted(missing)
    ]


def main() -> int:
    """Inspect a folder; 0 if all is well."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    return report(problems(folder, (ROOT / "VERSION").read_text().strip()), "inspect_wheels")


if __name__ == "__main__":
    raise SystemExit(main())
