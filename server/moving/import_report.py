"""The report of an import: lines for the terminal, and JSON."""

from __future__ import annotations

import heapq
import json
import os
from pathlib import Path
from typing import Any

from millstream.errors import counted
from millstream.storage.dump.base_making import first_names

_STREAMS_SHOWN = 20
_COLUMNS = ("db", "key", "length", "first_id", "last_id", "groups", "pending")


class Report:
    """Collects what an import has found. Without `with_streams`, only the longest streams are kept,
    which the terminal shows."""

    def __init__(self, *, with_streams: bool) -> None:
        self._with_streams = with_streams
        self._streams: list[dict[str, Any]] = []
        self._longest: list[tuple[int, int, dict[str, Any]]] = []
        self._count = 0
        self._found: dict[str, Any] = {}

    @property
    def is_complete(self) -> bool:
        return bool(self._found)

    def add_stream(self, facts: dict[str, Any]) -> None:
        self._count += 1
        if self._with_streams:
            self._streams.append(facts)
        ranked = facts["length"], -self._count, facts
        if len(self._longest) < _STREAMS_SHOWN:
            heapq.heappush(self._longest, ranked)
        else:
            heapq.heappushpop(self._longest, ranked)

    def finish(self, found: dict[str, Any]) -> None:
        """Add what is known at the end."""
        self._found = found

    def as_dict(self) -> dict[str, Any]:
        sources = self._found["source"]
        return {
            "source": sources[0] if len(sources) == 1 else sources,
            "streams": self._streams,
            **{name: value for name, value in self._found.items() if name != "source"},
        }

    def lines(self, directory: Path | None) -> list[str]:
        """The report for the terminal; `directory` is None if nothing was written."""
        found = self._found
        lines = self._table()
        for source in found["source"]:
            lines.append(_source_line(source))
        lines += [left_out_line(what, keys) for what, keys in found["left_out"].items()]
        if found["expired"]:
            lines.append(f"left out: {counted(found['expired'], 'expired key')}")
        for what, count in found["adjusted"].items():
            if count:
                lines.append(f"adjusted: {count} {what.replace('_', ' ')}")
        lines += [f"lost: {sentence}" for sentence in found["lost"]]
        lines += [f"note: {sentence}" for sentence in found["notes"]]
        totals = found["totals"]
        where = "nothing was written (--dry-run)" if directory is None else str(directory)
        lines.append(
            f"{where}: {counted(totals['streams'], 'stream')} with"
            f" {counted(totals['entries'], 'entry')}, {counted(totals['groups'], 'group')},"
            f" {counted(totals['pending'], 'pending entry')},"
            f" {counted(totals['strings'], 'string')}, {found['seconds']:.1f} seconds"
        )
        return lines

    def _table(self) -> list[str]:
        """The longest streams, one in a line."""
        rows = [
            [str(facts[name]) for name in _COLUMNS] for *_, facts in sorted(self._longest)[::-1]
        ]
        if not rows:
            return []
        rows.insert(0, [name.replace("_", " ") for name in _COLUMNS])
        widths = [max(len(row[i]) for row in rows) for i in range(len(_COLUMNS))]
        lines = [
            "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        if self._count > len(self._longest):
            lines.append(f"... and {counted(self._count - len(self._longest), 'more stream')}")
        return lines


def left_out_line(what: str, left_out: dict[str, Any]) -> str:
    """The keys of one type that were left out."""
    names = first_names(left_out["names"], left_out["keys"])
    size = counted(left_out["bytes"], "byte")
    return f"left out: {left_out['keys']} of the type {what} ({size}): {names}"


def _source_line(source: dict[str, Any]) -> str:
    version = "" if source["version"] is None else f"version {source['version']}, "
    line = (
        f"{source['name']}: {version}{source['program']},"
        f" {counted(source['size'], 'byte')}, checksum: {source['checksum']}"
    )
    if "files" in source:
        requests = counted(sum(file["requests"] for file in source["files"]), "request")
        line += f", {counted(len(source['files']), 'file')} with {requests}"
    return line


def write_report(path: Path, report: dict[str, Any]) -> None:
    """Write a report; the file is replaced when it is complete."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(report, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
