# SPDX-License-Identifier: Apache-2.0
"""Where programs run: XLA's CPU client, a real TPU, or a simulated slice.

A `Target` is a name turned into facts. Choosing one starts nothing: no PJRT client is
made, neither torch nor JAX is imported, and a real TPU is looked for by its library
and its device files alone. What a target does is the runtime's part.
"""

from __future__ import annotations

import enum
import importlib.util
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path

from torchtpu_core import env_vars
from torchtpu_core.errors import MissingExtraError, TargetError, did_you_mean
from torchtpu_core.hardware.chip import Chip
from torchtpu_core.hardware.registry import ChipRegistry, chips
from torchtpu_core.ici.slices import (
    Slice,
    nearest_shapes,
    parse_slice,
    possible_shapes,
    shape_name,
)

# One VM with four chips: the smallest v5e slice with a network, and the VM of which all
# larger v5e slices are made, so that a script sees as many devices there as here.
DEFAULT_SIMULATED = "v5e:2x2"

_CLOUD_TYPE = re.compile(r"(?P<chip>v2|v3|v4|v5e|v5p|v6e)-(?P<count>\d{1,6})")
_COUNTED_IN_CHIPS = ("v5e", "v6e")
_DEVICE_FILES = ("accel[0-9]*", "vfio/[0-9]*")


class TargetKind(enum.Enum):
    """What stands behind the device ``tpu``."""

    CPU = "cpu"
    TPU = "tpu"
    SIMULATED = "simulated"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A place where programs run.

    Attributes:
        kind: cpu, tpu or simulated.
        name: what `parse_target` reads; part of the key of the program cache.
        slice_: the simulated slice, None for the other kinds.
    """

    kind: TargetKind
    name: str
    slice_: Slice | None = None

    def __post_init__(self) -> None:
        if (self.slice_ is None) is (self.kind is TargetKind.SIMULATED):
            raise TargetError(f"{self.name!r}: a simulated target, and no other, has a slice.")

    @property
    def simulated(self) -> bool:
        """Whether times and memory limits come from a model."""
        return self.kind is TargetKind.SIMULATED

    @property
    def chip(self) -> Chip | None:
        """The generation of a simulated target; the runtime asks a real one."""
        return self.slice_.chip if self.slice_ else None

    @property
    def local_devices(self) -> int | None:
        """Devices of this host; None for a real TPU, which PJRT counts."""
        if self.slice_ is not None:
            return self.slice_.devices_per_host
        return 1 if self.kind is TargetKind.CPU else None

    @property
    def hbm_bytes_per_device(self) -> int | None:
        """HBM that a device can use on a simulated target, else None."""
        return self.chip.hbm_device_bytes if self.chip else None

    @property
    def device_kind(self) -> str | None:
        """The name of the device, such as ``TPU v5e``; None where PJRT must be asked."""
        if self.chip is not None:
            return self.chip.device_kind
        return "cpu" if self.kind is TargetKind.CPU else None


CPU = Target(kind=TargetKind.CPU, name="cpu")
TPU = Target(kind=TargetKind.TPU, name="tpu")


def parse_target(text: str, registry: ChipRegistry | None = None) -> Target:
    """The target of a name: ``cpu``, ``tpu`` or a slice such as ``v5p:4x4x4``.

    Raises:
        TargetError: not a target; the message says what is.

    >>> parse_target("tpu7x:2x2x1").local_devices
    8
    """
    name = text.strip().lower()
    if name in ("cpu", "tpu"):
        return CPU if name == "cpu" else TPU
    if ":" not in name:
        meant = _meant(name, registry or chips()) or did_you_mean(name, ("cpu", "tpu"))
        raise TargetError(
            f"{text!r} is not a target.{meant} Use cpu, tpu, or a "
            "simulated slice: a chip, a colon and its shape, such as v5e:2x2 or v5p:4x4x4."
        )
    slice_ = parse_slice(name, registry)
    return Target(kind=TargetKind.SIMULATED, name=slice_.name, slice_=slice_)


def _meant(name: str, registry: ChipRegistry) -> str:
    """The slice of an accelerator type of Google Cloud, such as v5p-128, in a sentence.

    v2 to v4 and v5p are counted there in TensorCores, v5e and v6e in chips.
    """
    found = _CLOUD_TYPE.fullmatch(name.replace("v5litepod", "v5e"))
    if found is None:
        return ""
    chip, count = registry.get(found["chip"]), int(found["count"])
    if found["chip"] not in _COUNTED_IN_CHIPS:
        count //= 2
    shapes = [shape for shape in possible_shapes(chip) if math.prod(shape) == count]
    best = min(shapes or nearest_shapes(chip, (count,), 1), key=sum)
    near = "" if shapes else "nearest is "
    return f" {name} is {count} chips: {near}{chip.name}:{shape_name(best)}."


def resolve_target(text: str | None = None, registry: ChipRegistry | None = None) -> Target:
    """The target to use: `text`, else ``TORCH_TPU_TARGET``, else what this machine has.

    Raises:
        TargetError: not a target.
        MissingExtraError: ``tpu`` was asked for and libtpu is not installed.
    """
    chosen = text or env_vars.read("TORCH_TPU_TARGET")
    if chosen is None:
        return TPU if real_tpu_present() else parse_target(DEFAULT_SIMULATED, registry)
    target = parse_target(chosen, registry)
    if target.kind is TargetKind.TPU and not libtpu_installed():
        raise MissingExtraError.for_extra("tpu", "The target 'tpu'")
    return target


def libtpu_installed() -> bool:
    """Whether libtpu can be loaded: as a package, or named by ``TPU_LIBRARY_PATH``."""
    named = os.environ.get("TPU_LIBRARY_PATH")
    if named and Path(named).is_file():
        return True
    return importlib.util.find_spec("libtpu") is not None


def real_tpu_present(device_root: Path = Path("/dev")) -> bool:
    """Whether this machine has TPU device files and the library that drives them.

    libtpu alone is not enough, since people install it to compile ahead of time;
    a file under vfio alone is not, since other devices are passed through there too.
    """
    has_files = any(next(device_root.glob(pattern), None) for pattern in _DEVICE_FILES)
    return has_files and libtpu_installed()
