"""Writes what a reader would: states, changes, cuts and copies, without a source.

Tests of `apply` use it to make exactly the streams they need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from tests.support.client import RawClient, as_bytes, as_list
from tests.support.resp import Error, Reply

from millstream.cdc.config import CdcConfig, Table
from millstream.cdc.config_file import parse
from millstream.cdc.protocol.pgoutput import UNCHANGED, Value
from millstream.cdc.sql import lsn_text
from millstream.cdc.streams.key_names import SourceKeys
from millstream.cdc.streams.snapshot_entries import CopyBegin, CopyEnd, CopyEntry, CopyRows
from millstream.cdc.streams.source_state import (
    Identity,
    SourceColumn,
    TableConfig,
    TableState,
)
from millstream.cdc.streams.translator import names_words, time_text

START_US = 1_795_000_000_000_000
COLUMNS = (
    SourceColumn("id", "integer", True, True),
    SourceColumn("a", "text", False),
    SourceColumn("b", "numeric(10,2)", False),
)


def config_text(
    server_port: int,
    destination: str,
    tables: str = "t = {}",
    sids: Sequence[str] = ("eu",),
    extra: str = "",
) -> str:
    """A configuration; `extra` has lines of [apply]."""
    sources = ", ".join(f'{{ sid = "{sid}", url = "postgresql://nowhere/{sid}" }}' for sid in sids)
    return (
        f'[millstream]\nserver = "redis://127.0.0.1:{server_port}"\ntimeout = 5\n'
        f'[destination]\nurl = "{destination}"\n'
        f"[apply]\ncommit_delay = 0.05\n{extra}\n"
        f'[[database]]\nname = "shop"\nsource = [{sources}]\n[database.tables]\n{tables}\n'
    )


class Feed:
    """One source's part of millstream."""

    def __init__(self, client: RawClient, config: CdcConfig, sid: str = "eu") -> None:
        self._client = client
        self.config = config
        self.source = config.source(f"shop:{sid}")
        self.keys = SourceKeys(config.millstream.prefix, self.source)
        self._states: dict[str, TableState] = {}
        self.time_us = START_US
        self._rows = 0
        self.lsn = 1000

    def table(self, name: str) -> Table:
        return next(table for table in self.source.tables if table.name == name)

    def call(self, *words: str | bytes | int) -> Reply:
        reply = self._client.call(*(str(w) if isinstance(w, int) else w for w in words))
        assert not isinstance(reply, Error), reply
        return reply

    # ------------------------------------------------------------ states and copies

    def open(
        self,
        name: str = "t",
        columns: Sequence[SourceColumn] = COLUMNS,
        identity: Identity = "default",
    ) -> None:
        """Create the stream of a table, and its state before the copy."""
        key = self.keys.changes(self.table(name))
        at = time_text(self.time_us)
        self.call("TAPPENDONCE", key, "ID", "1.0", "@op", "start", "@at", at)
        info = as_list(self.call("TINFO", key))
        incarnation = int(as_bytes_or_int(info[info.index(b"incarnation") + 1]))
        table_config = TableConfig.of(self.table(name), self.config)
        state = TableState("wanted", 0, tuple(columns), identity, incarnation, 1, table_config)
        self.put_state(name, state)

    def put_state(self, name: str, state: TableState) -> None:
        self._states[name] = state
        self.call("SET", self.keys.table_state(self.table(name)), state.to_json())

    def state(self, name: str = "t") -> TableState:
        return self._states[name]

    def begin_copy(self, name: str = "t") -> int:
        """`begin` of a copy as of now; its LSN."""
        self.lsn += 10
        self.put_state(name, replace(self.state(name), phase="copying", copy_lsn=self.lsn))
        key = self.keys.copy(self.table(name))
        self.call("DEL", key)
        columns = tuple(column.name for column in self.state(name).columns)
        self.copy_entry(name, 1, CopyBegin(columns, time_text(self.time_us)))
        return self.lsn

    def copy_entry(self, name: str, n: int, entry: CopyEntry) -> None:
        words = [word for pair in entry.fields() for word in pair]
        id_ = f"{self.state(name).copy_lsn}.{n}"
        key = self.keys.copy(self.table(name))
        assert self.call("TAPPENDONCE", key, "ID", id_, *words) is not None

    def end_copy(self, name: str, n: int, rows: int) -> None:
        self.copy_entry(name, n, CopyEnd(rows))
        self.put_state(name, replace(self.state(name), phase="copied"))

    def copy(self, rows: Sequence[bytes] = (), name: str = "t") -> int:
        """A whole copy with one block for each line; its LSN."""
        lsn = self.begin_copy(name)
        for number, line in enumerate(rows):
            self.copy_entry(name, number + 2, CopyRows(line + b"\n"))
        self.end_copy(name, len(rows) + 2, len(rows))
        return lsn

    # ------------------------------------------------------------ changes

    def transaction(self, *changes: Mapping[str, object], cut: bool = True) -> int:
        """A transaction of the source. A change has `op`, `new`, `old` and `table`; its LSN."""
        self.lsn += 10
        self.time_us += 1_000_000
        for place, change in enumerate(changes, 1):
            self._change(place, change)
        self._rows += len(changes)
        if cut:
            self.cut()
        return self.lsn

    def _change(self, place: int, change: Mapping[str, object]) -> None:
        name = str(change.get("table", "t"))
        at = time_text(self.time_us).encode()
        words = [b"@op", str(change["op"]).encode(), b"@at", at]
        new, old = change.get("new"), change.get("old")
        columns = [column.name for column in self.state(name).columns]
        if isinstance(new, tuple):
            words += row_words(columns, new, b"")
        if isinstance(old, tuple):
            words += row_words(columns[: len(old)], old, b"@old")
        key = self.keys.changes(self.table(name))
        id_ = f"{self.lsn}.{place}"
        self.call("TAPPENDONCE", key, "ID", id_, *words)

    def cut(self) -> None:
        at = time_text(self.time_us)
        words = ["lsn", lsn_text(self.lsn + 5), "at", at, "rows", str(self._rows)]
        self.call("TAPPENDONCE", self.keys.cuts, "ID", f"{self.lsn}.0", *words)
        self._rows = 0


def row_words(columns: Sequence[str], row: tuple[Value, ...], kind: bytes) -> list[bytes]:
    pairs = list(zip(columns, row, strict=True))
    prefix = b"@old:" if kind else b""
    words = [word for n, v in pairs if isinstance(v, bytes) for word in (prefix + n.encode(), v)]
    words += names_words(b"@old-null" if kind else b"@null", [n for n, v in pairs if v is None])
    return words + names_words(b"@unchanged", [n for n, v in pairs if v is UNCHANGED])


def as_bytes_or_int(reply: Reply) -> bytes | int:
    return reply if isinstance(reply, int) else as_bytes(reply)


def insert(*row: Value, table: str = "t") -> dict[str, object]:
    return {"op": "insert", "new": row, "table": table}


def update(
    *row: Value, old: tuple[Value, ...] | None = None, table: str = "t"
) -> dict[str, object]:
    return {"op": "update", "new": row, "old": old, "table": table}


def delete(*old: Value, table: str = "t") -> dict[str, object]:
    return {"op": "delete", "old": old, "table": table}


def truncate(table: str = "t") -> dict[str, object]:
    return {"op": "truncate", "table": table}


def parsed(text: str) -> CdcConfig:
    return parse(text, Path("cdc.toml"), {})
