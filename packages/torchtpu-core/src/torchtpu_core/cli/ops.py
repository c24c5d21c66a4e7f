# SPDX-License-Identifier: Apache-2.0
"""`torchtpu ops`: how an operator runs, and the start of a lowering for a new one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from torchtpu_core.cli.console import print_table
from torchtpu_core.cli.coverage import all_rows, why
from torchtpu_core.cli.scaffold import Scaffold, add_to_family, make_scaffold

app = typer.Typer(help="How operators run, and adding one.", no_args_is_help=True)

_FOUND = 0
_MISSING = 1


def how_it_runs(overload: str, rows: dict[str, tuple[str, Any]]) -> tuple[str, str, str]:
    """(how, by which row, why) of one overload.

    Args:
        overload: full name, such as ``aten::add.Tensor``.
        rows: (owner, row) by overload.
    """
    import torch

    from torchtpu_core.runtime.variants import is_left_to_torch, schemas_of

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

    def on_device(name: str) -> bool:
        return bool(has_kernel(name, "PrivateUse1"))

    for base, (_, row) in rows.items():
        name = overload.partition(".")[0]
        if base != overload and base.partition(".")[0] not in (name, name.removesuffix("_")):
            continue
        for served, schema in schemas_of(base):
            if served != overload or (served != base and served in rows):
                continue
            if served == base or on_device(served) or not is_left_to_torch(served, schema):
                return row.kind.value, base, why(row)
    if any(has_kernel(overload, f"Composite{how}Autograd") for how in ("Implicit", "Explicit")):
        return "composed", "", "PyTorch composes it of other operators"
    return "host", "", "it has no lowering for the device yet"


@app.command()
def show(
    operator: Annotated[str, typer.Argument(help="A name such as aten::add or aten::add.Tensor.")],
) -> None:
    """Show how every overload of an operator runs on the device, and why."""
    import torch

    name = operator if "::" in operator else f"aten::{operator}"
    base, _, variant = name.partition(".")
    schemas = torch._C._jit_get_schemas_for_operator(base)
    rows = {row.overload: (owner, row) for owner, row in all_rows()}
    lines = []
    for schema in schemas:
        full = f"{base}.{schema.overload_name}" if schema.overload_name else base
        if not variant or full == name:
            lines.append((full, *how_it_runs(full, rows)))
    if not lines:
        typer.echo(f"PyTorch {torch.__version__} has no operator {name}.", err=True)
        raise typer.Exit(_MISSING)
    print_table(("overload", "how", "row", "why"), lines)


@app.command()
def add(
    overload: Annotated[str, typer.Argument(help="Full overload name: aten::sinc.")],
    family: Annotated[str, typer.Option(help="File of torchtpu_core/lowering that takes it.")],
    root: Annotated[Path, typer.Option(help="The torchtpu-core package in your checkout.")] = Path(
        "packages/torchtpu-core"
    ),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print, write nothing.")] = False,
) -> None:
    """Write the function, the row and a test of a new lowering, from PyTorch's schema.

    The test compares with CPU PyTorch on samples of PyTorch's own operator database where
    it has the operator. It fails until you have written the function's one line.
    """
    try:
        scaffold = make_scaffold(overload, family)
    except ValueError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(_MISSING) from None
    if dry_run:
        typer.echo(f"{scaffold.function}\n{scaffold.row}\n\n{scaffold.test}")
        return
    written = add_to_family(scaffold, root)
    _explain(scaffold, written)


def _explain(scaffold: Scaffold, written: list[Path]) -> None:
    for path in written:
        typer.echo(f"wrote {path}")
    typer.echo(
        f"Now write the result of {scaffold.name}() with jax.lax, and run\n"
        f"    python -m pytest {written[-1]} -k {scaffold.test_name}"
    )
