# SPDX-License-Identifier: Apache-2.0
"""One page that needs no network: cards, figures by Plotly, tables, in light and dark."""

from __future__ import annotations

import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtpu_core.errors import MissingExtraError

#: Data and layout, as Plotly takes them.
Figure = dict[str, Any]

_TEMPLATE = Path(__file__).with_name("page.html")
#: Cells with more letters are kept wide.
_LONG = 60

#: Colours of Okabe and Ito, which people with any colour vision tell apart.
BLUE, SKY, GREEN = "#0072B2", "#56B4E9", "#009E73"
RED, ORANGE, YELLOW, PINK, GREY = "#D55E00", "#E69F00", "#F0E442", "#CC79A7", "#999999"


@dataclass(frozen=True, slots=True)
class Card:
    """A figure at the top of a page.

    Attributes:
        name: what it is of.
        value: the figure with its unit.
        note: what belongs to it.
    """

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with a heading and a line that says how to read it."""

    title: str
    caption: str
    figure: Figure


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a heading."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What a page shows, from top to bottom."""

    title: str
    note: str
    cards: Sequence[Card]
    drawings: Sequence[Drawing]
    tables: Sequence[Table]


def write(page: Page, path: Path, what: str) -> None:
    """Writes a page.

    Args:
        page: its content.
        path: the file.
        what: the page, as an error names it.

    Raises:
        MissingExtraError: Plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingExtraError.for_extra("plan", what) from error
    text = _TEMPLATE.read_text(encoding="utf-8")
    figures = [drawing.figure for drawing in page.drawings]
    for mark, part in {
        "@TITLE@": html.escape(page.title),
        "@NOTE@": html.escape(page.note),
        "@CARDS@": "\n".join(map(_card, page.cards)),
        "@TABLES@": "\n".join(map(_table, page.tables)),
        "@SECTIONS@": "\n".join(_section(n, one) for n, one in enumerate(page.drawings)),
        "@FIGURES@": json.dumps(figures).replace("</", "<\\/"),
        "@PLOTLY@": get_plotlyjs().replace("</script", "<\\/script"),
    }.items():
        text = text.replace(mark, part)
    path.write_text(text, encoding="utf-8")


def _card(card: Card) -> str:
    return (
        f'<div class="card"><span>{html.escape(card.name)}</span><b>{html.escape(card.value)}</b>'
        f"<small>{html.escape(card.note)}</small></div>"
    )


def _section(number: int, drawing: Drawing) -> str:
    return (
        f'<section class="drawn"><h2>{html.escape(drawing.title)}</h2>'
        f"<p>{html.escape(drawing.caption)}</p>"
        f'<div id="figure{number}" class="figure"></div></section>'
    )


def _table(table: Table) -> str:
    title = html.escape(table.title)
    if not table.rows:
        return f"<section><h2>{title}</h2><p>None here.</p></section>"
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in table.head)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in table.rows)
    return (
        f"<section><h2>{title}</h2><table><thead><tr>{cells}</tr></thead>"
        f"<tbody>{body}</tbody></table></section>"
    )


def _cell(text: str) -> str:
    long = ' class="long"' if len(text) > _LONG else ""
    return f"<td{long}>{html.escape(text)}</td>"
