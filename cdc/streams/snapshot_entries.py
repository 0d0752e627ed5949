"""The entries of a copy stream: `begin`, blocks of rows, `end`. Without I/O.

All of them have the LSN C of the copy in their IDs, and are numbered from 1 without a gap. A block
is COPY's own text format: whole lines, in the order of the columns that `begin` names.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

BLOCK_BYTES_MAX = 64 * 1024

Fields: TypeAlias = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class CopyBegin:
    """The first entry: the columns, by their names at the source, and the time of the copy."""

    columns: tuple[str, ...]
    at: str

    def fields(self) -> Fields:
        columns = json.dumps(self.columns, ensure_ascii=False).encode()
        return [(b"@op", b"begin"), (b"@at", self.at.encode()), (b"columns", columns)]


@dataclass(frozen=True, slots=True)
class CopyRows:
    """A block of lines."""

    block: bytes

    def fields(self) -> Fields:
        return [(b"@op", b"rows"), (b"rows", self.block)]


@dataclass(frozen=True, slots=True)
class CopyEnd:
    """The last entry: the number of rows in all blocks."""

    rows: int

    def fields(self) -> Fields:
        return [(b"@op", b"end"), (b"rows", b"%d" % self.rows)]


CopyEntry: TypeAlias = CopyBegin | CopyRows | CopyEnd


def read_copy_entry(fields: Mapping[bytes, bytes]) -> CopyEntry:
    """An entry of a copy stream; ValueError if it is none."""
    match fields.get(b"@op"):
        case b"begin":
            return CopyBegin(_names(fields[b"columns"]), fields[b"@at"].decode())
        case b"rows":
            return CopyRows(fields[b"rows"])
        case b"end":
            return CopyEnd(int(fields[b"rows"]))
        case other:
            raise ValueError(f"an entry of a copy with the unknown @op {other!r}")


def _names(text: bytes) -> tuple[str, ...]:
    names: Sequence[str] = json.loads(text)
    return tuple(names)
