"""The lines of INFO: names once, values each time.

A part of a section is a `Lines` with the values of its fields. Its text is made by one format of
all lines, and only when a value has changed since the last time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

Section = dict[str, object]
WHOLE = re.compile("-?(0|[1-9][0-9]*)")


class Lines:
    """Consecutive lines of INFO: the names of their fields, and the format of each value. A format
    without a `%` is the value itself, which never changes."""

    __slots__ = ("_fields", "_form", "_text", "_values")

    def __init__(self, fields: Iterable[tuple[str, str]]) -> None:
        self._fields = list(fields)
        self._form = "".join(f"{name.replace('%', '%%')}:{form}\r\n" for name, form in self._fields)
        self._values: tuple[object, ...] | None = None
        self._text = ""

    def text(self, values: tuple[object, ...]) -> str:
        """The lines with these values. A field's values are always of one type."""
        if values != self._values:
            self._text = self._form % values
            self._values = values
        return self._text


def lines(*texts: str) -> Lines:
    """Each text is the name of a field, or `name:format`."""
    parts = (text.partition(":") for text in texts)
    return Lines((name, form or "%s") for name, _, form in parts)


Part = tuple[Lines, tuple[object, ...]]


@lru_cache(maxsize=64)
def _lines_named(names: tuple[str, ...]) -> Lines:
    return Lines((name, "%s") for name in names)


def part_of(fields: Mapping[str, object]) -> Part:
    """Lines whose names differ from time to time."""
    return _lines_named(tuple(fields)), tuple(fields.values())


def text_of(parts: Iterable[Part]) -> str:
    return "".join(part.text(values) for part, values in parts)


def fields_of(section: str | Iterable[Part]) -> Section:
    """The fields of a section by name; whole numbers as such."""
    text = section if isinstance(section, str) else text_of(section)
    pairs = (line.partition(":") for line in text.split("\r\n") if line)
    return {name: int(value) if WHOLE.fullmatch(value) else value for name, _, value in pairs}
