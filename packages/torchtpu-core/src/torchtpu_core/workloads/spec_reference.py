# SPDX-License-Identifier: Apache-2.0
"""Every key of a spec file as text, from the classes that read it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import MISSING, fields

from torchtpu_core.workloads import microbenchmarks, remat, spec

TABLES: dict[str, type] = {
    "(top level)": spec.Spec,
    "[hardware]": spec.Hardware,
    "[model]": spec.Model,
    "[model.experts]": spec.Experts,
    "[model.latent]": spec.LatentAttention,
    "[parallel]": spec.Parallel,
    "[train]": spec.Train,
    "[metric]": spec.Metric,
    "[benchmark]": spec.Benchmark,
    "[collective]": microbenchmarks.CollectiveRun,
    "[copy]": microbenchmarks.Copy,
    "[matmul]": microbenchmarks.Matmul,
    "[attention]": microbenchmarks.AttentionRun,
}


def keys_of(cls: type) -> Iterator[tuple[str, str, str]]:
    """Name, type and default of the keys of a table."""
    for field in fields(cls):
        default = field.default
        shown = "required" if default is MISSING else repr(default)
        shown = "see its table" if default is MISSING is not field.default_factory else shown
        yield field.name, str(field.type), shown


def text() -> str:
    """The tables one after another, for a terminal."""
    parts = [f"{inspect.getdoc(spec)}\n"]
    for name, cls in TABLES.items():
        parts.append(f"{name}\n{inspect.getdoc(cls)}\n")
        parts += [f"    {key}: {kind} = {default}" for key, kind, default in keys_of(cls)]
        parts.append("")
    policies = (f"    {name}: {', '.join(kept)}" for name, kept in remat.REMAT_POLICIES.items())
    parts += ["What a remat policy keeps beside a layer's input", *policies]
    return "\n".join(parts)
