"""Reading the configuration file of `millstream cdc`: TOML, checked as a whole.

Every fault is a ConfigError whose text is one line: the file, the line, the place in the file, and
what is allowed there. `${NAME}` in a string stands for an environment variable.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from millstream.cdc.config import (
    ApplyConfig,
    CdcConfig,
    ConfigError,
    Destination,
    ReadConfig,
    ServerConfig,
    Settings,
    Source,
    Table,
    target_name,
)
from millstream.cdc.sql import read_table_name, table_name
from millstream.pipeline.source_options import OptionError, check_server_url
from millstream.server_url import has_at_after_host

SLOT_BYTES_MAX = 63
RESERVED = "apply:alive"
NOT_EMPTY = (".prefix", ".schema", ".target", ".master")
METRICS_ADDRESS = re.compile(r".*:\d{1,5}")
AUTHORITY = re.compile(r"\w+://[^/?#@]*@[^/?#@]*@")
VARIABLE = re.compile(r"\$\{([^}]*)\}")

LIMITS: Mapping[str, tuple[float, float]] = {
    "millstream.backlog_mb": (1, 2**40),
    "millstream.keep_entries": (-1, 2**62),
    "millstream.db": (0, 2**30),
    "millstream.timeout": (1, 3600),
    "read.copy_rate": (0, 2**40),
    "read.copy_ahead_mb": (1, 2**20),
    "apply.workers": (1, 1024),
    "apply.commit_delay": (0, 3600),
    "apply.max_rows": (1, 10_000_000),
    "apply.retry_max": (1, 86400),
}


def find(named: str | None) -> Path:
    """The file: the one that is named, $MILLSTREAM_CDC_CONFIG, or ./cdc.toml."""
    return Path(named or os.environ.get("MILLSTREAM_CDC_CONFIG") or "cdc.toml")


def load(path: Path, environment: Mapping[str, str] = os.environ) -> CdcConfig:
    """Read and check the file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 at byte {error.start}") from None
    return parse(text, path, environment)


def parse(text: str, path: Path, environment: Mapping[str, str]) -> CdcConfig:
    """Check the text of a file."""
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    return _Reader(text, path, environment).config(document)


class _Reader:
    """Checks one document. A place is a path such as `database[0].tables.orders.type`."""

    def __init__(self, text: str, path: Path, environment: Mapping[str, str]) -> None:
        self._lines = text.splitlines()
        self._path = path
        self._environment = environment

    def config(self, document: dict[str, Any]) -> CdcConfig:
        self._refuse_unknown(
            document, ["millstream", "destination", "read", "apply", "database"], ""
        )
        databases = document.get("database", [])
        if not isinstance(databases, list) or not databases:
            raise self._fault(
                "database", "is missing or empty: at least one [[database]] is needed"
            )
        destination = self._section(Destination, document, "destination")
        config = CdcConfig(
            self._path,
            self._section(ServerConfig, document, "millstream"),
            destination,
            self._section(ReadConfig, document, "read"),
            self._section(ApplyConfig, document, "apply"),
            tuple(
                source
                for number, database in enumerate(databases)
                for source in self._database(database, f"database[{number}]", destination)
            ),
        )
        self._check_names(config)
        self._check_targets(config)
        return config

    # ------------------------------------------------------------ sections

    def _section(self, kind: Any, document: dict[str, Any], name: str) -> Any:
        values = document.get(name, {})
        if not isinstance(values, dict):
            raise self._fault(name, f"must be a table: [{name}]")
        return self._values(kind, values, name)

    def _values(self, kind: Any, values: dict[str, Any], place: str) -> Any:
        types = get_type_hints(kind)
        self._refuse_unknown(values, [field.name for field in fields(kind)], place)
        for option in fields(kind):
            if (
                option.name not in values
                and option.default is MISSING
                and option.default_factory is MISSING
            ):
                raise self._fault(f"{place}.{option.name}", "is missing")
        return kind(
            **{
                name: self._value(types[name], value, f"{place}.{name}")
                for name, value in values.items()
            }
        )

    def _database(self, database: Any, place: str, destination: Destination) -> Iterator[Source]:
        if not isinstance(database, dict):
            raise self._fault(place, "must be a table: [[database]]")
        self._refuse_unknown(database, ["name", "source", "tables", "schema", "failover"], place)
        name = self._required(str, database, "name", place)
        schema = self._value(str, database.get("schema", "public"), f"{place}.schema")
        failover = self._value(bool, database.get("failover", False), f"{place}.failover")
        sources = database.get("source", [])
        if not isinstance(sources, list) or not sources:
            raise self._fault(
                f"{place}.source",
                "is missing or empty: at least one {sid = .., url = ..} is needed",
            )
        listed = self._tables(database.get("tables", {}), schema, f"{place}.tables")
        tables = tuple(
            table if is_set else replace(table, missing_columns=destination.missing_columns)
            for table, is_set in listed
        )
        for number, source in enumerate(sources):
            where = f"{place}.source[{number}]"
            if not isinstance(source, dict):
                raise self._fault(where, "must be a table: {sid = .., url = ..}")
            self._refuse_unknown(source, ["sid", "url"], where)
            sid = self._required(str, source, "sid", where)
            url = self._required(str, source, "url", where)
            yield Source(name, sid, url, tables, failover)

    def _tables(self, tables: Any, default_schema: str, place: str) -> Iterator[tuple[Table, bool]]:
        """The tables, and whether each has the option missing_columns."""
        if not isinstance(tables, dict) or not tables:
            raise self._fault(place, "is missing or empty: at least one table is needed")
        for name, options in tables.items():
            where = f"{place}.{name}"
            if not isinstance(options, dict):
                raise self._fault(where, "must be a table of options, {} for none")
            try:
                schema, plain = read_table_name(name)
            except ValueError:
                raise self._fault(
                    where, "must be a table's name, or schema.table in quotes"
                ) from None
            allowed = ["target", "type", "columns", "where", "rename", "set", "missing_columns"]
            self._refuse_unknown(options, allowed, where)
            types = get_type_hints(Table)
            values = {
                key: self._value(types[key], v, f"{where}.{key}") for key, v in options.items()
            }
            values.setdefault("target", table_name("", plain))
            yield Table(schema or default_schema, plain, **values), "missing_columns" in values

    # ------------------------------------------------------------ values

    def _required(self, kind: Any, values: dict[str, Any], name: str, place: str) -> Any:
        if name not in values:
            raise self._fault(f"{place}.{name}", "is missing")
        value = self._value(kind, values[name], f"{place}.{name}")
        if not value:
            raise self._fault(f"{place}.{name}", "must not be empty")
        return value

    def _value(self, kind: Any, value: Any, place: str) -> Any:
        if type(None) in get_args(kind):
            kind = next(one for one in get_args(kind) if one is not type(None))
        origin = get_origin(kind)
        if origin is Literal:
            if value not in get_args(kind):
                allowed = ", ".join(get_args(kind))
                raise self._fault(place, f"must be one of {allowed}, not {value!r}")
            return value
        if origin is tuple:
            if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
                raise self._fault(place, "must be a list of strings")
            if len(set(value)) < len(value):
                raise self._fault(place, "has a column twice")
            return tuple(self._text(one, place) for one in value)
        if kind is Settings or (origin is not None and issubclass(origin, Mapping)):
            return self._mapping(kind, value, place)
        if kind is str and isinstance(value, str):
            return self._checked_text(self._text(value, place), place)
        if kind is float and type(value) is int:
            value = float(value)
        if type(value) is not kind:
            names = {str: "a string", int: "a whole number", float: "a number", bool: "a boolean"}
            shown = "" if place.endswith(".password") else f", not {value!r}"
            raise self._fault(place, f"must be {names[kind]}{shown}")
        low, high = LIMITS.get(place, (0, 0))
        if (low, high) != (0, 0) and not low <= value <= high:
            raise self._fault(place, f"must be from {low} to {high}, not {value}")
        return value

    def _checked_text(self, text: str, place: str) -> str:
        if not text and place.endswith(NOT_EMPTY):
            raise self._fault(place, "must not be empty")
        if place.endswith(".url") and AUTHORITY.match(text):
            raise self._fault(place, "has two @: in a name or a password, @ is written %40")
        if place.endswith(".url") and "://" in text and has_at_after_host(text):
            raise self._fault(
                place, "has an @ after the host: in a name or a password, / is written %2F, ? %3F,"
                " # %23 and @ %40",
            )  # fmt: skip
        if place == "millstream.server":
            try:
                check_server_url(text)
            except OptionError as error:  # without the URL, which may contain a password
                raise self._fault(place, str(error).removeprefix("option 'server' ")) from None
        if place.endswith(".target"):
            try:
                read_table_name(text)
            except ValueError:
                raise self._fault(place, "must be a table's name, or schema.table") from None
        if place.endswith(".metrics") and not METRICS_ADDRESS.fullmatch(text):
            raise self._fault(place, f"must be an address with a port, host:port, not {text!r}")
        return text

    def _mapping(self, kind: Any, value: Any, place: str) -> dict[str, Any]:
        only_texts = get_args(kind) == (str, str)
        if not isinstance(value, dict):
            raise self._fault(place, "must be a table")
        for name, one in value.items():
            if isinstance(one, (dict, list)) or (only_texts and not isinstance(one, str)):
                wanted = "a string" if only_texts else "a string, a number or a boolean"
                raise self._fault(f"{place}.{name}", f"must be {wanted}")
        if place.endswith(".rename") and len(set(value.values())) < len(value):
            raise self._fault(place, "gives two columns the same name")
        return {
            name: self._text(one, f"{place}.{name}") if isinstance(one, str) else one
            for name, one in value.items()
        }

    def _text(self, text: str, place: str) -> str:
        def variable(match: re.Match[str]) -> str:
            try:
                return self._environment[match[1]]
            except KeyError:
                raise self._fault(
                    place, f"the environment variable {match[1]!r} is not set"
                ) from None

        return VARIABLE.sub(variable, text)

    # ------------------------------------------------------------ the file as a whole

    def _check_names(self, config: CdcConfig) -> None:
        slots: dict[str, Source] = {}
        for source in config.sources:
            if source.name == RESERVED:
                raise self._fault(
                    "database", f"the source {RESERVED} has the key of apply's own report"
                )
            if len(source.slot) > SLOT_BYTES_MAX:
                raise self._fault(
                    "database", f"the slot name {source.slot!r} has more than 63 characters"
                )
            other = slots.setdefault(source.slot, source)
            if other is not source:
                raise self._fault(
                    "database",
                    f"the sources {other.name} and {source.name} have the same slot name, "
                    f"{source.slot!r}: give one of them another name",
                )
            names: set[str] = set()
            for table in source.tables:
                if table.full_name in names:
                    raise self._fault("database", f"the table {table.full_name!r} is listed twice")
                names.add(table.full_name)

    def _check_targets(self, config: CdcConfig) -> None:
        """Without a sid column a target has one source and one table."""
        owners: dict[tuple[str, str], str] = {}
        for source in config.sources:
            sid = source.sid if config.destination.sid_column else ""
            for table in source.tables:
                target, owner = target_name(table, config), f"{source.name} {table.full_name}"
                other = owners.setdefault((target, sid), owner)
                if other != owner:
                    raise self._fault(
                        "database",
                        f"{other} and {owner} share the target {target!r}: only sources with sids"
                        " of their own can share a target, and only if it has a sid column",
                    )

    # ------------------------------------------------------------ faults

    def _refuse_unknown(
        self, values: Mapping[str, Any], allowed: Sequence[str], place: str
    ) -> None:
        for name in values:
            if name not in allowed:
                where = f"{place}.{name}" if place else name
                raise self._fault(where, f"is unknown; allowed are {', '.join(allowed)}")

    def _fault(self, place: str, text: str) -> ConfigError:
        line = self._line_of(place)
        at = f"{self._path}:{line}" if line else str(self._path)
        return ConfigError(f"{at}: {place} {text}")

    def _line_of(self, place: str) -> int | None:
        """The line where a place is, as far as a search tells: its last name in its section."""
        names = re.findall(r"[^.\[\]]+", place.replace('"', ""))
        section = names[0]
        number = int(names[1]) if len(names) > 1 and names[1].isdigit() else 0
        key = re.compile(rf'(^|[\s{{,."]){re.escape(names[-1])}"?\s*=')
        header = re.compile(rf"^\s*\[\[?\s*{re.escape(section)}\s*[\].]")
        first = re.compile(rf"^\s*\[\[\s*{re.escape(section)}\s*\]\]")
        inside, count, found = False, -1, None
        for index, line in enumerate(self._lines, 1):
            if first.match(line):
                count += 1
            if line.lstrip().startswith("["):
                inside = bool(header.match(line)) and count in (-1, number)
                found = index if inside and found is None else found
            if inside and key.search(line):
                return index
        return found
