"""What notebooks show of a value: a small table, in HTML. Made of what is known here, without asking a device.

Every text is escaped: names of devices, paths and messages come from elsewhere.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence

import attrs

__all__ = ["columns_table", "fields_table", "sized", "table"]

_STYLE = "text-align:left;vertical-align:top;padding:1px 8px"


def table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """Return a table with a title, and a row for each name and value. A value that is None has no row."""
    lines = [
        f'<tr><th style="{_STYLE}">{html.escape(name)}</th><td style="{_STYLE}">{_cell(value)}</td></tr>'
        for name, value in rows
        if value is not None
    ]
    return f'<table style="font-family:monospace">{_caption(title)}{"".join(lines)}</table>'


def fields_table(value: attrs.AttrsInstance) -> str:
    """Return a table of the fields of a value. Fields that are None or empty tuples are left out."""
    fields = [(each.name, getattr(value, each.name)) for each in attrs.fields(type(value))]
    return table(type(value).__name__, [(name, each) for name, each in fields if each != ()])


def columns_table(title: str, values: Sequence[attrs.AttrsInstance]) -> str:
    """Return a table with a column for each field, and a row for each of some values of one class."""
    if not values:
        return ""
    names = [each.name for each in attrs.fields(type(values[0]))]
    heads = "".join(f'<th style="{_STYLE}">{html.escape(name)}</th>' for name in names)
    lines = ["".join(f'<td style="{_STYLE}">{_cell(getattr(value, name))}</td>' for name in names) for value in values]
    body = "".join(f"<tr>{line}</tr>" for line in (heads, *lines))
    return f'<table style="font-family:monospace">{_caption(title)}{body}</table>'


def _caption(title: str) -> str:
    return f'<caption style="text-align:left;font-weight:bold">{html.escape(title)}</caption>'


def _cell(value: object) -> str:
    if isinstance(value, tuple) and any(hasattr(each, "_repr_html_") for each in value):
        return "".join(map(_cell, value))
    if isinstance(value, Mapping):
        return html.escape(", ".join(f"{key} {each}" for key, each in value.items() if each))
    shown = getattr(value, "_repr_html_", None)
    return str(shown()) if shown is not None else html.escape(str(value))


def sized(nbytes: int) -> str:
    """Return a number of bytes with a unit: "1.5 GiB"."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= factor:
            return f"{nbytes / factor:.4g} {unit}"
    return f"{nbytes} B"
