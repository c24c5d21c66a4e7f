# SPDX-License-Identifier: Apache-2.0
"""A plan for a terminal: what a user wants to know first, then where it comes from."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from torchtpu_core.plan.result import Plan, relative
from torchtpu_core.units import format_bytes, format_seconds

BEST = 3
LINES = 8


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "chip"), counted(4096, "chip")
    ('1 chip', '4,096 chips')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def show(plan: Plan, console: Console) -> None:
    """Prints a plan."""
    chips = plan.where.torus.chips * plan.slices
    slices = f" x {plan.slices} slices" if plan.slices > 1 else ""
    console.print(
        Text(f"{plan.recording.script} on {plan.where.name}{slices}: ", style="bold")
        + Text(
            f"{counted(chips, 'chip')}, {counted(plan.recording.world_size, 'rank')}. "
            "All figures are simulated."
        )
    )
    if plan.faults:
        console.print(f"With faults: {', '.join(plan.faults.described())}.")
    if plan.compiler_report:
        versions = plan.compiler_report["compiler_versions"]
        fusions = plan.compiler_report["fusions"]
        console.print(
            f"Fusion, schedule and memory are those of XLA's TPU compiler (libtpu "
            f"{versions.get('libtpu', 'of unknown version')}): {fusions['count']} fusions, "
            f"{len(plan.compiler_report['collectives'])} collectives."
        )
    console.print(_headline(plan))
    if plan.roles:
        console.print(Group(Text(), _roles(plan)))
    console.print(Group(Text(), _memory(plan)))
    if plan.by_collective():
        console.print(Group(Text(), _network(plan)))
    console.print()
    console.print(_critical(plan))
    console.print()
    _advice(plan, console)
    for note in plan.notes:
        console.print(f"note: {note}")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, show_header=any(columns))
    for number, name in enumerate(columns):
        table.add_column(name, justify="left" if number == 0 else "right", overflow="fold")
    return table


def _headline(plan: Plan) -> RenderableType:
    table = _table("", "")
    memory = plan.memory
    verdict = "fits" if memory.fits else "DOES NOT FIT"
    replicas = f"x {plan.data_parallel:,} data-parallel ranks"
    rows = [("step", format_seconds(plan.step_s))]
    if plan.tokens_per_rank:
        rows.append(("tokens/s", f"{plan.tokens_per_s:,.0f}"))
        rows.append(("tokens/step", f"{plan.tokens_per_rank:,} {replicas}"))
    elif plan.samples_per_rank:
        rows.append(("samples/s", f"{plan.samples_per_s:,.0f}"))
        rows.append(("samples/step", f"{plan.samples_per_rank:,} {replicas}"))
    rows += [
        ("MFU (HFU with recomputation)", f"{plan.mfu:.1%} ({plan.hfu:.1%})"),
        (
            "HBM at the peak",
            f"{format_bytes(memory.peak_bytes)} of {format_bytes(memory.limit_bytes)} per device: "
            f"{verdict}",
        ),
    ]
    if plan.roles:
        most = max((role.plan.memory.peak_bytes, role.name) for role in plan.roles)
        worst = "all fit" if plan.fits else "NOT ALL FIT"
        rows.append(("of all roles", f"{format_bytes(most[0])} on {most[1]}: {worst}"))
    if memory.to_fit:
        rows.append(("to fit", memory.to_fit))
    for row in rows:
        table.add_row(*row)
    return table


def _roles(plan: Plan) -> RenderableType:
    table = _table("roles (simulated)", "done at", "waits for others", "HBM at the peak", "")
    for role in plan.roles:
        memory = role.plan.memory
        table.add_row(
            f"{role.name}{' (shown here)' if role.plan is plan else ''}",
            format_seconds(role.end_s),
            f"{format_seconds(role.waits_s)}, {role.waits_s / max(plan.step_s, 1e-30):.0%}",
            format_bytes(memory.peak_bytes),
            "fits" if memory.fits else "DOES NOT FIT",
        )
    return table


def _memory(plan: Plan) -> RenderableType:
    table = _table("HBM at the peak (simulated)", "size", "of it")
    held = [item for item in plan.memory.at_peak.items() if item[1]]
    for category, size in sorted(held, key=lambda item: -item[1]):
        share = size / max(plan.memory.peak_bytes, 1)
        table.add_row(str(category), format_bytes(size), f"{share:.0%}")
    for category, line, size in plan.memory.lines[:LINES]:
        if line and not line.startswith("(") and size >= plan.memory.peak_bytes / 1000:
            table.add_row(f"  {relative(line)} ({category})", format_bytes(size), "")
    return table


def _network(plan: Plan) -> RenderableType:
    placed = plan.schedule
    table = _table("communication (simulated)", "runs, links", "sent by a rank, link", "time")
    for name, one in sorted(plan.by_collective().items(), key=lambda item: -item[1].seconds):
        table.add_row(
            name, str(one.runs), format_bytes(int(one.sent_bytes)), format_seconds(one.seconds)
        )
    table.add_row("exposed", "", "", format_seconds(placed.exposed_s))
    table.add_row("hidden behind compute", "", "", format_seconds(placed.hidden_s))
    for number, link in enumerate(placed.links):
        title = "busiest link" if number == 0 else "links"
        table.add_row(
            f"{title}: {link.which if number == 0 else link.name}",
            f"{link.count:,}",
            format_bytes(int(link.sent_bytes)),
            f"{link.load:.0%} busy",
        )
    return table


def _critical(plan: Plan) -> RenderableType:
    table = _table("critical path (simulated)", "time", "of the step")
    for name, spent in list(plan.schedule.critical.items())[:LINES]:
        table.add_row(name, format_seconds(spent), f"{spent / max(plan.step_s, 1e-30):.0%}")
    for line, spent in plan.slowest_lines(LINES):
        share = spent / max(plan.step_s, 1e-30)
        table.add_row(f"  {relative(line)}", format_seconds(spent), f"{share:.0%}")
    return table


def _advice(plan: Plan, console: Console, count: int = BEST) -> None:
    if not plan.advice:
        console.print("Nothing found that would save a thousandth of the step.")
        return
    console.print(Text("What would help most (simulated)", style="bold"))
    for number, item in enumerate(plan.advice[:count], 1):
        console.print(f"{number}. {item.title}: -{format_seconds(item.gain_s)} ({item.share})")
        for text in filter(None, (item.why, ", ".join(map(relative, item.lines)))):
            console.print(Padding(Text(text), (0, 0, 0, 3), expand=False))


def show_advice(plan: Plan, console: Console) -> None:
    """Prints every piece of advice."""
    step = f"step {format_seconds(plan.step_s)} (simulated)"
    console.print(f"{plan.recording.script} on {plan.where.name}: {step}")
    worst = max((p.memory for p in plan.all_roles), key=lambda memory: memory.peak_bytes)
    if not worst.fits:
        peak, limit = format_bytes(worst.peak_bytes), format_bytes(worst.limit_bytes)
        console.print(f"It does not fit: {peak} of {limit} per device; {worst.to_fit}.")
    _advice(plan, console, len(plan.advice))
