"""The configuration of `millstream cdc`, and values derived from it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeAlias

from millstream.cdc import CdcError
from millstream.cdc.sql import read_table_name, table_name

TableType: TypeAlias = Literal["clone", "append", "history"]
MissingColumns: TypeAlias = Literal["stop", "ignore"]
"""The effect of a change with a column that the target lacks: it stops its table, or the column is
ignored."""
Settings: TypeAlias = Mapping[str, Any]
TableKey: TypeAlias = tuple[str, str, str]
"""A table of a source: database, sid, and the table's name with its schema."""

SLOT_CHARACTERS = re.compile(r"[^a-z0-9_]")


class ConfigError(CdcError):
    """The file cannot be used; the text says where and why."""


@dataclass(frozen=True)
class ServerConfig:
    """[millstream]: the server, and how much of its memory the streams may take."""

    server: str = "redis://127.0.0.1:6455"
    backlog_mb: int = 1024
    prefix: str = "cdc"
    keep_entries: int = 0
    username: str | None = None
    password: str | None = None
    db: int | None = None
    timeout: int = 30


@dataclass(frozen=True)
class Destination:
    """[destination]: the database that changes are applied to."""

    url: str
    schema: str = "public"
    sid_column: str = "sid"
    missing_columns: MissingColumns = "stop"
    settings: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class ReadConfig:
    """[read]: copying tables from the sources."""

    copy_rate: int = 0
    metrics: str | None = None
    copy_ahead_mb: int = 64


@dataclass(frozen=True)
class ApplyConfig:
    """[apply]: the Spark program."""

    workers: int = 2
    commit_delay: float = 1.0
    max_rows: int = 20000
    metrics: str | None = None
    retry_max: int = 300
    master: str = "local[*]"
    spark: Settings = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """A table of a database, and its options."""

    schema: str
    name: str
    target: str = ""
    type: TableType = "clone"
    columns: tuple[str, ...] = ()
    where: str = ""
    rename: Mapping[str, str] = field(default_factory=dict)
    set: Mapping[str, str] = field(default_factory=dict)
    missing_columns: MissingColumns = "stop"

    @cached_property
    def full_name(self) -> str:
        return table_name(self.schema, self.name)


@dataclass(frozen=True)
class Source:
    """One database of several that have the same tables."""

    database: str
    sid: str
    url: str
    tables: tuple[Table, ...]
    failover: bool = False

    @property
    def name(self) -> str:
        return f"{self.database}:{self.sid}"

    @property
    def slot(self) -> str:
        """The name of the slot and of the publication."""
        return SLOT_CHARACTERS.sub("_", f"millstream_{self.database}_{self.sid}".lower())

    def key_of(self, table: Table) -> TableKey:
        return self.database, self.sid, table.full_name


@dataclass(frozen=True)
class CdcConfig:
    """The complete configuration file."""

    path: Path
    millstream: ServerConfig
    destination: Destination
    read: ReadConfig
    apply: ApplyConfig
    sources: tuple[Source, ...]

    def source(self, name: str) -> Source:
        """The source with this name; ConfigError with the names that there are."""
        for source in self.sources:
            if source.name == name:
                return source
        known = ", ".join(source.name for source in self.sources)
        raise ConfigError(f"{self.path}: there is no source {name!r}; the sources are {known}")


def target_of(table: Table, config: CdcConfig) -> tuple[str, str]:
    """The target's schema and name."""
    schema, name = read_table_name(table.target)
    return schema or config.destination.schema, name


def target_name(table: Table, config: CdcConfig) -> str:
    """The target with its schema."""
    return table_name(*target_of(table, config))


def shared_targets(config: CdcConfig) -> set[tuple[str, str]]:
    """The targets that take the rows of several sources or tables."""
    owners = Counter(
        target_of(table, config) for source in config.sources for table in source.tables
    )
    return {target for target, count in owners.items() if count > 1}
