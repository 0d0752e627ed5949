"""Tables: `CREATE TABLE t USING millstream OPTIONS (...)`.

Spark keeps a table's options in its catalog, but does not pass them to a Python source when the
table is read or written: it passes only the schema from the catalog. The catalog keeps the column
metadata of a schema that the source returned, so the source stores the options there. Spark
requests the schema when a table is created without a list of columns. The source recognises this
case by options that only a table has.

When a table is written, Spark passes the schema of the query, which may have the metadata of
another table. Therefore only reading takes options from the metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from millstream.pipeline.schema import default_schema
from millstream.pipeline.source_options import READS, OptionError, belonging

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

METADATA = "millstream"
_SECRET = ("username", "password")
_NOT_KEPT = (
    "there are no options. If a table was created with a list of columns, Spark passes no options"
    " to a Python source: create it without the list and name the columns in the option 'columns',"
    " or give the options in the query: SELECT * FROM t WITH (server '...', subscribe '...')"
)
_INSTEAD = (
    "Spark passes no options to a Python source of a table that is written. Give them in the"
    " statement, INSERT INTO t WITH (server '...', key '...') VALUES ..., or insert into a"
    " temporary view that was created with them"
)


def is_table(given: Mapping[str, str]) -> bool:
    """True if the options belong to a table that is being created, not to `load()`."""
    return "provider" in given


def table_schema(given: Mapping[str, str]) -> StructType:
    """The schema of a table, with the table's options in its metadata. OptionError for an option
    that does not exist or that a table must not keep."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from millstream.pipeline.ddl import arrow_from_ddl

    options = {
        name.removeprefix("option."): text
        for name, text in given.items()
        if name.startswith("option.")
    }
    if "path" in given and "server" not in options:
        options["path"] = given["path"]
    _check(options)
    arrow = arrow_from_ddl(default_schema(options.pop("columns", None)))
    schema: StructType = from_arrow_schema(arrow, prefer_timestamp_ntz=True)
    schema.fields[0].metadata = {METADATA: json.dumps(options, sort_keys=True)}
    return schema


def reading_options(
    given: Mapping[str, str], schema: StructType, purpose: str
) -> Mapping[str, str]:
    """The given options and the table's options for this purpose; a given option overrides the
    table's."""
    if "server" in given or "path" in given:
        return given
    kept = _kept(schema)
    if not kept and not given:
        raise OptionError(_NOT_KEPT)
    return belonging(kept, (purpose,)) | dict(given)


def writing_options(given: Mapping[str, str]) -> Mapping[str, str]:
    """The given options; OptionError when there are none, which is the case for a table."""
    if not given:
        raise OptionError(f"there are no options. {_INSTEAD}")
    return given


def is_of_server(given: Mapping[str, str], schema: StructType) -> bool:
    """True if the given options or the table's options name a server."""
    return "server" in given or ("path" not in given and "server" in _kept(schema))


def _kept(schema: StructType) -> dict[str, Any]:
    for field in schema.fields:
        text = (field.metadata or {}).get(METADATA)
        if text is not None:
            kept: dict[str, Any] = json.loads(text)
            return kept
    return {}


def _check(options: Mapping[str, str]) -> None:
    for name in options.keys() - belonging(options, READS).keys():
        raise OptionError(f"option {name!r} is for writing, but a table is for reading: {_INSTEAD}")
    for name in _SECRET:
        if name in options:
            raise OptionError(_secret(f"the option {name!r}"))
    if "@" in options.get("server", ""):
        raise OptionError(_secret("a user or a password in the option 'server'"))
    if "server" not in options and "path" not in options:
        raise OptionError("a table needs the option 'server', or 'path' for a data directory")


def _secret(what: str) -> str:
    return (
        f"a table does not keep {what}, because all who see its schema would see it. Give it in the"
        " query: SELECT * FROM t WITH (password '...'), or create a temporary view"
    )
