# SPDX-License-Identifier: Apache-2.0
"""`torchtpu plan` and `torchtpu advise`: a script on a simulated slice, without values."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from torchtpu_core.cli.console import console
from torchtpu_core.cli.failure import DOES_NOT_FIT, shown
from torchtpu_core.cli.outputs import writable
from torchtpu_core.errors import did_you_mean

if TYPE_CHECKING:
    from torchtpu_core.ici.faults import Faults
    from torchtpu_core.ici.slices import Slice
    from torchtpu_core.plan.result import Plan


class ScriptCommand(TyperCommand):
    """A command that says where options of the script go, if it is given one."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses a command line; an option that is not this command's ends it."""
        options = {
            name: not getattr(parameter, "is_flag", False)
            for parameter in self.get_params(ctx)
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name.startswith("-")
        }
        mine, theirs = told_apart(args, options)
        unknown = [word.partition("=")[0] for word in theirs if word.startswith("-")]
        if not unknown or "--" in args:
            return super().parse_args(ctx, args)
        text = f"{ctx.command_path} has no option {unknown[0]}.{did_you_mean(unknown[0], options)}"
        if any(word.endswith(".py") for word in mine):
            line = shlex.join([*ctx.command_path.split(), *mine, "--", *theirs])
            text += f" Options of the script go after `--`:\n\n    {line}\n"
        typer.echo(text, err=True)
        raise typer.Exit(2)


def told_apart(words: Sequence[str], options: Mapping[str, bool]) -> tuple[list[str], list[str]]:
    """The command's own part of a command line without ``--``, and the script's.

    Args:
        words: the command line.
        options: the command's own, and whether each takes a value.

    >>> told_apart(["x.py", "--batch", "4", "--slices", "2"], {"--slices": True})
    (['x.py', '--slices', '2'], ['--batch', '4'])
    """
    mine: list[str] = []
    theirs: list[str] = []
    left = iter(words)
    for word in left:
        name, equals, _ = word.partition("=")
        if name in options:
            mine.append(word)
            mine += [next(left, "")] if options[name] and not equals else []
        elif word.startswith("-") or theirs or any(w.endswith(".py") for w in mine):
            theirs.append(word)
        else:
            mine.append(word)
    return mine, theirs


COMPILERS = ("simulator", "xla-tpu")
Script = Annotated[Path, typer.Argument(help="The script, as you would run it.")]
Arguments = Annotated[
    list[str] | None, typer.Argument(help="Its arguments, after `--`.", metavar="[-- ARGS]...")
]
Target = Annotated[str, typer.Option(help="The slice, such as v5p:8x8x16.")]
Slices = Annotated[int, typer.Option(help="Slices, joined by the data centre network.", min=1)]
Timeout = Annotated[
    float, typer.Option(help="Seconds that the script may run; 0 for any number.", min=0)
]
Chosen = Annotated[
    float,
    typer.Option(
        help="The share of their elements that masks are taken to choose, as in x\\[mask]: a plan "
        "has no values.",
        min=0,
        max=1,
    ),
]
FaultTexts = Annotated[
    list[str] | None,
    typer.Option(
        "--fault",
        help="What is wrong with the slice: cable:0-1=down, cable:0-1=0.5 (what is left of its "
        "rate), chip:5=0.5, late:7=2ms. Repeatable.",
    ),
]


@shown
def plan(
    script: Script,
    arguments: Arguments = None,
    target: Target = "v5e:2x2",
    slices: Slices = 1,
    fault: FaultTexts = None,
    ranks: Annotated[
        str | None,
        typer.Option(
            help="Ranks to record, such as 0,4: each stands for those up to the next. Without it "
            "they are found: ranks whose scripts take other branches, stages of pipelines."
        ),
    ] = None,
    json_: Annotated[
        Path | None, typer.Option("--json", help="Write all figures here.", callback=writable)
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write a page with timeline, roofline, memory, torus here; of a sweep, one with "
            "its choices.",
            callback=writable,
        ),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(help="Write a trace for ui.perfetto.dev here.", callback=writable),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="Vary an option of the script, --sweep=--tp=1,2,4, or try it without a flag and "
            "with it, --sweep=--remat. Repeatable."
        ),
    ] = None,
    compiler: Annotated[
        str,
        typer.Option(
            help="Whose schedule is priced: simulator, or xla-tpu (XLA's TPU compiler; needs the "
            "extra \\[tpu], but no TPU)."
        ),
    ] = "simulator",
    compiler_timeout: Annotated[
        float, typer.Option(help="Seconds that XLA's TPU compiler may take.", min=1)
    ] = 900.0,
    timeout: Timeout = 600.0,
    chosen: Chosen = 1.0,
) -> None:
    """Predict a script's step on a slice: time, memory, network, and what would help.

    The script runs unchanged, on shapes alone, until its second optimizer step: as one rank that
    stands for all, or as one for each role where ranks differ. Every figure is simulated. Ends
    with 3 if it does not fit in HBM.
    """
    if sweep:
        if trace is not None:
            raise typer.BadParameter("--trace shows one plan, not a --sweep of several.")
        from torchtpu_core.cli.script_sweep import show

        slice_ = _slice(script, target, fault or [])[0].name
        _numbers(ranks)
        options = ["--target", slice_, "--slices", str(slices), "--compiler", compiler]
        options += ["--compiler-timeout", str(compiler_timeout), "--timeout", str(timeout)]
        options += ["--chosen", str(chosen), *([] if ranks is None else ["--ranks", ranks])]
        options += [part for text in fault or () for part in ("--fault", text)]
        command = [str(script), *options, "--", *(arguments or ())]
        show(command, sweep, json_, html, f"{script.name} on {slice_}")
        return
    from torchtpu_core.plan import terminal

    made = _make(
        *(script, arguments or [], target, slices, fault or [], _numbers(ranks)),
        *(compiler, compiler_timeout),
        limit_s=timeout,
        chosen=chosen,
    )
    _write(made, json_, trace, html)  # first: who reads what is shown may stop, as `head` does
    terminal.show(made, console())
    if not made.fits:
        raise typer.Exit(DOES_NOT_FIT)


@shown
def advise(
    script: Script,
    arguments: Arguments = None,
    target: Target = "v5e:2x2",
    slices: Slices = 1,
    timeout: Timeout = 600.0,
    chosen: Chosen = 1.0,
) -> None:
    """List what would make a script faster on a slice, with each change's simulated gain."""
    from torchtpu_core.plan import terminal

    made = _make(script, arguments or [], target, slices, limit_s=timeout, chosen=chosen)
    terminal.show_advice(made, console())


def _write(made: Plan, json_: Path | None, trace: Path | None, html: Path | None) -> None:
    """Writes the files that were asked for."""
    from torchtpu_core.plan import html as page
    from torchtpu_core.plan import perfetto

    if json_ is not None:
        json_.write_text(json.dumps(made.as_json(), indent=1) + "\n", encoding="utf-8")
    if trace is not None:
        perfetto.write(made, trace)
    if html is not None:
        page.write(made, html)


def _numbers(text: str | None) -> list[int] | None:
    """Ranks from a command line; None if none are given."""
    from torchtpu_core.errors import PlanError

    try:
        return None if text is None else [int(number) for number in text.split(",")]
    except ValueError as error:
        raise PlanError(
            f"--ranks {text!r} is no list of numbers. Write 0,4, or leave it out: then the ranks "
            "are found."
        ) from error


def _slice(script: Path, target: str, fault_texts: Sequence[str]) -> tuple[Slice, Faults]:
    """The slice that a plan is for, and what is wrong with it.

    Raises:
        PlanError: there is no such script, or the target is no slice.
        FaultError: nothing can run on all of the slice.
    """
    from torchtpu_core.errors import PlanError
    from torchtpu_core.ici.faults import parse_faults, refuse_chips_down, refuse_cut
    from torchtpu_core.targets import parse_target

    if not script.is_file():
        raise PlanError.no_script(script)
    slice_ = parse_target(target).slice_
    if slice_ is None:
        raise PlanError(f"{target!r} is not a simulated slice. Pass one, such as v5p:4x4x8.")
    faults = parse_faults(fault_texts)
    faults.check(slice_.torus)
    refuse_chips_down(slice_, faults)
    refuse_cut(slice_, faults)
    return slice_, faults


def _make(
    script: Path,
    arguments: list[str],
    target: str,
    slices: int,
    fault_texts: Sequence[str] = (),
    ranks: Sequence[int] | None = None,
    compiler: str = "simulator",
    timeout_s: float = 0.0,
    *,
    limit_s: float = 0.0,
    chosen: float = 1.0,
) -> Plan:
    """The plan of a script."""
    from torchtpu_core.errors import PlanError, did_you_mean
    from torchtpu_core.targets import parse_target

    slice_, faults = _slice(script, target, fault_texts)
    if compiler not in COMPILERS:
        raise PlanError(
            f"no compiler {compiler!r}.{did_you_mean(compiler, COMPILERS)} Pass --compiler "
            f"{' or '.join(COMPILERS)}."
        )
    with_xla = compiler == "xla-tpu"
    if with_xla:
        from torchtpu_core import xla_tpu

        xla_tpu.require_libtpu("torchtpu plan --compiler xla-tpu")
        xla_tpu.topology_of(parse_target(target), slices)
    os.environ["TORCH_TPU_TARGET"] = slice_.name
    import torch

    from torchtpu_core.plan.making import make_plan
    from torchtpu_core.plan.roles import record_roles

    recordings = record_roles(
        *(script, arguments, slice_, slices, ranks),
        keep_calls=with_xla,
        limit_s=limit_s,
        chosen=chosen,
        say=_say,
    )
    precision = torch.get_float32_matmul_precision()
    made = make_plan(recordings, slice_, slices, precision, faults)
    if not with_xla:
        return made
    from torchtpu_core.plan.compiled import compiled_plan

    return compiled_plan(made, parse_target(target), timeout_s=timeout_s, progress=_progress)


def _progress(seconds: float, what: str) -> None:
    """Says that XLA's TPU compiler is still at work."""
    typer.echo(f"XLA's TPU compiler: {what}, {seconds:.0f} s so far", err=True)


def _say(text: str) -> None:
    """Says how far the script is."""
    typer.echo(text, err=True)
