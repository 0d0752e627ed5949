"""Names and texts in SQL."""

from __future__ import annotations


def identifier(*names: str) -> str:
    """A name in SQL, quoted: of a column, or of a table after its schema.

    >>> identifier("public", 'a"b')
    '"public"."a""b"'
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def literal(text: str) -> str:
    r"""A text in SQL, whatever `standard_conforming_strings` is.

    >>> literal("it's"), literal("a\\b")
    ("'it''s'", " E'a\\\\b'")
    """
    plain = "'" + text.replace("'", "''") + "'"
    return " E" + plain.replace("\\", "\\\\") if "\\" in text else plain
