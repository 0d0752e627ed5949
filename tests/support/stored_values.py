"""The values of keys as tests compare them."""

from __future__ import annotations

from tests.support.storage_access import check_stream

from millstream.storage.dump.digests import group_row, groups_digest, stream_digest
from millstream.storage.streams.stream import Stream


def shown_value(value: object) -> object:
    """A stream as its digests, after a check of its structure; another value as it is."""
    if not isinstance(value, Stream):
        return value
    check_stream(value)
    groups = groups_digest(map(group_row, value.groups.values()))
    return value.last_id, value.entries_added, stream_digest(value), groups
