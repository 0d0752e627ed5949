"""Parses a Spark schema, `key string, ts timestamp, temperature double`, without Spark.

The parser accepts only types that a column can have (`schema` defines which column can have which).
A column without a type gets the type that the option `columns` would give it.
"""

from __future__ import annotations

import re

import pyarrow as pa

from millstream.pipeline.schema import DEFAULT_COLUMNS, PARTS, split_columns
from millstream.pipeline.source_options import OptionError

_TYPES = {
    "string": pa.string(),
    "binary": pa.binary(),
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ltz": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_DECIMAL = re.compile(r"(?:decimal|dec|numeric)(?:\((\d+)(?:,(\d+))?\))?")
_MAP = re.compile(r"map<(string|binary),(string|binary)>")
_PAIRS = re.compile(r"array<struct<name[: ](string|binary),value[: ](string|binary)>>")
_BLANKS = re.compile(r"\s*([<>(),:])\s*")


def arrow_from_ddl(ddl: str | None) -> pa.Schema:
    """The Arrow schema that Spark would derive from this DDL; None means the default schema.
    OptionError names the column that cannot be parsed."""
    columns = split_columns(", ".join(DEFAULT_COLUMNS) if ddl is None else ddl)
    names = [name for name, _ in columns]
    for name in names:
        if names.count(name) > 1:
            raise OptionError(f"the column {name!r} appears twice in the schema {ddl!r}")
    return pa.schema([_field(name, type_ or PARTS.get(name, "string")) for name, type_ in columns])


def _field(name: str, text: str) -> pa.Field:
    plain = _BLANKS.sub(r"\1", " ".join(text.lower().split()))
    found = _TYPES.get(plain) or _decimal(plain) or _nested(plain)
    if found is None:
        raise OptionError(
            f"column {name!r}: {text!r} is not a valid column type, such as string, binary,"
            " bigint, double, decimal(10,2), boolean, date, timestamp or map<string,string>"
        )
    return pa.field(name, found)


def _decimal(text: str) -> pa.DataType | None:
    found = _DECIMAL.fullmatch(text)
    if found is None:
        return None
    precision, scale = int(found[1] or 10), int(found[2] or 0)
    return pa.decimal128(precision, scale) if scale <= precision <= 38 and precision else None


def _nested(text: str) -> pa.DataType | None:
    if found := _MAP.fullmatch(text):
        return pa.map_(_TYPES[found[1]], _TYPES[found[2]])
    if found := _PAIRS.fullmatch(text):
        return pa.list_(pa.struct([("name", _TYPES[found[1]]), ("value", _TYPES[found[2]])]))
    return None
