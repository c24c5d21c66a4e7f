# SPDX-License-Identifier: Apache-2.0
"""What compiled programs depend on besides the program itself: platform, versions, settings.

An executable depends on the platform: compiler, chip, CPU. What a trace lowers to depends
on the source of the lowering tables, on PyTorch and on settings; all of it is part of keys.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np
import torch
from jax._src.config import trace_context

import torchtpu_core
from torchtpu_core import plugins
from torchtpu_core.env_vars import settings
from torchtpu_core.runtime import clients, xla_options
from torchtpu_core.runtime.current import target

#: Below `torchtpu_core`: what decides how a trace is lowered and priced.
_SOURCES = ("lowering", "simulator", "hardware", "ici", "runtime", "units.py")
#: CPU flags that a compiler chooses instructions by; the others change with kernel,
#: microcode and hypervisor.
_ISA = re.compile(
    r"sse\w*|ssse3|pni|avx\w*|fma4?|xop|f16c|bmi[12]|v?aes|v?pclmulqdq|gfni|sha\w*|sm[34]|adx|abm|"
    r"popcnt|movbe|rdrand|rdseed|rdpid|fsgsbase|clflushopt|clwb|xsave\w*|amx\w*|apx\w*|lahf_lm|"
    r"cx16|mmx|prfchw|3dnowprefetch|serialize|movdiri|movdir64b|waitpkg|ptwrite|cldemote|uintr"
)
_CPU_LINES = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU part")
_CONFIG = (
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_disable_most_optimizations",
    "jax_compiler_enable_remat_pass",
)


@functools.cache
def host_facts() -> dict[str, str]:
    """What an executable depends on, by name."""
    device = clients.devices()[0]
    facts = {
        "platform": f"{device.platform} {clients.platform_version()}",
        "device kind": device.device_kind,
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }
    return facts | (_cpu_facts() if device.platform == "cpu" else {})


@functools.cache
def host() -> str:
    """Fingerprint of `host_facts`."""
    return digest(*(f"{name}={value}" for name, value in sorted(host_facts().items())))[:32]


def executable_key(stablehlo: str) -> str:
    """Key of the executable of a StableHLO module on this platform, for any one device."""
    options = [str(getattr(jax.config, name, None)) for name in _CONFIG]
    options.append(repr(xla_options.for_program(clients.devices()[0].platform, stablehlo)))
    return digest("executable", host(), *options, stablehlo)


def lowering_context() -> tuple[str, ...]:
    """What a trace lowers to depends on this, besides the trace; cheap after the first call."""
    with jax.enable_x64(True):
        traced_under = [text for text in map(repr, trace_context()) if " at 0x" not in text]
    return (
        host(),
        _versions(),
        _plugins(),
        repr(target().target),
        settings().numerics,
        str(torch.get_default_dtype()),
        torch.get_float32_matmul_precision(),
        *traced_under,
        *(str(getattr(jax.config, name, None)) for name in _CONFIG),
    )


def digest(*parts: str) -> str:
    """A hexadecimal digest of texts, told apart."""
    made = hashlib.blake2b(digest_size=32)
    for part in parts:
        data = part.encode()
        made.update(len(data).to_bytes(8, "little"))
        made.update(data)
    return made.hexdigest()


@functools.cache
def _versions() -> str:
    versions = (torch.__version__, np.__version__, *platform.python_version_tuple()[:2])
    return digest(*versions, *source_texts(Path(torchtpu_core.__path__[0])))


def source_texts(package: Path) -> Iterator[str]:
    """Names and texts of the files of `torchtpu_core` that decide what a trace lowers to."""
    for name in _SOURCES:
        path = package / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else (path,):
            yield str(file.relative_to(package))
            yield file.read_text()


@functools.cache
def _plugins() -> str:
    found = (f"{r.name} {r.distribution}" for r in plugins.records() if r.status == "loaded")
    return digest(*sorted(found))


def _cpu_facts() -> dict[str, Any]:
    facts = {"machine": platform.machine(), "threads": str(len(os.sched_getaffinity(0)))}
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().partition("\n\n")[0].splitlines() if cpuinfo.exists() else []
    for line in lines:
        name, _, value = (part.strip() for part in line.partition(":"))
        if name in _CPU_LINES:
            facts[f"CPU {name.removeprefix('CPU ')}"] = value
        elif name == "flags":
            facts["CPU features"] = " ".join(sorted(filter(_ISA.fullmatch, value.split())))
        elif name == "Features":
            facts["CPU features"] = " ".join(sorted(value.split()))
    return facts
