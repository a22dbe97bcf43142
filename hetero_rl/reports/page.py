"""A report as one self-contained HTML file: no script, no request to anywhere, light and dark, wide and narrow.

A content security policy forbids what the page never does, so hostile text that slipped through could not act either.
"""

from collections.abc import Sequence
from itertools import starmap

from hetero_rl.reports.blocks import (
    Block,
    Cell,
    Column,
    Page,
    Paragraph,
    Plot,
    Section,
    Table,
    TokenStrip,
    TokenValue,
    plot_table,
)
from hetero_rl.reports.findings import Finding, worst_verdict
from hetero_rl.reports.plots import render_plot
from hetero_rl.reports.style import STYLE
from hetero_rl.reports.text import escape, format_number

__all__ = ["GAP_BANDS", "render_page"]

GAP_BANDS = (0.02, 0.1, 0.5)
"""Bounds of |log mu - log pi| in nats between the colours of a token; the same as `hetero-rl samples` uses."""

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def render_page(page: Page) -> str:
    """The whole document. Everything that is not markup of this module is escaped."""
    parts = [
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">',
        f"<title>{escape(page.title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(page.title)}</h1>",
        f'<p class="verdict {worst_verdict(page.findings).word}">{escape(page.first_line)}</p>',
        _facts(page.summary),
        *(_finding(finding) for finding in page.findings),
        *(_section(section) for section in page.sections),
        "</body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _facts(summary: Sequence[tuple[str, str]]) -> str:
    if not summary:
        return ""
    return (
        "<dl>"
        + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in summary)
        + "</dl>"
    )


def _finding(finding: Finding) -> str:
    word = finding.verdict.word
    subject = f"{escape(finding.subject)}: " if finding.subject else ""
    evidence = "".join(f"<li>{escape(sentence)}</li>" for sentence in finding.evidence)
    return (
        f'<div class="finding {word}"><b class="word">{word}</b> <b>{subject}{escape(finding.cause)}</b>'
        f"<ul>{evidence}</ul><p>Next step: {escape(finding.next_step)}</p></div>"
    )


def _section(section: Section) -> str:
    return (
        f"<section><h2>{escape(section.title)}</h2>" + "\n".join(map(_block, section.blocks)) + "</section>"
    )


def _block(block: Block) -> str:
    match block:
        case Paragraph():
            return f"<p>{escape(block.text)}</p>"
        case Table():
            return _folded(block)
        case Plot():
            return _figure(block)
        case TokenStrip():
            return _token_strip(block)


def _folded(table: Table) -> str:
    if not table.collapsed:
        return _table(table)
    return f"<details><summary>{escape(table.caption)}</summary>{_table(table)}</details>"


def _figure(plot: Plot) -> str:
    note = f'<p class="note">{escape(plot.note)}</p>' if plot.note else ""
    drawing = f"<figure><figcaption>{escape(plot.title)}</figcaption>{render_plot(plot)}{note}</figure>"
    return f'<div class="pair">{drawing}<figure>{_table(plot_table(plot))}</figure></div>'


def _table(table: Table) -> str:
    texts = [_is_text(table, index) for index in range(len(table.columns))]
    head = "".join(starmap(_heading, zip(table.columns, texts, strict=True)))
    body = "".join(
        "<tr>" + "".join(starmap(_cell, zip(row, table.columns, texts, strict=True))) + "</tr>"
        for row in table.rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><caption>{escape(table.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _is_text(table: Table, index: int) -> bool:
    return any(isinstance(row[index], str) for row in table.rows)


def _heading(column: Column, text: bool) -> str:
    unit = f" <small>[{escape(column.unit)}]</small>" if column.unit else ""
    return f'<th scope="col"{_class(text)}>{escape(column.name)}{unit}</th>'


def _cell(cell: Cell, column: Column, text: bool) -> str:
    return f"<td{_class(text)}>{escape(format_number(cell, column.digits))}</td>"


def _class(text: bool) -> str:
    return ' class="t"' if text else ""


def _token_strip(strip: TokenStrip) -> str:
    tokens = "".join(map(_token, strip.tokens))
    legend = " / ".join(f"{bound:g}" for bound in GAP_BANDS)
    return (
        f"<figure><figcaption>{escape(strip.caption)}</figcaption>"
        f'<p class="note">Colour: |log mu - log pi| of the token, bands at {legend} nats; '
        f'underlined above {GAP_BANDS[1]:g}.</p><div class="tokens">{tokens}</div></figure>'
    )


def _token(token: TokenValue) -> str:
    band = 1 + sum(token.value >= bound for bound in GAP_BANDS)
    hint = f"{token.hint} " if token.hint else ""
    title = escape(f"{hint}{format_number(token.value)} nats")
    return f'<span class="g{band}" title="{title}">{escape(token.text)}</span>'
