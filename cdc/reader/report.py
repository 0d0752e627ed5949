"""The report of a source's process: to millstream every second, and to `run`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias

from millstream.cdc.config import Source
from millstream.cdc.sql import lsn_text

ReaderState: TypeAlias = Literal["starting", "reading", "paused", "waiting", "refused"]


@dataclass
class TableReport:
    """A table: `rows` is the number of rows of the last copy that are in millstream."""

    phase: str = "wanted"
    rows: int = 0
    problem: str | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass
class SourceReport:
    """Written by the threads of the process. Each field is replaced as a whole."""

    source: str
    log: Callable[[ReaderState, str], None]
    """Gets each problem once."""
    reader: ReaderState = "starting"
    problem: str | None = None
    durable_lsn: int = 0
    confirmed_lsn: int = 0
    source_lsn: int = 0
    """The last known end of the source's WAL."""
    heard: float | None = None
    """Unix time of the last message from the source."""
    committed: str | None = None
    """The time of the last commit that is durable."""
    slot: dict[str, Any] | None = None
    repeated: int = 0
    copied_rows: Counter[str] = field(default_factory=Counter)
    copied_bytes: Counter[str] = field(default_factory=Counter)
    changes: dict[str, Counter[bytes]] = field(default_factory=dict)
    """By table and @op."""
    tables: dict[str, TableReport] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Source, log: Callable[[ReaderState, str], None]) -> SourceReport:
        names = [table.full_name for table in source.tables]
        return cls(
            source.name,
            log,
            changes={name: Counter() for name in names},
            tables={name: TableReport() for name in names},
        )

    def became(self, reader: ReaderState, problem: str | None = None) -> None:
        if problem is not None and problem != self.problem:
            self.log(reader, problem)
        self.reader, self.problem = reader, problem

    def as_json(self) -> dict[str, Any]:
        """The report, with LSNs as PostgreSQL writes them."""
        return {
            "source": self.source,
            "pid": os.getpid(),
            "at": time.time(),
            "reader": self.reader,
            "problem": self.problem,
            "durable_lsn": lsn_text(self.durable_lsn) if self.durable_lsn else None,
            "confirmed_lsn": lsn_text(self.confirmed_lsn) if self.confirmed_lsn else None,
            "source_lsn": lsn_text(self.source_lsn) if self.source_lsn else None,
            "heard": self.heard,
            "committed": self.committed,
            "slot": self.slot,
            "repeated": self.repeated,
            "copied_rows": dict(self.copied_rows),
            "copied_bytes": dict(self.copied_bytes),
            "changes": {
                name: {op.decode(): count for op, count in list(counts.items())}
                for name, counts in self.changes.items()
            },
            "tables": {name: asdict(table) for name, table in self.tables.items()},
        }
