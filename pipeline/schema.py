"""The columns of a schema.

The user's schema is the only column pruning that Spark's Python sources have, so a column that is
not requested must cost nothing. `key`, `id`, `ts`, `ms`, `seq` and `fields` are parts of an entry;
any other column is the field of that name, cast to the column's type.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from millstream.pipeline.casting import castable
from millstream.pipeline.source_options import OptionError
from millstream.storage.blocks.columns import Kind

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

# The default schema, and the type of a column that the option `columns` names without one.
DEFAULT_COLUMNS = ("key", "id", "ts", "fields")
PARTS = {
    "key": "string",
    "id": "string",
    "ts": "timestamp",
    "ms": "bigint",
    "seq": "decimal(20,0)",
    "fields": "map<string,string>",
}
ALLOWED = {
    "key": "string or binary",
    "id": "string",
    "ts": "timestamp",
    "ms": "bigint or decimal(20,0)",
    "seq": "bigint or decimal(20,0)",
    "fields": "map<string,string>, map<string,binary> or array<struct<name: string, value: string>>"
    " (either may have binary in place of string)",
}

# Spark's names for types that have other names in Arrow.
_TYPE_NAMES = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


_NAME = re.compile(r"`(?:[^`]|``)*`|[^\s`]+")


def default_schema(columns: str | None) -> str:
    """The DDL of the option `columns`: names with optional types; the default schema for None."""
    wanted = (
        [(name, None) for name in DEFAULT_COLUMNS] if columns is None else split_columns(columns)
    )
    return ", ".join(
        f"{_quoted(name)} {type_ or PARTS.get(name, 'string')}" for name, type_ in wanted
    )


def check_columns(columns: str | None, schema: StructType) -> None:
    """OptionError when the user gave a schema and the option `columns` names other columns: Spark
    would ignore the option."""
    if columns is None:
        return
    named = [name for name, _ in split_columns(columns)]
    if named != schema.names:
        raise OptionError(
            f"option 'columns' names {', '.join(named)}, and the schema {', '.join(schema.names)}:"
            " give one of both"
        )


def split_columns(columns: str) -> list[tuple[str, str | None]]:
    """Split `a, b double, c map<string,string>` into names and types. Commas inside brackets and
    backquotes do not separate."""
    parts: list[str] = [""]
    depth, quoted = 0, False
    for letter in columns:
        quoted ^= letter == "`"
        depth += (letter in "<(") - (letter in ">)") if not quoted else 0
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    found = []
    for part in parts:
        name = _NAME.match(part.strip())
        if name is None:
            raise OptionError(f"option 'columns' is {columns!r}; a name is missing in it")
        type_ = part.strip()[name.end() :].strip()
        found.append((_unquoted(name.group()), type_ or None))
    return found


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# ------------------------------------------------------------------------------------- asked for


@dataclass(frozen=True)
class ColumnPlan:
    """One requested column: what the decoder provides for it, and its Arrow type."""

    name: str
    kind: Kind
    type: pa.DataType


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema that Spark derives from its own schema and requires of batches."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def plan_columns(arrow: pa.Schema) -> list[ColumnPlan]:
    """The requested columns; OptionError names the first one that cannot be read."""
    return [_column(field) for field in arrow]


def _column(field: pa.Field) -> ColumnPlan:
    kind = _kind(field.name, field.type)
    if kind in (Kind.FIELD, Kind.TS) and not field.nullable:
        raise OptionError(
            f"column {field.name!r} cannot be NOT NULL: it is null where an entry has no such value"
        )
    return ColumnPlan(field.name, kind, field.type)


def _kind(name: str, wanted: pa.DataType) -> Kind:
    kind = _PARTS[name](wanted) if name in _PARTS else _field_kind(wanted)
    if kind is None:
        allowed = ALLOWED.get(
            name, "string, binary, boolean, a number, decimal, date or timestamp (as any field is)"
        )
        raise OptionError(f"column {name!r} cannot be {type_name(wanted)}; it may be {allowed}")
    return kind


def type_name(type_: pa.DataType) -> str:
    """Spark's name of the type."""
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_list(type_):
        return f"array<{type_name(type_.value_type)}>"
    if pa.types.is_map(type_):
        return f"map<{type_name(type_.key_type)},{type_name(type_.item_type)}>"
    if pa.types.is_struct(type_):
        return f"struct<{', '.join(f'{one.name}: {type_name(one.type)}' for one in type_)}>"
    return _TYPE_NAMES.get(type_, str(type_))


def is_text(wanted: pa.DataType) -> bool:
    return wanted in (pa.utf8(), pa.binary())


def _field_kind(wanted: pa.DataType) -> Kind | None:
    return Kind.FIELD if is_text(wanted) or castable(wanted) else None


def _number_kind(wanted: pa.DataType, integer: Kind, decimal: Kind) -> Kind | None:
    if wanted == pa.int64():
        return integer
    return decimal if wanted == pa.decimal128(20, 0) else None


def _fields_kind(wanted: pa.DataType) -> Kind | None:
    if pa.types.is_map(wanted):
        fits = is_text(wanted.key_type) and is_text(wanted.item_type)
        return Kind.MAP if fits else None
    if not pa.types.is_list(wanted) or not pa.types.is_struct(wanted.value_type):
        return None
    inner = wanted.value_type
    names = [inner.field(i).name for i in range(inner.num_fields)]
    fits = names == ["name", "value"] and all(
        is_text(inner.field(i).type) for i in range(inner.num_fields)
    )
    return Kind.LIST if fits else None


_PARTS = {
    "key": lambda wanted: Kind.KEY if is_text(wanted) else None,
    "id": lambda wanted: Kind.ID if pa.types.is_string(wanted) else None,
    "ts": lambda wanted: Kind.TS if wanted == pa.timestamp("us", "UTC") else None,
    "ms": lambda wanted: _number_kind(wanted, Kind.INT_MS, Kind.DECIMAL_MS),
    "seq": lambda wanted: _number_kind(wanted, Kind.INT_SEQ, Kind.DECIMAL_SEQ),
    "fields": _fields_kind,
}
