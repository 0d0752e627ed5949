"""Ranges of cluster slots, and their text: ``0-5460,7000``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from millstream.storage.keyspace.cluster_slots import CLUSTER_SLOTS

Ranges = tuple[tuple[int, int], ...]
"""The first and the last slot of each range, in order."""


def slots_of(ranges: Iterable[tuple[int, int]]) -> Iterator[int]:
    """The slots of these ranges."""
    for first, last in ranges:
        yield from range(first, last + 1)


def ranges_of(slots: Iterable[int]) -> Ranges:
    """The ranges with these slots."""
    found: list[tuple[int, int]] = []
    for slot in sorted(slots):
        if found and found[-1][1] >= slot - 1:
            found[-1] = (found[-1][0], slot)
        else:
            found.append((slot, slot))
    return tuple(found)


def checked_ranges(ranges: Iterable[Iterable[int]]) -> Ranges:
    """These ranges; ValueError unless they are in order, apart and not empty."""
    made = tuple((first, last) for first, last in ranges)
    before = -1
    for first, last in made:
        if not before < first <= last < CLUSTER_SLOTS:
            raise ValueError(f"the slots {first} to {last} are not in order, or impossible")
        before = last
    if not made:
        raise ValueError("there are no slots")
    return made


def ranges_text(ranges: Iterable[tuple[int, int]]) -> bytes:
    """The text of these ranges."""
    parts = (b"%d-%d" % (a, b) if a != b else b"%d" % a for a, b in ranges)
    return b",".join(parts)


def parse_ranges(text: bytes) -> Ranges:
    """The ranges of a text; ValueError if it is malformed."""
    parts = [part.split(b"-") for part in text.split(b",")]
    return checked_ranges((int(part[0]), int(part[-1])) for part in parts)
