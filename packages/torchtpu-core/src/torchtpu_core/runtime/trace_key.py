# SPDX-License-Identifier: Apache-2.0
"""A key of a trace that is the same in every process and on every device of a kind.

It is a digest of a canonical text of the description: operators, attributes, operand
metadata, how views are read and written, liveness, donation; not the device's index and
not the user's lines. A trace that calls functions nobody can name has no key.
"""

from __future__ import annotations

from torchtpu_core import plugins
from torchtpu_core.lowering.table import Lowering
from torchtpu_core.runtime import fingerprints, tables
from torchtpu_core.runtime.trace_lowering import Description

_NOT_OF_NODES = frozenset({"row", "line", "site", "recent"})
_NOT_OF_TRACES = frozenset({"nodes", "device"})


def trace_key(description: Description) -> str | None:
    """The key, or None if the trace has to be lowered to know what it does."""
    text = canonical_text(description)
    return None if text is None else key_of("trace", text)


def key_of(kind: str, *texts: str) -> str | None:
    """The key of what texts say, under which a program is kept; None if one names unnamed things.

    Args:
        kind: of key.
        texts: the same in every process if they mean the same.
    """
    if plugins.manager().hook.torchtpu_cost_model.get_hookimpls():
        return None  # it prices the StableHLO of every program
    if any(" at 0x" in text for text in texts):
        return None
    return fingerprints.digest(kind, *fingerprints.lowering_context(), *texts)


def canonical_text(description: Description) -> str | None:
    """What a description says, apart from where it runs; None if it names unnamed things."""
    nodes = description["nodes"]
    rows = [identity(node["row"]) for node in nodes]
    if None in rows:
        return None
    fields = sorted(set().union(*nodes) - _NOT_OF_NODES)
    rest = sorted((name, description[name]) for name in description.keys() - _NOT_OF_TRACES)
    text = repr((fields, rows, [[node.get(field) for field in fields] for node in nodes], rest))
    return None if " at 0x" in text else text


def identity(row: Lowering) -> str | None:
    """A text that identifies what a row does; core's rows are covered by their source."""
    if row.cache_key:
        return f"{row.overload}={row.cache_key}"
    return row.overload if tables.is_core(row) else None
