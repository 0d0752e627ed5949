"""The scheduled entries of a stream (schedule) in a snapshot: docs/formats.md, schedule.

A snapshot shares the pages of the schedule at its moment; a thread packs them one by one.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from millstream.storage.streams.schedule import Schedule, Scheduled

INT64_MAX = 2**63 - 1
# Packed in one step: up to this number of bytes, or one page.
_PART_BYTES = 1 << 20
# The size of the head of an array in msgpack, at most.
_HEAD_BYTES = 5


class SharedSchedule:
    """The schedule of a stream at one moment."""

    def __init__(self, schedule: Schedule) -> None:
        self.last_number = schedule.last_number
        self._pages = schedule.share()

    def packed(self) -> Iterator[bytes]:
        """The argument of `load` as msgpack in small parts, on any thread."""
        import msgpack  # type: ignore[import-untyped]

        parts = [part for page in self._pages for part in _parts(page, _PART_BYTES)]
        self._pages = []
        packer = msgpack.Packer()
        yield (
            packer.pack_map_header(2)
            + packer.pack("last_number")
            + packer.pack(self.last_number)
            + packer.pack("entries")
            + packer.pack_array_header(len(parts))
        )
        parts.reverse()
        while parts:
            yield packer.pack(msgpack.packb([_row(entry) for entry in parts.pop()]))

    def packed_rows(self, part_bytes: int) -> Iterator[bytes]:
        """The entries in parts of about this size, each a msgpack array of rows."""
        import msgpack

        for page in self._pages:
            for part in _parts(page, part_bytes):
                yield msgpack.packb([_row(entry) for entry in part])

    def dump(self) -> dict[str, Any]:
        """The argument of `load`."""
        import msgpack

        made: dict[str, Any] = msgpack.unpackb(b"".join(self.packed()))
        return made


def _parts(page: list[Scheduled], part_bytes: int) -> Iterator[list[Scheduled]]:
    """The entries of a page in parts of about this size."""
    part: list[Scheduled] = []
    size_bytes = 0
    for entry in page:
        part.append(entry)
        size_bytes += entry.size_bytes
        if size_bytes >= part_bytes:
            yield part
            part, size_bytes = [], 0
    if part:
        yield part


def _row(entry: Scheduled) -> list[object]:
    return [entry.due_ms, entry.number, entry.name, *entry.fields]


def summary(meta: dict[str, Any]) -> tuple[int, int | None]:
    """The number of entries in the result of `SharedSchedule.packed`, and the time at which the
    first one is due; None without one."""
    import msgpack

    count = 0
    for part in meta["entries"]:
        unpacker = msgpack.Unpacker()
        unpacker.feed(part[:_HEAD_BYTES])
        count += unpacker.read_array_header()
    return count, msgpack.unpackb(meta["entries"][0])[0][0] if count else None


def load_in_steps(meta: dict[str, Any]) -> Generator[None, None, Schedule]:
    """Restore the result of `SharedSchedule.packed`; yields after each part. ValueError when the
    parts are inconsistent."""
    schedule = Schedule()
    for part in meta["entries"]:
        put_rows(schedule, part)
        yield
    restore_last_number(schedule, meta["last_number"])
    return schedule


def put_rows(schedule: Schedule, rows: bytes) -> None:
    """Put the entries of a part (`SharedSchedule.packed_rows`). ValueError if one is malformed."""
    import msgpack

    for due_ms, number, name, *fields in msgpack.unpackb(rows):
        if not fields or len(fields) % 2:
            raise ValueError(f"the scheduled entry {due_ms}.{number} has a name without a value")
        schedule.put(due_ms, number, name, fields)


def restore_last_number(schedule: Schedule, last_number: int) -> None:
    """After all entries. ValueError if one of them has a higher number."""
    if not schedule.last_number <= last_number <= INT64_MAX:
        raise ValueError("the last number of its schedule is below one that exists, or impossible")
    schedule.last_number = last_number


def load(meta: dict[str, Any]) -> Schedule:
    """`load_in_steps` in one step."""
    steps = load_in_steps(meta)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            made: Schedule = end.value
            return made
