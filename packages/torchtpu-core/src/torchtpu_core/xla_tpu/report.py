# SPDX-License-Identifier: Apache-2.0
"""What XLA's TPU compiler decided about a program, as plain data and as an error's words.

The figures are the compiler's own; nothing ran. Imports neither torch nor JAX.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any

from torchtpu_core.errors import TPUCompileError
from torchtpu_core.units import format_bytes
from torchtpu_core.xla_tpu.buffers import Buffer, read_buffers, totals
from torchtpu_core.xla_tpu.compiling import Compiled
from torchtpu_core.xla_tpu.hlo import Instruction, Module, read
from torchtpu_core.xla_tpu.timing import scattered

#: How many buffers and fusions a report lists.
LISTED = 12
_LIMIT = re.compile(r"available HBM \(([^)]*)\)")
_KIND = re.compile(r"\bkind=k(\w+)")
_NO_CODE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all")


def report_of(compiled: Compiled) -> dict[str, Any]:
    """Memory, largest buffers, fusions and collectives of a compiled program."""
    module = read(compiled.hlo)
    return {
        "compiler": "xla-tpu",
        "compiler_versions": dict(compiled.versions),
        "compile_s": round(compiled.seconds, 3),
        "memory": memory_of(compiled),
        "largest_buffers": [
            _described(buffer) for buffer in read_buffers(compiled.buffers, module)[:LISTED]
        ],
        "fusions": fusions_of(module),
        "collectives": collectives_of(module),
    }


def memory_of(compiled: Compiled) -> dict[str, int]:
    """Bytes in HBM: the compiler's statistics, or the sums of its buffers."""
    stats, sums = compiled.stats, totals(compiled.buffers)
    if not stats:
        return {
            "argument_bytes": sums["argument"],
            "output_bytes": sums["output"],
            "temporary_bytes": sums["temporary"],
            "peak_bytes": sum(sums.values()),
        }
    return {
        "argument_bytes": stats["argument"],
        "output_bytes": stats["output"],
        "aliased_bytes": stats["alias"],
        "temporary_bytes": stats["temp"],
        "code_bytes": stats["generated_code"],
        "peak_bytes": stats["peak"],
    }


def fusions_of(module: Module) -> dict[str, Any]:
    """How many instructions run on the core, in which fusions, and the largest of these."""
    entry = module.computations.get(module.entry, [])
    fusions = [one for body in module.computations.values() for one in body if _is_fusion(one)]
    top = {one.name for one in entry}
    launched = [one for one in fusions if one.name in top]
    kinds = Counter(_kind(one) for one in launched)
    ranked = sorted(launched, key=lambda one: -sum(a.size_bytes for a in one.arrays))
    return {
        "count": len(launched),
        "by_kind": dict(kinds),
        "instructions": sum(one.opcode not in _NO_CODE for one in entry),
        "largest": [
            {
                "name": one.name,
                "kind": _kind(one),
                "operations": _operations(module, one),
                "result_bytes": sum(array.size_bytes for array in one.arrays),
                "line": module.line_of(one),
            }
            for one in ranked[:LISTED]
        ],
    }


def collectives_of(module: Module) -> list[dict[str, Any]]:
    """Each collective with its bytes and the algorithm that the compiler chose."""
    found = []
    fused = {name for one in module.find().values() if _is_fusion(one) for name in one.called}
    for name, body in module.computations.items():
        parts = [one.name for one in scattered(body)] if name in fused else []
        for one in body:
            kind = one.opcode.removesuffix("-start")
            if kind in COLLECTIVES and not one.opcode.endswith("-done"):
                made = body[-1] if one.name in parts else one
                found.append(
                    {
                        "kind": "reduce-scatter" if one.name in parts else kind,
                        "result_bytes": max((a.size_bytes for a in made.arrays), default=0),
                        "algorithm": algorithm_of(one),
                        "line": module.line_of(one),
                    }
                )
    return found


COLLECTIVES = frozenset(
    {"all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute"}
)


def algorithm_of(instruction: Instruction) -> str:
    """Emitter and strategy that the compiler chose for a collective, else empty.

    >>> from torchtpu_core.xla_tpu.hlo import read
    >>> line = 'ENTRY %e (a: f32[8]) -> f32[8] {\\n  %r = f32[8]{0} all-reduce(%a), '
    >>> line += 'backend_config={"emitter":"RotatedPincerEmitter","strategy":"StrategyRing"}\\n}'
    >>> algorithm_of(read(line).computations["e"][0])
    'RotatedPincerEmitter StrategyRing'
    """
    words = [re.search(rf'"{key}":"([^"]*)"', instruction.text) for key in ("emitter", "strategy")]
    return " ".join(match[1] for match in words if match and match[1])


def out_of_memory(error: TPUCompileError, target: str) -> str:
    """The words for a program that does not fit: its largest buffers with the user's lines."""
    module = read(error.hlo)
    buffers = read_buffers(error.buffers, module)
    limit = _LIMIT.search(error.message)
    room = f" of {limit[1]}" if limit else ""
    text = [
        f"the program does not fit the HBM{room} that a program can use on a device of {target}: "
        f"{error.message.strip().partition('. ')[0].rstrip('.')}."
    ]
    if buffers:
        text.append("The largest buffers, as XLA's TPU compiler placed them:")
        text += [f"  {_words(buffer)}" for buffer in buffers[:LISTED]]
    text.append(
        "Use a smaller batch or sequence, lower precision, checkpointing, more chips, or chips "
        "with more memory."
    )
    return "\n".join(text)


def _words(buffer: Buffer) -> str:
    where = f" at {buffer.line}" if buffer.line else ""
    return f"{format_bytes(buffer.size_bytes)}  {buffer.kind} {buffer.shape} ({buffer.name}){where}"


def _described(buffer: Buffer) -> dict[str, Any]:
    return {
        "kind": buffer.kind,
        "bytes": buffer.size_bytes,
        "shape": buffer.shape,
        "name": buffer.name,
        "line": buffer.line,
        "values": buffer.values,
    }


def _is_fusion(instruction: Instruction) -> bool:
    return instruction.opcode == "fusion"


def _kind(instruction: Instruction) -> str:
    match = _KIND.search(instruction.text)
    return match[1].lower() if match else "unknown"


def _operations(module: Module, fusion: Instruction) -> list[str]:
    """The operations of a fusion that compute, by how often they occur."""
    inside: Sequence[Instruction] = [
        one for name in fusion.called for one in module.computations.get(name, [])
    ]
    counted = Counter(one.opcode for one in inside if one.opcode not in (*_NO_CODE, "fusion"))
    return [name for name, _ in counted.most_common(6)]
