"""Names and texts in SQL, and the names of tables in the configuration and in messages."""

from __future__ import annotations

import re

_MODIFIER = re.compile(r"\(.*?\)")
_QUOTED = re.compile(r'(?<![&\w])"(?:[^"]|"")+"')
_BREAK = re.compile(r"\s*[\x00-\x1f\x7f\x85\u2028\u2029]\s*")
_ESCAPED = re.compile(r"[\\\x01-\x1f\x7f]")
_INTERVAL = re.compile(r"^interval [a-z ]+")
# Without a length, these names mean another type: character(1), bit(1).
_LENGTHLESS = {"character": "bpchar", "bit": '"bit"'}

PART = r'"((?:[^"]|"")+)"|([^".]+)'
TABLE = re.compile(rf"(?:(?:{PART})\.)?(?:{PART})")


def identifier(*names: str) -> str:
    """A name in SQL, quoted: of a column, or of a table after its schema.

    >>> identifier("public", 'a"b')
    '"public"."a""b"'
    """
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def shown(name: str) -> str:
    r"""A name in a message; quoted as in SQL if it could be misread.

    >>> shown("order id"), shown("a\tb")
    ('order id', '"a\tb"')
    """
    return name if name.isprintable() and '"' not in name else identifier(name)


def visible(text: str) -> str:
    r"""A text in which characters that cannot be seen are escaped as in SQL, within quoted names.

    >>> print(visible('ALTER TABLE "a\tb"'))
    ALTER TABLE U&"a\0009b"
    """
    return _QUOTED.sub(_visible_name, text)


def one_line(text: str) -> str:
    r"""A message in one line, with names that differ visibly. Blanks take the place of line
    breaks and tabs outside of names.

    >>> print(one_line('no "a\nb"\n\tin the table'))
    no U&"a\000Ab" in the table
    """
    return _BREAK.sub(" ", visible(text)).strip()


def _visible_name(found: re.Match[str]) -> str:
    if found[0].isprintable():
        return found[0]
    return "U&" + "".join(map(_visible_character, found[0]))


def _visible_character(one: str) -> str:
    if one == "\\":
        return "\\\\"
    if one.isprintable():
        return one
    return f"\\{ord(one):04X}" if ord(one) < 0x10000 else f"\\+{ord(one):06X}"


def literal(text: str) -> str:
    r"""A text in SQL, in one line, whatever `standard_conforming_strings` is.

    >>> literal("it's"), literal("a\\b")
    ("'it''s'", " E'a\\\\b'")
    """
    plain = "'" + text.replace("'", "''") + "'"
    return " E" + _ESCAPED.sub(_escape, plain) if _ESCAPED.search(text) else plain


def _escape(found: re.Match[str]) -> str:
    return "\\\\" if found[0] == "\\" else f"\\x{ord(found[0]):02x}"


def without_modifier(type_: str) -> str:
    """A type in SQL without its length, precision or fields. A cast to it changes no value.

    >>> without_modifier("character varying(3)"), without_modifier("bit(4)[]")
    ('character varying', '"bit"[]')
    >>> without_modifier("time(0) without time zone"), without_modifier("interval day to minute")
    ('time without time zone', 'interval')
    """
    if '"' in type_:
        return type_
    plain = _INTERVAL.sub("interval", _MODIFIER.sub("", type_))
    name, brackets, rest = plain.partition("[")
    return _LENGTHLESS.get(name, name) + brackets + rest


def table_name(schema: str, name: str) -> str:
    """A table as `schema.table`, or as `table` without a schema. A part with a dot, or with a
    character that cannot be seen, is quoted as in SQL, so that no two tables have the same name.

    >>> table_name("public", "orders"), table_name("my.schema", "orders")
    ('public.orders', '"my.schema".orders')
    """
    parts = [part for part in (schema, name) if part]
    return ".".join(
        identifier(part) if "." in part or part.startswith('"') or not part.isprintable() else part
        for part in parts
    )


def read_table_name(text: str) -> tuple[str, str]:
    """The schema and the name of a table; without a schema, the schema is empty. A part may be
    quoted as in SQL. Otherwise the last dot ends the schema. ValueError if a part is empty.

    >>> read_table_name("sales.items"), read_table_name('"my.table"')
    (('sales', 'items'), ('', 'my.table'))
    """
    found = TABLE.fullmatch(text)
    if found is not None:
        schema_quoted, schema, name_quoted, name = (part or "" for part in found.groups())
        return _unquoted(schema_quoted) or schema, _unquoted(name_quoted) or name
    plain_schema, dot, plain = text.rpartition(".")
    if not plain or (dot and not plain_schema):
        raise ValueError(f"{text!r} is not the name of a table")
    return plain_schema, plain


def _unquoted(part: str) -> str:
    return part.replace('""', '"')


# ------------------------------------------------------------ LSNs: places in a WAL

LSN = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def lsn_text(lsn: int) -> str:
    """An LSN as PostgreSQL writes it.

    >>> lsn_text(0x16B374D848)
    '16/B374D848'
    """
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def read_lsn(text: str) -> int:
    """
    >>> hex(read_lsn("16/B374D848"))
    '0x16b374d848'
    """
    found = LSN.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not an LSN")
    return (int(found[1], 16) << 32) | int(found[2], 16)
