"""Lines of INFO whose text is kept.

Most values of INFO have not changed since the last one. To compare them takes a tenth of the time
that their text takes.
"""

from __future__ import annotations


class Lines:
    """Consecutive lines of INFO, each ``name:`` and the place of a value (``%d``, ``%s``), or a
    constant. Values that change all the time belong in lines of their own."""

    def __init__(self, *lines: str) -> None:
        self._template = "".join(f"{line}\r\n" for line in lines)
        self._values: tuple[object, ...] | None = None
        self._text = ""

    def text(self, *values: object) -> str:
        """The lines with these values, one for each place."""
        if values != self._values:
            self._text = self._template % values
            self._values = values
        return self._text
