# SPDX-License-Identifier: Apache-2.0
"""`torchtpu cache`: what is kept, whether it is sound, and taking it elsewhere."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, ParamSpec, TypeVar

import typer
from rich.text import Text

from torchtpu_core import env_values, env_vars
from torchtpu_core.cache import Kind, places
from torchtpu_core.cache.directory import DirectoryStore
from torchtpu_core.cache.inspection import faults, headers
from torchtpu_core.cache.pack import Packed, read_pack, write_pack
from torchtpu_core.cache.shared import SharedStore
from torchtpu_core.cache.store import remove_oldest
from torchtpu_core.cli.console import print_table
from torchtpu_core.errors import TorchTPUError
from torchtpu_core.units import format_bytes

app = typer.Typer(help="Look after the cache of compiled programs.", no_args_is_help=True)

_DAY_S = 24 * 3600.0
_KEY_SHOWN = 12
P = ParamSpec("P")
T = TypeVar("T")
Match = Annotated[str, typer.Option(help="Only programs whose name contains this text.")]
Shared = Annotated[bool, typer.Option("--shared", help="The shared root instead.")]


def _refusing(command: Callable[P, T]) -> Callable[P, T]:
    """A command that says what refused it, instead of a traceback."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return command(*args, **kwargs)
        except (TorchTPUError, OSError) as error:
            raise _refusal(error) from error

    return run


@app.command("ls")
@_refusing
def list_entries(match: Match = "", kind: Kind | None = None, shared: Shared = False) -> None:
    """List the programs that are kept, the ones used last first."""
    now = time.time()
    rows = []
    kept = headers(_shared() if shared else _directory())
    for stored, header in sorted(kept, key=lambda pair: pair[0], reverse=True):
        name = Text("damaged", style="bold red") if header is None else Text(header.name)
        if match not in name.plain or (kind and (header is None or header.kind is not kind)):
            continue
        rows.append(
            (
                name,
                header.kind.value if header else "-",
                format_bytes(stored.size_bytes),
                _age(now - stored.used_at_s),
                header.host[:_KEY_SHOWN] if header else "-",
                stored.key[:_KEY_SHOWN],
            )
        )
    print_table(("program", "kind", "size", "used", "platform", "key"), rows)


@app.command()
@_refusing
def stats(shared: Shared = False) -> None:
    """Show how much is kept, and where."""
    store = _shared() if shared else _directory()
    kept = sorted(store.entries())
    total = sum(entry.size_bytes for entry in kept)
    rows = [
        ("place", store.place),
        ("entries", str(len(kept))),
        ("size", format_bytes(total)),
    ]
    if isinstance(store, DirectoryStore):
        found = [header for _, header in headers(store)]
        for kind in Kind:
            rows.append((f"{kind}s", str(sum(h is not None and h.kind is kind for h in found))))
        rows.append(("platforms", str(len({h.host for h in found if h is not None}))))
        rows.append(("bound", format_bytes(store.max_bytes)))
    if kept:
        now = time.time()
        rows.append(("used last", _age(now - kept[-1].used_at_s)))
        rows.append(("used first", _age(now - kept[0].used_at_s)))
    signed = "yes" if env_vars.settings().cache_key else "no (TORCH_TPU_CACHE_KEY)"
    rows.append(("signed", signed))
    print_table(("", ""), rows)


@app.command()
@_refusing
def prune(
    limit: Annotated[str, typer.Option(help="Remain below this size, such as 500MiB.")] = "",
    older_than_days: Annotated[
        float, typer.Option(help="Remove what was not used for so many days.")
    ] = float("inf"),
    everything: Annotated[bool, typer.Option("--all", help="Remove all.")] = False,
    shared: Shared = False,
) -> None:
    """Remove programs: without options, what exceeds the bound."""
    store = _shared() if shared else _directory()
    bound = 0 if everything else _limit(limit)
    if bound is None:
        bound = store.max_bytes if isinstance(store, DirectoryStore) else sys.maxsize
    cutoff = time.time() - older_than_days * _DAY_S
    removed = [entry for entry in store.entries() if entry.used_at_s < cutoff]
    for entry in removed:
        store.remove(entry.key)
    removed += remove_oldest(store, bound)
    size_bytes = sum(entry.size_bytes for entry in removed)
    typer.echo(f"Removed {len(removed)} entries, {format_bytes(size_bytes)}, of {store.place}.")


@app.command()
@_refusing
def verify(
    fix: Annotated[bool, typer.Option("--fix", help="Remove what would not be used.")] = False,
    shared: Shared = False,
) -> None:
    """Check every entry; exit code 1 if a damaged one remains."""
    store = _shared() if shared else _directory()
    count = sum(1 for _ in store.entries())
    found = list(faults(store, env_vars.settings().cache_key))
    for fault in found if fix else ():
        store.remove(fault.key)
    print_table(("key", "fault"), [(fault.key[:_KEY_SHOWN], fault.why) for fault in found])
    damaged = sum(fault.is_damage for fault in found)
    lone = len(found) - damaged
    said = f"{count} entries, {damaged} damaged" + (f", {lone} without executable" if lone else "")
    typer.echo(f"{said}{'; removed' if fix and found else ''}.")
    raise typer.Exit(code=1 if damaged and not fix else 0)


@app.command()
@_refusing
def pack(
    file: Annotated[Path, typer.Argument(help="The pack to write.")], match: Match = ""
) -> None:
    """Write the programs of this platform into one file, to warm another machine."""
    _report(_write(file, _directory(), match), f"packed into {file}")


@app.command()
@_refusing
def unpack(file: Annotated[Path, typer.Argument(help="The pack to read.")]) -> None:
    """Add a pack's programs to the directory; refuses one made on another kind of machine.

    Compiled programs are machine code: unpack only what comes from somebody you trust.
    """
    from torchtpu_core.runtime import fingerprints

    store = _directory()
    done = read_pack(
        file,
        store,
        host=fingerprints.host(),
        host_facts=fingerprints.host_facts(),
        secret=env_vars.settings().cache_key,
    )
    _report(done, f"added to {store.place}")


@app.command()
@_refusing
def build(
    file: Annotated[Path, typer.Argument(help="The pack to write.")],
    match: Annotated[str, typer.Option(help="Only operators whose name contains this.")] = "",
) -> None:
    """Compile the standard operators at common shapes for this platform, and pack them."""
    import tempfile

    from torchtpu_core.cli.standard_pack import compile_standard_ops

    with tempfile.TemporaryDirectory(prefix="torchtpu-pack-") as folder:
        store = DirectoryStore(Path(folder) / "cache", env_vars.settings().cache_max_bytes)
        compile_standard_ops(store.root, match)
        _report(_write(file, store, ""), f"packed into {file}")


def _write(file: Path, store: DirectoryStore, match: str) -> Packed:
    from torchtpu_core.runtime import fingerprints

    return write_pack(
        file,
        store,
        host=fingerprints.host(),
        host_facts=fingerprints.host_facts(),
        secret=env_vars.settings().cache_key,
        match=match,
    )


def _report(done: Packed, where: str) -> None:
    refused = f"; {done.refused} damaged ones left out" if done.refused else ""
    typer.echo(f"{done.programs} entries, {format_bytes(done.size_bytes)}, {where}{refused}.")


def _directory() -> DirectoryStore:
    store = places.directory()
    if store is None:
        raise _refusal("there is no cache directory: TORCH_TPU_CACHE_DIR is empty")
    return store


def _shared() -> SharedStore:
    try:
        store = places.shared()
    except (ValueError, ImportError) as error:
        raise _refusal(error) from error
    if store is None:
        raise _refusal("there is no shared root: set TORCH_TPU_CACHE_URL")
    return store


def _limit(text: str) -> int | None:
    if not text:
        return None
    try:
        return env_values.parse_bytes(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is no size; write 64KiB, 500MiB or 2GiB.") from error


def _age(seconds: float) -> str:
    for unit, unit_s in (("d", _DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= unit_s:
            return f"{seconds / unit_s:.0f} {unit} ago"
    return f"{max(seconds, 0):.0f} s ago"


def _refusal(why: object) -> typer.Exit:
    typer.echo(f"torchtpu cache: {why}", err=True)
    return typer.Exit(code=1)
