"""The entries of a copy, written and read."""

from __future__ import annotations

import pytest

from millstream.cdc.streams.snapshot_entries import (
    CopyBegin,
    CopyEnd,
    CopyEntry,
    CopyRows,
    read_copy_entry,
)


@pytest.mark.parametrize(
    "entry",
    [
        CopyBegin(("id", "größe", "@x"), "2026-11-22T15:04:05.250000Z"),
        CopyRows(b"1\t\\N\n2\t\\\\N\n"),
        CopyEnd(12),
    ],
)
def test_an_entry_is_read_as_it_was_written(entry: CopyEntry) -> None:
    assert read_copy_entry(dict(entry.fields())) == entry


def test_an_entry_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="insert"):
        read_copy_entry({b"@op": b"insert"})
