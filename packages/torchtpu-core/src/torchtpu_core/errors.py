# SPDX-License-Identifier: Apache-2.0
"""The exceptions of the backend: one class per kind of mistake.

Each class derives from the Python class that code written for CPU or CUDA already
catches, and from `TorchTPUError`, so that one ``except`` can catch everything this
project raises. A message says what happened, why, and how to fix it, with the
values; the class methods word the common cases so that they read the same wherever
they are raised.

Imports neither torch nor JAX. Running out of HBM is therefore not here: it is raised
as ``torch.OutOfMemoryError``, which training loops catch to retry a smaller batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Self


def nearest(name: str, known: Iterable[str], count: int = 1) -> list[str]:
    """The known names most similar to `name`, best first, at most `count`.

    Half of its letters are not enough: v9 is not near v7. Of equals, those that begin alike are
    first: v5x is nearer to v5e than to v7x.

    >>> nearest("TORCH_TPU_TARGTE", ["TORCH_TPU_LOG", "TORCH_TPU_TARGET"])
    ['TORCH_TPU_TARGET']
    >>> nearest("v5x", ["v7x", "v5p", "v5e", "v4"], count=2)
    ['v5p', 'v5e']
    """
    import difflib
    import itertools

    spelled = {candidate.lower(): candidate for candidate in known}
    compared = difflib.SequenceMatcher(b=name.lower())
    ranks: list[tuple[float, int, str]] = []
    for candidate in spelled:
        compared.set_seq1(candidate)
        pairs = zip(candidate, name.lower(), strict=False)
        begins_alike = sum(1 for _ in itertools.takewhile(lambda two: two[0] == two[1], pairs))
        ranks.append((compared.ratio(), begins_alike, candidate))
    best = sorted((one for one in ranks if one[0] >= 0.55), reverse=True)
    return [spelled[candidate] for _, _, candidate in best[:count]]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A sentence that suggests the nearest known name, or an empty string.

    >>> did_you_mean("debgu", ["debug", "strict"])
    " Did you mean 'debug'?"
    """
    best = nearest(name, known)
    return f" Did you mean {best[0]!r}?" if best else ""


class TorchTPUError(RuntimeError):
    """Base of every error this project raises.

    What: a request the backend understood and cannot serve, or could not carry out.
    Fix: see the message; each subclass documents its own kind.
    """


class DeviceIndexError(TorchTPUError):
    """A device index that this process does not have.

    Why: each process sees the devices of its own host only.
    Fix: use an index below ``torch.tpu.device_count()``, or choose a larger target.
    """

    @classmethod
    def for_index(cls, index: int, count: int, target: str = "") -> Self:
        """The error for `index` where `count` devices are visible."""
        where = f" of target {target!r}" if target else ""
        valid = f"Valid indices are 0 to {count - 1}" if count else "No index is valid"
        return cls(
            f"tpu:{index} does not exist: this process sees {count} tpu device(s){where}. "
            f"{valid}; TORCH_TPU_TARGET chooses a target with more devices."
        )


class DeferredIndexError(TorchTPUError, IndexError):
    """An index out of range, found when the program ran.

    Why: index values live on the device, so they are checked there, after the call.
    Fix: correct the index at the line the message names.
    """

    @classmethod
    def at_call(cls, message: str, where: str) -> Self:
        """CPU's wording of the mistake, with the user's line of the call."""
        return cls(f"{message} (called at {where}; the check ran later, on the device)")


class ProgramFailedError(TorchTPUError):
    """XLA could not compile or run a program, and not for want of memory.

    Why: what it calls outside of XLA failed, such as a kernel's function on the host, or the
    device did.
    Fix: mend the call that the message quotes, at the line that it names.
    """


class UnsupportedOpError(TorchTPUError, NotImplementedError):
    """An operator that has no lowering and no way to run on the host.

    Fix: rewrite the line with supported operators, move the tensors to CPU, or
    register a lowering from a plugin (hook ``torchtpu_register_lowerings``).
    """

    @classmethod
    def for_op(cls, overload: str, why: str = "it has no lowering") -> Self:
        """The error for a full overload name such as ``aten::add.Tensor``."""
        return cls(
            f"{overload} cannot run on tpu: {why}. Move its tensors to the CPU for this call "
            "with .cpu(), or register a lowering with the hook torchtpu_register_lowerings."
        )


class HostOnlyError(UnsupportedOpError):
    """An operator that XLA compiles for no real TPU with operands of these dtypes.

    Why: `torchtpu_core.lowering.tpu_limits` says it of each. Eager modes and compiled graphs
    on a TPU run such an operator on the host and warn; a program made ahead of time cannot.
    Fix: use float32, or compute it on the CPU.
    """

    @classmethod
    def for_op(cls, overload: str, why: str = "XLA does not compile it for a TPU") -> Self:
        """The error for a full overload name such as ``aten::_fft_r2c``."""
        return cls(
            f"{overload} cannot run on tpu: {why}. Use 32-bit operands, or move them to the CPU "
            "for this call with .cpu()."
        )


class FallbackRefusedError(TorchTPUError):
    """A host fallback that the user asked to treat as an error.

    Why: ``TORCH_TPU_FALLBACK=error`` is set, and the operator runs on the host.
    Fix: replace the operator, or set ``TORCH_TPU_FALLBACK=warn``.
    """

    @classmethod
    def for_op(cls, overload: str, reason: str, where: str = "") -> Self:
        """The error for an overload, the reason of its table row, the user's line."""
        line = f" at {where}" if where else ""
        return cls(
            f"{overload}{line} would run on the host: {reason}. TORCH_TPU_FALLBACK=error "
            "forbids it; replace the operator or set TORCH_TPU_FALLBACK=warn."
        )


class MissingExtraError(TorchTPUError, ImportError):
    """A part of the project that is not installed.

    Fix: run the pip command in the message.
    """

    @classmethod
    def for_extra(cls, extra: str, needed_for: str, disabled: Iterable[str] = ()) -> Self:
        """The error with the exact pip command for an extra of torchtpu-core.

        Args:
            extra: its name, which is the plugin's too.
            needed_for: what the user asked for.
            disabled: the plugins the user turned off.
        """
        if extra in disabled:
            return cls(
                f"{needed_for} needs the plugin {extra!r}, which TORCH_TPU_DISABLE_PLUGINS has "
                "turned off. Take it out of that variable."
            )
        return cls(
            f"{needed_for} needs the {extra!r} extra, which is not installed. "
            f"Install it with: pip install 'torchtpu-core[{extra}]'"
        )


class ModeMissingError(TorchTPUError):
    """An eager operator was called and no execution mode can run it.

    Why: core alone creates, copies and prints tensors; eager modes are a plugin.
    Fix: ``pip install 'torchtpu-core[eager]'``, or load the plugin you disabled.
    """

    @classmethod
    def for_op(cls, overload: str, disabled: Iterable[str] = ()) -> Self:
        """The error for an operator; `disabled` are the plugins the user turned off."""
        names = ", ".join(sorted(disabled))
        note = f" (TORCH_TPU_DISABLE_PLUGINS has turned off: {names})" if names else ""
        return cls(
            f"{overload} cannot run on tpu: no execution mode is loaded{note}. "
            "Install one with: pip install 'torchtpu-core[eager]'"
        )


class TargetError(TorchTPUError, ValueError):
    """A target, chip or slice that does not exist or cannot be used here.

    Fix: choose one of the targets in the message (``TORCH_TPU_TARGET``).
    """


class MeshShapeError(TorchTPUError, ValueError):
    """A mesh of devices or chips that cannot be formed.

    Fix: use one of the shapes in the message.
    """


class FaultError(TorchTPUError):
    """A fault that makes what was asked impossible, or that cannot be.

    Why: a collective needs all its chips, and a way between them.
    Fix: use one of the slices in the message, or repair the link it names.
    """


class EnvironmentVariableError(TorchTPUError, ValueError):
    """An unknown ``TORCH_TPU_*`` variable, or a value outside the allowed ones.

    Why: a misspelled setting that is ignored silently costs more than an error.
    Fix: use the name or the value in the message.
    """


class PluginError(TorchTPUError):
    """A plugin that contradicts another, or that broke while it was used.

    Fix: update or remove it, or disable it with ``TORCH_TPU_DISABLE_PLUGINS=<name>``.
    """

    @classmethod
    def for_plugin(cls, name: str, what: str) -> Self:
        """The error that names the plugin and how to disable it."""
        return cls(
            f"Plugin {name!r}: {what}. Disable it with TORCH_TPU_DISABLE_PLUGINS={name} "
            "or update the package that provides it."
        )


class LoweringTableError(TorchTPUError):
    """A row of a lowering table that contradicts another row or the schema.

    Why: a duplicate or unknown overload is a mistake in a table, never a choice.
    Fix: remove the row, or correct its overload name.
    """


class ProgramTextError(TorchTPUError, ValueError):
    """A program text that the simulator cannot read.

    Why: the cost reader takes StableHLO in the textual form that JAX prints.
    Fix: pass ``jax.jit(f).lower(...).as_text()``.
    """


class TimelineError(TorchTPUError):
    """An event that the simulated timeline cannot place.

    Fix: record an event before its time is asked for; durations are not negative.
    """


class SpecError(TorchTPUError, ValueError):
    """A file that describes a workload is wrong.

    Fix: the message names the file, the key and the nearest known one.
    """


class PlanError(TorchTPUError):
    """A plan or a sweep cannot be made.

    Fix: see the message: it says what the script or the mesh lacks.
    """

    @classmethod
    def no_script(cls, script: Path) -> Self:
        """The error for a script that is not there, with the nearest one beside it."""
        beside = {path.stem: path for path in script.parent.glob("*.py")}
        meant = nearest(script.stem, beside)
        near = f" Did you mean {beside[meant[0]]}?" if meant else ""
        return cls(f"{script} is not a file.{near} Pass the script that you would run.")


class CompilerTargetError(TorchTPUError, ValueError):
    """A target that XLA's TPU compiler does not compile for.

    Fix: name a slice of a generation in the message.
    """


class CompilerTimeoutError(TorchTPUError, TimeoutError):
    """XLA's TPU compiler took longer than it may.

    Fix: a larger time-out, or a smaller program (layers in a loop, fewer of them).
    """

    @classmethod
    def after(cls, seconds: float, target: str) -> Self:
        """The error for a time-out."""
        return cls(
            f"XLA's TPU compiler had not finished the program for {target} after {seconds:.0f} s "
            "and was stopped. Pass a larger timeout_s, or make the program smaller: fewer layers, "
            "or the same layer in a loop."
        )


class TPUCompileError(TorchTPUError):
    """XLA's TPU compiler refused a program, or ended without an answer.

    Attributes:
        message: the compiler's own words.
        hlo: the program at that point, if the compiler ran out of memory.
        buffers: its buffers, likewise.

    Fix: see the compiler's words; for memory, a smaller batch or more chips.
    """

    message: str = ""
    hlo: str = ""
    buffers: str = ""

    @classmethod
    def refused(cls, target: str, message: str, hlo: str, buffers: str) -> Self:
        """The error for a program that the compiler refused."""
        error = cls(f"XLA's TPU compiler refused the program for {target}: {message}")
        error.message, error.hlo, error.buffers = message, hlo, buffers
        return error

    @classmethod
    def died(cls, target: str, status: int, said: str) -> Self:
        """The error for a compiler process that ended without an answer."""
        return cls(
            f"The process of XLA's TPU compiler for {target} ended with status {status} and no "
            f"result. If it was killed, it needs more memory (1 to 2 GB). It said last:\n{said}"
        )

    @property
    def out_of_memory(self) -> bool:
        """Whether the program does not fit the device's HBM."""
        return "RESOURCE_EXHAUSTED" in self.message and "HBM" in self.message.upper()


class UnpublishedFigureError(TorchTPUError):
    """A model needs a figure of the chip that its maker has not published.

    Why: an invented number would look like a prediction.
    Fix: simulate another chip, or add the figure, with its source, from a plugin
    (hook ``torchtpu_register_chips``).
    """


class NonFiniteError(TorchTPUError):
    """Debug mode found NaN or infinity in the result of an operator.

    Fix: look at the operands of the operator at the line in the message.
    """


class MismatchError(TorchTPUError):
    """Debug mode found a result that differs from the CPU's beyond the tolerance.

    Fix: report it with the operator and operands in the message.
    """


class DamagedEntryError(TorchTPUError):
    """Bytes that are not the entry they should be.

    Why: truncated, altered, written by another version, or signed with another key.
    Fix: none needed: such an entry is compiled anew and replaced.
    """


class UnsafeDirectoryError(TorchTPUError):
    """A cache directory that other users can write to.

    Why: a compiled program is machine code, so whoever can write there can run code here.
    Fix: choose a directory of your own, or take the others' right to write away.
    """


class PackError(TorchTPUError):
    """A file that is not a pack, or one made on another kind of machine.

    Why: a compiled program uses the instructions of the CPU, or the TPU, it was made for.
    Fix: make the pack on a machine of this kind, with the same versions.
    """
